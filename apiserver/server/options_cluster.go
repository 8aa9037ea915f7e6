package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/egressselector"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	netutils "k8s.io/utils/net"

	"byre/apiserver/process/pki"
	"byre/apiserver/registry"
)

// ClusterOptions are the settings that objects of the cluster depend on. The usage of each flag
// says what its field means.
type ClusterOptions struct {
	ServiceIPRanges string
	NodePortRange   utilnet.PortRange
	ServiceNodePort int
	// EndpointReconciler is reconcilers.LeaseEndpointReconcilerType or NoneEndpointReconcilerType.
	EndpointReconciler                string
	EventTTL                          time.Duration
	AllowPrivileged                   bool
	MaxConnectionBytesPerSec          int64
	ProxyCertFile, ProxyKeyFile       string
	RouteToEndpoints, RejectRedirects bool
	Kubelet                           *kubeletclient.KubeletClientConfig
	EgressSelectorFile                string
}

// NewClusterOptions returns the defaults.
func NewClusterOptions() ClusterOptions {
	return ClusterOptions{
		NodePortRange:      registry.DefaultNodePortRange(),
		EndpointReconciler: string(reconcilers.LeaseEndpointReconcilerType),
		EventTTL:           time.Hour,
		AllowPrivileged:    true, // network and storage plugins need it; kubeadm, k3s and kind set it
		// A server that is not on a node of the cluster cannot reach cluster IPs.
		RouteToEndpoints: true,
		RejectRedirects:  true,
		Kubelet:          registry.DefaultKubelet(),
	}
}

// AddFlags adds the flags.
func (o *ClusterOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ServiceIPRanges, "service-cluster-ip-range", o.ServiceIPRanges,
		"CIDR from which services get their cluster IPs, or two of different IP families, comma-separated. If not set, 10.0.0.0/24.")
	fs.Var(&o.NodePortRange, "service-node-port-range",
		"Ports from which services get their node ports, such as '30000-32767', both ends included.")
	fs.IntVar(&o.ServiceNodePort, "kubernetes-service-node-port", o.ServiceNodePort,
		"Node port of the service 'kubernetes' if this server makes it; with 0 it has a cluster IP only.")
	fs.StringVar(&o.EndpointReconciler, "endpoint-reconciler-type", o.EndpointReconciler,
		"How this server becomes an endpoint of the service 'kubernetes': 'lease', by an entry in the database that it renews, or 'none'.")
	fs.DurationVar(&o.EventTTL, "event-ttl", o.EventTTL,
		"How long events are kept.")
	fs.BoolVar(&o.AllowPrivileged, "allow-privileged", o.AllowPrivileged,
		"Allow privileged containers. Who may run them is for Pod Security admission to say.")
	fs.Int64Var(&o.MaxConnectionBytesPerSec, "max-connection-bytes-per-sec", o.MaxConnectionBytesPerSec,
		"Throttle each long-running connection of a user to this many bytes a second; 0 doesn't.")
	fs.StringVar(&o.ProxyCertFile, "proxy-client-cert-file", o.ProxyCertFile,
		"Client certificate by which this server shows itself to aggregated servers and webhooks. If not set, the server's own.")
	fs.StringVar(&o.ProxyKeyFile, "proxy-client-key-file", o.ProxyKeyFile,
		"Private key of --proxy-client-cert-file.")
	fs.BoolVar(&o.RouteToEndpoints, "enable-aggregator-routing", o.RouteToEndpoints,
		"Send requests to the endpoints of the service of an aggregated server or a webhook where there are any, rather than to its cluster IP.")
	fs.BoolVar(&o.RejectRedirects, "aggregator-reject-forwarding-redirect", o.RejectRedirects,
		"Answer redirects of aggregated servers by an error instead of passing them on to clients.")
	fs.StringVar(&o.EgressSelectorFile, "egress-selector-config-file", o.EgressSelectorFile,
		"File with an EgressSelectorConfiguration: the proxies through which this server connects to nodes, pods and services (cluster), and to webhooks by URL, issuers and trace collectors (controlplane). The database is always connected to directly.")
	o.addKubeletFlags(fs)
}

