package server

import (
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/server/flagz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // makes --logging-format=json known
	"k8s.io/component-base/metrics"
	"k8s.io/kubernetes/pkg/features"

	"byre/apiserver/access/admission"

	"byre/apiserver/access/auth"
	"byre/apiserver/controllers"

	"byre/apiserver/process"
)

// Options are the flags of the server, grouped as in kube-apiserver's --help. They are
// plain data. Flags that kube-apiserver has too keep their name, form and meaning.
type Options struct {
	Store     StoreOptions
	SQL       SQLOptions
	Backup    BackupOptions
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
	// Controllers is the list of --controllers as it was given; Completed has the
	// names.
	Controllers                          []string
	WithControllerManager, WithScheduler bool
	Peers                                PeerOptions
	Election                             controllers.LeaderElectionTimers
	Console                              bool
	TracingFile                          string

	// flags is the last result of Flags, for /flagz.
	flags cliflag.NamedFlagSets
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Store:         NewStoreOptions(),
		SQL:           NewSQLOptions(),
		Backup:        BackupOptions{Keep: 7},
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
		Controllers:   []string{"*"},
		Election:      controllers.DefaultLeaderElectionTimers(),
	}
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
	o.SQL.AddFlags(sets.FlagSet("store"))
	o.Backup.AddFlags(sets.FlagSet("store"))
	addGenericFlags(o.Generic, sets.FlagSet("generic"))
	o.Serving.AddFlags(sets.FlagSet("secure serving"))
	o.Auth.Authentication.AddFlags(sets.FlagSet("authentication"))
	o.Auth.Authorization.AddFlags(sets.FlagSet("authorization"))
	o.Admission.AddFlags(sets.FlagSet("admission"))
	o.Audit.AddFlags(sets.FlagSet("auditing"))
	sets.FlagSet("API enablement").Var(&o.RuntimeConfig, "runtime-config",
		"Key=value pairs that turn built-in APIs on or off: <group>/<version>=true|false, v1=..., api/all=..., api/ga=..., api/beta=..., api/alpha=...")
	o.Features.AddFlags(sets.FlagSet("features"))
	sets.FlagSet("features").BoolVar(&o.Console, "console", o.Console,
		"Serve web pages at /console/ that show what a user may list. \"byre console\" opens them.")
	o.addControllerFlags(sets.FlagSet("controllers"))
	o.Metrics.AddFlags(sets.FlagSet("metrics"))
	sets.FlagSet("traces").StringVar(&o.TracingFile, "tracing-config-file", o.TracingFile,
		"File with a TracingConfiguration: the OpenTelemetry collector to send spans to, and of how many requests. A request's trace goes on in webhooks, aggregated servers and the database's statements.")
	logsapi.AddFlags(o.Logs, sets.FlagSet("logs"))
	o.Cluster.AddFlags(sets.FlagSet("misc"))
	addRefusedFlags(sets.FlagSet("misc"))
	addIgnoredFlags(sets.FlagSet("misc"))
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

func (o *Options) addControllerFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Controllers, "controllers", o.Controllers,
		"Controllers to run in this process: '*' is all that are on by default, 'foo' is the one of that name, '-foo' leaves it out; empty runs none, for clusters with a kube-controller-manager. All controllers: "+strings.Join(controllers.Names(), ", ")+".")
	fs.BoolVar(&o.WithControllerManager, "with-controller-manager", o.WithControllerManager,
		"Run all controllers that kube-controller-manager runs by default in this process: '*' in --controllers means them too. They pause while a kube-controller-manager holds its Lease.")
	fs.BoolVar(&o.WithScheduler, "with-scheduler", o.WithScheduler,
		"Run kube-scheduler's scheduler in this process. It pauses while a kube-scheduler holds its Lease.")
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
	errs := invalid(slices.Concat(o.Store.Validate(), o.SQL.Validate(), o.Backup.Validate()))
	errs.unless(len(o.Backup.Recipients) == 0 || o.Backup.Schedule != "" || len(o.Store.ReplicateTo) > 0,
		"--age-recipient needs --backup-schedule or --replicate-to, beside whose copies the keys are")
	errs.add(o.SQL.checkSchema(&o.Store))
	errs = append(errs, o.checkReadOnly()...)
	errs = slices.Concat(errs, o.Serving.Validate(), o.Cluster.Validate(), o.Auth.Validate(), o.Admission.Validate(),
		o.Audit.Validate(), o.Generic.Validate(), o.Metrics.Validate())
	_, err := controllers.Select(o.Controllers, o.WithControllerManager)
	errs.unless(err == nil, "--controllers: %w", err)
	errs = slices.Concat(errs, o.Election.Validate(), o.Peers.Validate())
	errs.unless(!o.Features.EnablePriorityAndFairness || o.Generic.MaxRequestsInFlight+o.Generic.MaxMutatingRequestsInFlight > 0,
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
