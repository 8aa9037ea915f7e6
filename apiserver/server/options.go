package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric/noop"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/server/flagz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // makes --logging-format=json known
	"k8s.io/component-base/metrics"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	netutils "k8s.io/utils/net"

	"byre/apiserver/access/admission"
	"byre/apiserver/access/auth"
	"byre/apiserver/controllers"
	"byre/apiserver/process"
	"byre/apiserver/process/pki"
	"byre/apiserver/registry"
	"byre/apiserver/storage/moment"
)

// Options are the flags of the server, grouped as in kube-apiserver's --help. They are
// plain data. Flags that kube-apiserver has too keep their name, form and meaning.
type Options struct {
	Store     StoreOptions
	Serving   process.ServingOptions
	Cluster   ClusterOptions
	Auth      *auth.Options
	Admission *admission.Options
	Audit     *admission.AuditOptions
	Generic   *genericoptions.ServerRunOptions
	Features  *genericoptions.FeatureOptions
	Logs      *logs.Options
	Metrics   *metrics.Options

	RuntimeConfig cliflag.ConfigurationMap
	Peers         PeerOptions
	Election      controllers.LeaderElectionTimers
	TracingFile   string

	features []Feature
	// flags is the last result of Flags, for /flagz.
	flags cliflag.NamedFlagSets
}

// NewOptions returns the defaults, with the optional parts of every server and more.
func NewOptions(more ...Feature) *Options {
	o := &Options{
		Store:         NewStoreOptions(),
		Serving:       process.NewServingOptions(),
		Cluster:       NewClusterOptions(),
		Auth:          auth.NewOptions(),
		Admission:     admission.NewOptions(),
		Audit:         admission.NewAuditOptions(),
		Generic:       genericoptions.NewServerRunOptions(),
		Features:      genericoptions.NewFeatureOptions(),
		Logs:          logs.NewOptions(),
		Metrics:       metrics.NewOptions(),
		RuntimeConfig: make(cliflag.ConfigurationMap),
		Election:      controllers.DefaultLeaderElectionTimers(),
	}
	o.features = append(optionalParts(o), more...)
	return o
}

// addLoggingGates adds the feature gates of logging, which --feature-gates must accept, to
// those of the process. It adds them once, because the flags close the set of gates, and only
// if no package of an upstream command, such as that of apiserver/controllers, has added them.
var addLoggingGates = sync.OnceFunc(func() {
	if _, known := utilfeature.DefaultMutableFeatureGate.GetAll()[logsapi.ContextualLogging]; !known {
		utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
	}
})

// Flags returns all flags in their sections.
func (o *Options) Flags() cliflag.NamedFlagSets {
	addLoggingGates()
	var sets cliflag.NamedFlagSets
	o.Store.AddFlags(sets.FlagSet("store"))
	addGenericFlags(o.Generic, sets.FlagSet("generic"))
	o.Serving.AddFlags(sets.FlagSet("secure serving"))
	o.Auth.Authentication.AddFlags(sets.FlagSet("authentication"))
	o.Auth.Authorization.AddFlags(sets.FlagSet("authorization"))
	o.Admission.AddFlags(sets.FlagSet("admission"))
	o.Audit.AddFlags(sets.FlagSet("auditing"))
	sets.FlagSet("API enablement").Var(&o.RuntimeConfig, "runtime-config",
		"Key=value pairs that turn built-in APIs on or off: <group>/<version>=true|false, v1=..., api/all=..., api/ga=..., api/beta=..., api/alpha=...")
	o.Features.AddFlags(sets.FlagSet("features"))
	o.addElectionFlags(sets.FlagSet("controllers"))
	o.Metrics.AddFlags(sets.FlagSet("metrics"))
	sets.FlagSet("traces").StringVar(&o.TracingFile, "tracing-config-file", o.TracingFile,
		"File with a TracingConfiguration: the OpenTelemetry collector to send spans to, and of how many requests. A request's trace goes on in webhooks, aggregated servers and the database's statements.")
	logsapi.AddFlags(o.Logs, sets.FlagSet("logs"))
	o.Cluster.AddFlags(sets.FlagSet("misc"))
	addRefusedFlags(sets.FlagSet("misc"))
	addIgnoredFlags(sets.FlagSet("misc"))
	for _, f := range o.features {
		if f.AddFlags != nil {
			f.AddFlags(sets.FlagSet)
		}
	}
	o.flags = sets
	return sets
}