func (o *ClusterOptions) addKubeletFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Kubelet.PreferredAddressTypes, "kubelet-preferred-address-types", o.Kubelet.PreferredAddressTypes,
		"Types of node addresses to reach kubelets at, the preferred first.")
	fs.UintVar(&o.Kubelet.Port, "kubelet-port", o.Kubelet.Port,
		"Port of kubelets that don't say theirs in their node's status.")
	fs.UintVar(&o.Kubelet.ReadOnlyPort, "kubelet-read-only-port", o.Kubelet.ReadOnlyPort,
		"Read-only port of kubelets; nothing asks for it any more.")
	for _, name := range []string{"kubelet-port", "kubelet-read-only-port"} {
		// MarkDeprecated fails only for a flag that does not exist.
		_ = fs.MarkDeprecated(name, name+" is deprecated and will be removed.")
	}
	fs.DurationVar(&o.Kubelet.HTTPTimeout, "kubelet-timeout", o.Kubelet.HTTPTimeout,
		"Timeout of requests to kubelets.")
	fs.StringVar(&o.Kubelet.TLSClientConfig.CertFile, "kubelet-client-certificate", o.Kubelet.TLSClientConfig.CertFile,
		"Client certificate shown to kubelets. If not set, the server's own.")
	fs.StringVar(&o.Kubelet.TLSClientConfig.KeyFile, "kubelet-client-key", o.Kubelet.TLSClientConfig.KeyFile,
		"Private key of --kubelet-client-certificate.")
	fs.StringVar(&o.Kubelet.TLSClientConfig.CAFile, "kubelet-certificate-authority", o.Kubelet.TLSClientConfig.CAFile,
		"File with the CA that kubelets' serving certificates are checked against. If not set, they are not checked.")
}

// serviceNets parses ServiceIPRanges. secondary is zero if there is only one range.
func (o *ClusterOptions) serviceNets() (primary, secondary net.IPNet, err error) {
	if o.ServiceIPRanges == "" {
		return registry.DefaultClusterIPRange(), net.IPNet{}, nil
	}
	parts := strings.Split(o.ServiceIPRanges, ",")
	if len(parts) > 2 {
		return primary, secondary, errors.New("--service-cluster-ip-range must not have more than two CIDRs")
	}
	var nets []*net.IPNet
	for _, part := range parts {
		_, parsed, err := netutils.ParseCIDRSloppy(strings.TrimSpace(part))
		if err != nil {
			return primary, secondary, fmt.Errorf("--service-cluster-ip-range: %q is not a CIDR", part)
		}
		if netutils.RangeSize(parsed) < minServiceIPs {
			return primary, secondary,
				fmt.Errorf("--service-cluster-ip-range: %s has fewer than %d addresses", part, minServiceIPs)
		}
		if ones, bits := parsed.Mask.Size(); bits-ones > 64 {
			// kube-apiserver starts with it, and ipallocator.NewIPAllocator refuses it.
			return primary, secondary,
				fmt.Errorf("--service-cluster-ip-range: %s is too large: an IPv6 CIDR must be /64 or longer", part)
		}
		nets = append(nets, parsed)
	}
	if len(nets) == 1 {
		return *nets[0], net.IPNet{}, nil
	}
	if netutils.IsIPv6CIDR(nets[0]) == netutils.IsIPv6CIDR(nets[1]) {
		return primary, secondary, errors.New("--service-cluster-ip-range: two CIDRs must be of different IP families")
	}
	return *nets[0], *nets[1], nil
}

// minServiceIPs is kube-apiserver's lower bound.
const minServiceIPs = 8

// Validate returns one error for each invalid flag.
func (o *ClusterOptions) Validate() []error {
	var errs invalid
	_, _, err := o.serviceNets()
	errs.add(err)
	errs.unless(o.NodePortRange.Size > 0, "--service-node-port-range must not be empty")
	if port := o.ServiceNodePort; port < 0 || port > 65535 {
		errs.add(fmt.Errorf("--kubernetes-service-node-port must be between 0 and 65535, not %d", port))
	} else {
		errs.unless(port == 0 || o.NodePortRange.Contains(port),
			"--kubernetes-service-node-port: %d is not in --service-node-port-range, %s", port, o.NodePortRange.String())
	}
	switch reconcilers.Type(o.EndpointReconciler) {
	case reconcilers.LeaseEndpointReconcilerType, reconcilers.NoneEndpointReconcilerType:
	case reconcilers.MasterCountReconcilerType:
		errs.add(errors.New("--endpoint-reconciler-type: master-count can't tell which servers are up: use lease"))
	default:
		errs.add(fmt.Errorf("--endpoint-reconciler-type: %q is neither lease nor none", o.EndpointReconciler))
	}
	errs.unless((o.ProxyCertFile == "") == (o.ProxyKeyFile == ""),
		"--proxy-client-cert-file and --proxy-client-key-file must be given together")
	_, err = ReadEgressSelector(o.EgressSelectorFile)
	errs.add(err)
	errs.unless(o.EventTTL > 0, "--event-ttl must be positive")
	return errs
}

// PeerOptions are the address at which other servers of the control plane reach this
// one. It counts only if both fields are set; otherwise it is --advertise-address and
// --secure-port.
type PeerOptions struct{ IP, Port string }

// AddFlags adds the flags.
func (o *PeerOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.IP, "peer-advertise-ip", o.IP,
		"IP address by which other servers of the control plane reach this one, as its identity Lease tells them. Counts together with --peer-advertise-port. If not set, --advertise-address.")
	fs.StringVar(&o.Port, "peer-advertise-port", o.Port,
		"Port by which other servers of the control plane reach this one, as its identity Lease tells them. Counts together with --peer-advertise-ip. If not set, --secure-port.")
}

// Validate returns one error for each invalid flag.
func (o *PeerOptions) Validate() []error {
	var errs invalid
	gate := features.UnknownVersionInteroperabilityProxy
	isOn := utilfeature.DefaultFeatureGate.Enabled(gate)
	errs.unless(o.IP == "" || isOn, "--peer-advertise-ip needs the feature gate %s", gate)
	errs.unless(o.Port == "" || isOn, "--peer-advertise-port needs the feature gate %s", gate)
	errs.unless(o.IP == "" || netutils.ParseIPSloppy(o.IP) != nil, "--peer-advertise-ip: %q is not an IP address", o.IP)
	port, err := strconv.ParseUint(o.Port, 10, 16)
	errs.unless(o.Port == "" || err == nil && port != 0, "--peer-advertise-port: %q is not a port", o.Port)
	return errs
}

// Address returns the address for the identity Lease of this server, which listens on
// port.
func (o *PeerOptions) Address(advertise net.IP, port string) string {
	if o.IP != "" && o.Port != "" {
		return net.JoinHostPort(o.IP, o.Port)
	}
	return net.JoinHostPort(advertise.String(), port)
}

// ReadEgressSelector reads --egress-selector-config-file. Without a file it returns
// nil.
func ReadEgressSelector(file string) (*egressselector.EgressSelector, error) {
	if file == "" {
		return nil, nil
	}
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file %s: %w", file, err)
	}
	if errs := egressselector.ValidateEgressSelectorConfiguration(config); len(errs) > 0 {
		return nil, fmt.Errorf("--egress-selector-config-file %s: %w", file, errs.ToAggregate())
	}
	for _, selection := range config.EgressSelections {
		// Upstream's validation accepts this, but its constructor dereferences the nil
		// pointer.
		if t := selection.Connection.Transport; t != nil && t.TCP != nil && t.TCP.TLSConfig == nil {
			return nil,
				fmt.Errorf("--egress-selector-config-file %s: %s: a proxy by TCP needs a tlsConfig; without TLS use uds", file,
					selection.Name)
		}
	}
	selector, err := egressselector.NewEgressSelector(config)
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file %s: %w", file, err)
	}
	return selector, nil
}

// checkTracing checks --tracing-config-file.
func checkTracing(file string) error {
	if file == "" {
		return nil
	}
	config, err := genericoptions.ReadTracingConfiguration(file)
	if err == nil {
		err = tracingapi.ValidateTracingConfiguration(config, utilfeature.DefaultFeatureGate, nil).ToAggregate()
	}
	if err != nil {
		return fmt.Errorf("--tracing-config-file %s: %w", file, err)
	}
	return nil
}

// namedFile is a file that a flag names. read fails if it can't be used.
type namedFile struct {
	flag, path string
	read       func(path string) error
}

// without makes the read of a namedFile from a function that returns the content too.
func without[T any](read func(path string) (T, error)) func(path string) error {
	return func(path string) error {
		_, err := read(path)
		return err
	}
}