// addGenericFlags adds upstream's, without that which is refused.
func addGenericFlags(o *genericoptions.ServerRunOptions, fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("generic", pflag.ContinueOnError)
	o.AddUniversalFlags(all)
	all.VisitAll(func(flag *pflag.Flag) {
		if _, isRefused := refusedFlags()[flag.Name]; !isRefused {
			fs.AddFlag(flag)
		}
	})
}

func (o *Options) addElectionFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.Election.LeaseDuration, "coordinated-leadership-lease-duration", o.Election.LeaseDuration,
		"How long the server that coordinates leader elections stays the one without renewing its Lease.")
	fs.DurationVar(&o.Election.RenewDeadline, "coordinated-leadership-renew-deadline", o.Election.RenewDeadline,
		"How long it tries to renew that Lease before it gives up.")
	fs.DurationVar(&o.Election.RetryPeriod, "coordinated-leadership-retry-period", o.Election.RetryPeriod,
		"How long servers wait between two tries to take or renew that Lease.")
	o.Peers.AddFlags(fs)
}

// Validate returns one error for each invalid flag. Complete calls it.
func (o *Options) Validate() []error {
	errs := invalid(o.Store.Validate())
	for _, f := range o.features {
		if f.Validate != nil {
			errs = append(errs, f.Validate(o)...)
		}
	}
	errs = slices.Concat(errs, o.Serving.Validate(), o.Cluster.Validate(), o.Auth.Validate(), o.Admission.Validate(),
		o.Audit.Validate(), o.Generic.Validate(), o.Metrics.Validate())
	errs = slices.Concat(errs, o.Election.Validate(), o.Peers.Validate())
	errs.unless(!o.Features.EnablePriorityAndFairness ||
		o.Generic.MaxRequestsInFlight+o.Generic.MaxMutatingRequestsInFlight > 0,
		"--max-requests-inflight and --max-mutating-requests-inflight must add up to more than 0 when --enable-priority-and-fairness is true")
	errs.unless(utilfeature.DefaultFeatureGate.Enabled(features.DisableAllocatorDualWrite),
		"the feature gate %s must be on: cluster IPs are kept as IPAddresses only", features.DisableAllocatorDualWrite)
	errs.add(checkTracing(o.TracingFile))
	return errs
}

// GetFlagz implements flagz.Reader. It returns the flags that can be set, with their
// values.
func (o *Options) GetFlagz() map[string]string {
	all := flagz.NamedFlagSetsReader{FlagSets: o.flags}.GetFlagz()
	for name, value := range refusedFlags() {
		if value.kind == kindRefused {
			delete(all, name)
		}
	}
	return all
}

// delegateGroups are the API groups of the other servers of the delegation chain.
// --runtime-config may name them too.
var delegateGroups = []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}

// Completed are valid Options with everything that follows from the flags. Only
// Complete makes them. Nobody changes them afterwards.
type Completed struct {
	*Options
	// APIResources says which API groups, versions and resources are served.
	APIResources serverstorage.APIResourceConfigSource
	// ServiceIPRange is the range of the cluster IPs of Services.
	// SecondaryServiceIPRange is the range of the other IP family, or zero.
	ServiceIPRange, SecondaryServiceIPRange net.IPNet
	// ServiceIP is the cluster IP of the Service "kubernetes".
	ServiceIP net.IP
	// AdvertiseAddress is the address at which members of the cluster reach this
	// server.
	AdvertiseAddress net.IP
	// CertDir is the directory of the certificates that the server issues itself.
	CertDir string
}

// Complete validates all flags and sets what follows from them. It reads the files that
// the flags name, and touches nothing else outside the process. The error joins one
// error for each invalid flag.
func (o *Options) Complete() (Completed, error) {
	c := Completed{Options: o, CertDir: cmp.Or(o.Serving.CertDir, filepath.Join(o.Store.DataDir, "pki"))}
	files := pki.Paths(c.CertDir)
	o.Auth.Complete(auth.PKIFiles{
		ClientCA:           files.CACert,
		FrontProxyCA:       files.FrontProxyCA,
		FrontProxyUserName: pki.FrontProxyName,
		ServiceAccountKey:  files.ServiceAccountKey,
		ServiceAccountPub:  files.ServiceAccount,
	})
	if errs := o.Validate(); len(errs) > 0 {
		return Completed{}, errors.Join(errs...)
	}
	if errs := c.checkFiles(); len(errs) > 0 {
		return Completed{}, errors.Join(errs...)
	}
	o.Admission.NodeAuthorizer = o.Auth.Authorization.UsesMode(modes.ModeNode)
	if err := c.completeAddresses(); err != nil {
		return Completed{}, err
	}
	if err := c.completeResources(); err != nil {
		return Completed{}, err
	}
	return c, nil
}

func (c *Completed) completeAddresses() error {
	var err error
	if c.ServiceIPRange, c.SecondaryServiceIPRange, err = c.Cluster.serviceNets(); err != nil {
		return err
	}
	if c.ServiceIP, err = netutils.GetIndexedIP(&c.ServiceIPRange, 1); err != nil {
		return fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	c.AdvertiseAddress = c.advertised(netutils.IsIPv6CIDR(&c.ServiceIPRange))
	if address := c.EndpointAddress(); address != nil &&
		netutils.IsIPv6(address) != netutils.IsIPv6CIDR(&c.ServiceIPRange) {
		return fmt.Errorf(
			"--service-cluster-ip-range: %s is of another IP family than --advertise-address, %s, so that Pods would not reach the server: "+
				"name the family of the address first, or set --endpoint-reconciler-type=none", &c.ServiceIPRange, address)
	}
	if given := c.Generic.AdvertiseAddress; given == nil || given.IsUnspecified() || c.hasNoEndpoint() {
		return nil
	}
	if errs := validation.ValidateEndpointIP(c.AdvertiseAddress.String(), nil); len(errs) > 0 {
		return fmt.Errorf(
			"--advertise-address: %s can't be an endpoint of the Service kubernetes: it %s: give an address that Pods reach, or --endpoint-reconciler-type=none",
			c.AdvertiseAddress, errs[0].Detail)
	}
	return nil
}

// advertised returns the address that members of the cluster use: --advertise-address,
// otherwise --bind-address, otherwise the address of the default route. On a machine
// without a network it is the loopback address.
func (o *Options) advertised(ipv6 bool) net.IP {
	if ip := o.Generic.AdvertiseAddress; ip != nil && !ip.IsUnspecified() {
		return ip
	}
	if ip, err := utilnet.ResolveBindAddress(o.Serving.BindAddress); err == nil {
		return ip
	}
	if ipv6 {
		return net.IPv6loopback
	}
	return net.IPv4(127, 0, 0, 1)
}

func (c *Completed) completeResources() error {
	resources, err := registry.ParseRuntimeConfig(c.RuntimeConfig, delegateGroups...)
	if err != nil {
		return fmt.Errorf("--runtime-config: %w", err)
	}
	c.APIResources = resources
	if c.Generic.EmulationForwardCompatible {
		c.APIResources, err = resourceconfig.EmulationForwardCompatibleResourceConfig(resources, c.RuntimeConfig,
			legacyscheme.Scheme)
		if err != nil {
			return fmt.Errorf("--runtime-config: %w", err)
		}
	}
	if flows := flowcontrolv1.SchemeGroupVersion; c.Features.EnablePriorityAndFairness &&
		!c.APIResources.ResourceEnabled(flows.WithResource("flowschemas")) {
		return fmt.Errorf("--runtime-config turns off %s, which --enable-priority-and-fairness needs: turn that off too",
			flows)
	}
	return controllers.Validate(utilfeature.DefaultFeatureGate, c.APIResources)
}

// CertificateHosts are the names and addresses that the serving certificate must cover.
func (c *Completed) CertificateHosts() []string {
	hosts := []string{
		"localhost", "127.0.0.1", "::1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		c.ServiceIP.String(), c.AdvertiseAddress.String(),
	}
	if ip := c.Serving.BindAddress; !ip.IsUnspecified() {
		hosts = append(hosts, ip.String())
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		hosts = append(hosts, name)
	}
	if name := c.Generic.ExternalHost; name != "" {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		hosts = append(hosts, name)
	}
	return hosts
}

// LocalURL is the URL at which a client on this machine reaches the server at port.
func (c *Completed) LocalURL(port string) string {
	host := "127.0.0.1"
	if ip := c.Serving.BindAddress; !ip.IsUnspecified() {
		host = ip.String()
	} else if ip.To4() == nil && ip.Equal(net.IPv6unspecified) {
		host = "localhost"
	}
	return "https://" + net.JoinHostPort(host, port)
}

// ExternalAddress is the host and port by which clients find the server that listens on port, as upstream's
// Config.Complete sets it.
func (c *Completed) ExternalAddress(port string) string {
	host := cmp.Or(c.Generic.ExternalHost, c.AdvertiseAddress.String())
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, port)
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Completed) Kubeconfig() string {
	return filepath.Join(c.Store.DataDir, "admin.kubeconfig")
}