// checkFiles reads the files that flags name, so that a wrong one is found before the server
// writes anything. Validate has read those that it needs itself; the assembly reads
// --encryption-provider-config first, because that opens connections. It returns one error for
// each file.
func (c *Completed) checkFiles() []error {
	var errs []error
	for _, f := range append(c.namedFiles(), c.namedPairs()...) {
		if f.path == "" || c.willMake(f.path) {
			continue
		}
		if err := f.read(f.path); err != nil {
			if !strings.Contains(err.Error(), f.path) { // some of upstream's errors name the file
				err = fmt.Errorf("%s: %w", f.path, err)
			}
			errs = append(errs, fmt.Errorf("--%s: %w", f.flag, err))
		}
	}
	return errs
}

func (c *Completed) namedFiles() []namedFile {
	certs, kubeconfig := without(certutil.CertsFromFile), func(path string) error {
		_, err := webhook.LoadKubeconfig(path, nil)
		return err
	}
	authentication := func(path string) error {
		_, err := (&kubeoptions.BuiltInAuthenticationOptions{AuthenticationConfigFile: path}).ToAuthenticationConfig()
		return err
	}
	a := c.Auth.Authentication
	files := []namedFile{
		{"root-ca-file", c.Serving.RootCAFile, c.readRootCA},
		{"client-ca-file", a.ClientCert.ClientCA, certs},
		{"requestheader-client-ca-file", a.RequestHeader.ClientCAFile, certs},
		{"oidc-ca-file", a.OIDC.CAFile, certs},
		{"kubelet-certificate-authority", c.Cluster.Kubelet.TLSClientConfig.CAFile, certs},
		{"service-account-signing-key-file", a.SigningKeyFile, without(keyutil.PrivateKeyFromFile)},
		{"token-auth-file", a.TokenFile.TokenFile, without(tokenfile.NewCSV)},
		{"authentication-config", a.AuthenticationConfigFile, authentication},
		{"authentication-token-webhook-config-file", a.WebHook.ConfigFile, kubeconfig},
		{"authorization-policy-file", c.Auth.Authorization.PolicyFile, without(abac.NewFromFile)},
		{"authorization-webhook-config-file", c.Auth.Authorization.WebhookConfigFile, kubeconfig},
		{"audit-policy-file", c.Audit.PolicyFile, without(policy.LoadPolicyFromFile)},
		{"audit-webhook-config-file", c.Audit.WebhookOptions.ConfigFile, kubeconfig},
		{"admission-control-config-file", c.Admission.GenericAdmission.ConfigFile, func(string) error {
			return c.Admission.CheckConfiguration()
		}},
	}
	for _, path := range a.ServiceAccounts.KeyFiles {
		files = append(files, namedFile{"service-account-key-file", path, without(keyutil.PublicKeysFromFile)})
	}
	return files
}

// namedPairs are the certificates with their keys. A key without a certificate has been refused.
func (c *Completed) namedPairs() []namedFile {
	pair := func(flag, cert, key string) namedFile {
		return namedFile{flag, cert, func(string) error {
			if c.willMake(key) {
				return nil
			}
			_, err := tls.LoadX509KeyPair(cert, key)
			return err
		}}
	}
	kubelet := c.Cluster.Kubelet.TLSClientConfig
	pairs := []namedFile{
		pair("tls-cert-file and --tls-private-key-file", c.Serving.CertFile, c.Serving.KeyFile),
		pair("proxy-client-cert-file and --proxy-client-key-file", c.Cluster.ProxyCertFile, c.Cluster.ProxyKeyFile),
		pair("kubelet-client-certificate and --kubelet-client-key", kubelet.CertFile, kubelet.KeyFile),
	}
	for _, named := range c.Serving.SNICertKeys {
		pairs = append(pairs, pair("tls-sni-cert-key", named.CertFile, named.KeyFile))
	}
	return pairs
}

// readRootCA checks too that the CA verifies the certificate that is served, where a flag names
// it. A certificate that has expired, or is not valid yet, is served all the same: pki.Report.Unverified
// tells of it.
func (c *Completed) readRootCA(path string) error {
	if c.Serving.CertFile == "" {
		_, err := certutil.CertsFromFile(path)
		return err
	}
	err := pki.VerifyServing(c.Serving.CertFile, path, time.Now())
	if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return pki.VerifyServing(c.Serving.CertFile, path, invalid.Cert.NotAfter)
	}
	return err
}

// willMake reports whether the server may make the file, which a flag may name too.
func (c *Completed) willMake(path string) bool {
	_, err := os.Stat(path)
	return err != nil && filepath.Dir(path) == filepath.Clean(c.CertDir)
}