// EndpointAddress is this server's address in the endpoints of the Service
// "kubernetes", or nil if the server is not one of them. A loopback address is never
// one: the API refuses it, and a Pod that connects to it would reach itself.
func (c *Completed) EndpointAddress() net.IP {
	if c.hasNoEndpoint() || c.AdvertiseAddress.IsLoopback() {
		return nil
	}
	return c.AdvertiseAddress
}

func (c *Completed) hasNoEndpoint() bool {
	return reconcilers.Type(c.Cluster.EndpointReconciler) == reconcilers.NoneEndpointReconcilerType
}

// maxPatchCopy bounds the bytes that the copy operations of one JSON patch add up to;
// kube-apiserver's value.
const maxPatchCopy = 3 << 20

// Apply sets what upstream keeps process-wide: feature gates, logging, which
// metrics are shown, and whether containers may be privileged. A process calls it once,
// before Complete.
func (o *Options) Apply() error {
	if err := compatibility.DefaultComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	streams := &logsapi.LoggingOptions{ErrorStream: newLogStream(os.Stderr), InfoStream: os.Stdout}
	if err := logsapi.ValidateAndApplyWithOptions(o.Logs, streams, utilfeature.DefaultFeatureGate); err != nil {
		return err
	}
	utilfeature.DefaultMutableFeatureGate.AddMetrics()
	compatibility.DefaultComponentGlobalsRegistry.AddMetrics()
	// Upstream logs warnings about metrics options even if none is set.
	if !equality.Semantic.DeepEqual(o.Metrics, metrics.NewOptions()) {
		o.Metrics.Apply()
	}
	// Upstream's clients also count their requests in OpenTelemetry's metrics. Nothing
	// reads these here, and they would keep every client in memory for ever.
	otel.SetMeterProvider(noop.NewMeterProvider())
	// A JSON patch can copy within a document. Without a bound, a small patch of a
	// small object could make an object that exhausts the memory.
	atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, maxPatchCopy)
	capabilities.Setup(o.Cluster.AllowPrivileged, o.Cluster.MaxConnectionBytesPerSec)
	return nil
}

// invalid are the errors of flags, one for each that is wrong.
type invalid []error

// unless adds an error, unless what it is about holds.
func (i *invalid) unless(holds bool, format string, args ...any) {
	if !holds {
		*i = append(*i, fmt.Errorf(format, args...))
	}
}

// add adds an error, if there is one.
func (i *invalid) add(err error) {
	if err != nil {
		*i = append(*i, err)
	}
}

// AcceptDays makes a flag take what moment.ParseDuration reads. It changes only flags for durations, those
// of upstream's packages too.
func AcceptDays(flag *pflag.Flag) {
	if flag.Value.Type() == "duration" {
		flag.Value = withDays{flag.Value}
	}
}

type withDays struct{ pflag.Value }

// Unwrap returns the value that was there before.
func (d withDays) Unwrap() pflag.Value { return d.Value }

// Set implements pflag.Value.
func (d withDays) Set(text string) error {
	parsed, err := moment.ParseDuration(text)
	if err != nil {
		return err
	}
	return d.Value.Set(parsed.String())
}
