package server

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	netutils "k8s.io/utils/net"
)

// KubeAPIServer are Options for a command line that was written for kube-apiserver. They differ
// from those of byre serve as follows:
//
//   - The flags about etcd, and all other flags that byre serve refuses, are accepted.
//     Ignored names those that were given.
//   - No controllers run unless --controllers names them, because none run in
//     kube-apiserver.
//   - --cert-dir has kube-apiserver's meaning: it holds the serving certificate,
//     apiserver.crt, which is used if it exists and created otherwise.
//   - --endpoint-reconciler-type=master-count, which is deprecated, means lease.
type KubeAPIServer struct {
	*Options
	// EtcdServers are the URLs of --etcd-servers.
	EtcdServers []string
	// EtcdPrefix distinguishes the clusters that share an etcd.
	EtcdPrefix string

	ignored []*pflag.Flag
	// isMasterCount says that --endpoint-reconciler-type was master-count.
	isMasterCount bool
}

// NewKubeAPIServer returns the defaults.
func NewKubeAPIServer(more ...Feature) *KubeAPIServer {
	s := &KubeAPIServer{Options: NewOptions(more...), EtcdPrefix: "/registry"}
	s.Cluster.AllowPrivileged = false // as kube-apiserver
	return s
}

// Flags returns all flags of kube-apiserver and of byre serve in their sections.
func (s *KubeAPIServer) Flags() cliflag.NamedFlagSets {
	sets := s.Options.Flags()
	run := sets.FlagSet("controllers").Lookup("controllers")
	_ = run.Value.(pflag.SliceValue).Replace(nil) // it fails for no slice of strings
	run.DefValue = run.Value.String()
	misc := sets.FlagSet("misc")
	for name, value := range refusedFlags() {
		s.ignore(misc.Lookup(name), value.kind == "bool")
	}
	etcd := pflag.NewFlagSet("etcd", pflag.ContinueOnError)
	etcd.StringSliceVar(&s.EtcdServers, "etcd-servers", nil,
		"URLs of etcd. Where the etcd of \"byre envtest-assets\" answers, objects are kept in its data directory; any other etcd is not used.")
	etcd.StringVar(&s.EtcdPrefix, "etcd-prefix", s.EtcdPrefix,
		"Name of the database in the data directory of that etcd.")
	etcd.VisitAll(func(flag *pflag.Flag) { *misc.Lookup(flag.Name) = *flag })
	s.ignored = slices.DeleteFunc(s.ignored, func(flag *pflag.Flag) bool { return etcd.Lookup(flag.Name) != nil })
	return sets
}

// ignore makes a flag accept every value. A switch accepts no value, too.
func (s *KubeAPIServer) ignore(flag *pflag.Flag, isSwitch bool) {
	flag.Value, flag.DefValue, flag.NoOptDefVal = new(ignored), "", ""
	if isSwitch {
		flag.NoOptDefVal = "true"
	}
	s.ignored = append(s.ignored, flag)
}

// Ignored are the names of the flags that were given and change nothing, sorted.
func (s *KubeAPIServer) Ignored() []string {
	names := s.Options.Ignored()
	for _, flag := range s.ignored {
		if flag.Changed {
			names = append(names, "--"+flag.Name)
		}
	}
	if s.isMasterCount {
		names = append(names, "--endpoint-reconciler-type")
	}
	slices.Sort(names)
	return names
}

// ChoosesDatabase reports whether one of byre's own flags says where objects are
// stored.
func (s *KubeAPIServer) ChoosesDatabase() bool {
	fs := s.flags.FlagSet("store")
	return fs.Changed("endpoint") || fs.Changed("data-dir")
}

// Adapt gives flags their meaning in kube-apiserver. It is called before Complete.
//
// It takes --endpoint-reconciler-type=master-count as lease: both make this server an endpoint of
// the Service kubernetes, and master-count's --apiserver-count is not needed, because lease learns
// from the Leases which servers are gone.
func (s *KubeAPIServer) Adapt() error {
	if reconcilers.Type(s.Cluster.EndpointReconciler) == reconcilers.MasterCountReconcilerType {
		s.Cluster.EndpointReconciler, s.isMasterCount = string(reconcilers.LeaseEndpointReconcilerType), true
	}
	return s.completeCertificates()
}

// completeCertificates gives --cert-dir its meaning in kube-apiserver. The pair
// apiserver.crt and apiserver.key in it is the serving certificate, unless
// --tls-cert-file names another one. If the files do not exist, a self-signed pair is
// written there.
func (s *KubeAPIServer) completeCertificates() error {
	serving := &s.Serving
	dir := serving.CertDir
	serving.CertDir = ""
	if dir == "" || serving.CertFile != "" || serving.KeyFile != "" {
		return nil
	}
	primary, _, err := s.Cluster.serviceNets()
	if err != nil {
		return err
	}
	first, err := netutils.GetIndexedIP(&primary, 1)
	if err != nil {
		return fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	upstream := genericoptions.NewSecureServingOptions()
	upstream.BindAddress = serving.BindAddress
	upstream.ServerCert.CertDirectory, upstream.ServerCert.PairName = dir, "apiserver"
	// These names are those that kube-apiserver passes, in completeOptions of
	// k8s.io/kubernetes/pkg/controlplane/apiserver/server.
	err = upstream.MaybeDefaultWithSelfSignedCerts(
		s.advertised(netutils.IsIPv6CIDR(&primary)).String(),
		[]string{"kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost"},
		[]net.IP{first, net.IPv4(127, 0, 0, 1)},
	)
	if err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	serving.CertFile = filepath.Join(dir, "apiserver.crt")
	serving.KeyFile = filepath.Join(dir, "apiserver.key")
	return nil
}

// ignored is the value of a flag that has no effect.
type ignored struct{ value string }

func (i *ignored) String() string         { return i.value }
func (*ignored) Type() string             { return "string" }
func (i *ignored) Set(value string) error { i.value = value; return nil }

// refusedFlags are kube-apiserver's flags that have no meaning here, with what to use instead, and
// those that can only have their default, which describes what this server does. They are refused
// and not ignored, because whoever sets one expects an effect.
func refusedFlags() map[string]refused {
	const (
		endpoint = "objects are kept in SQLite or PostgreSQL: use --endpoint"
		tls      = "there is no etcd to connect to: put TLS settings for PostgreSQL into --endpoint (sslmode, sslrootcert, sslcert, sslkey)"
	)
	return map[string]refused{
		"etcd-servers":           {kindRefused, "", endpoint},
		"etcd-servers-overrides": {kindRefused, "", "all resources are kept in one database: use --endpoint"},
		"etcd-prefix": {kindRefused, "",
			"a database holds one cluster: give each cluster a database of its own with --endpoint"},
		"etcd-cafile":                   {kindRefused, "", tls},
		"etcd-certfile":                 {kindRefused, "", tls},
		"etcd-keyfile":                  {kindRefused, "", tls},
		"etcd-compaction-interval":      {kindRefused, "", "history is kept by age: use --retention"},
		"etcd-count-metric-poll-period": {kindRefused, "", "objects are counted as they change: leave the flag out"},
		"etcd-db-metric-poll-interval": {kindRefused, "",
			"the database's size is on /metrics whenever it is asked for: leave the flag out"},
		"etcd-healthcheck-timeout": {kindRefused, "",
			"the store's check has a fixed timeout of two seconds: leave the flag out"},
		"etcd-readycheck-timeout": {kindRefused, "",
			"the store's check has a fixed timeout of two seconds: leave the flag out"},
		"storage-backend":    {kindRefused, "", endpoint},
		"storage-media-type": {kindRefused, "", "objects are stored as JSON: leave the flag out"},
		"storage-initialization-timeout": {kindRefused, "",
			"a start without the database fails at once, to be tried again by what runs this program: leave the flag out"},
		"lease-reuse-duration-seconds": {kindRefused, "", "each object has an expiry of its own: leave the flag out"},
		"peer-ca-file": {kindRefused, "",
			"every replica serves all there is in the database, so none sends requests on to another: leave the flag out"},
		"apiserver-count": {"int", "1", "replicas find one another in the database: leave the flag out"},
		"enable-logs-handler": {"bool", "false",
			"the log goes to standard error, there are no files to serve: leave the flag out"},
	}
}

// refused is the value of a flag that can be set to one value only, or if it is of kindRefused, to none.
type refused struct{ kind, value, reason string }

const kindRefused = "refused"

func (r refused) String() string { return r.value }
func (r refused) Type() string   { return r.kind }

func (r refused) Set(value string) error {
	if given, err := strconv.ParseBool(value); err == nil && r.kind == "bool" {
		value = strconv.FormatBool(given)
	}
	if value != r.value || r.kind == kindRefused {
		return &RefusedFlagError{r.reason}
	}
	return nil
}

// RefusedFlagError says why a flag of kube-apiserver can't be used here.
type RefusedFlagError struct{ reason string }

// Error implements error.
func (e *RefusedFlagError) Error() string { return e.reason }

func addRefusedFlags(fs *pflag.FlagSet) {
	for name, value := range refusedFlags() {
		usage, without := "Can only be "+value.value+": "+value.reason, ""
		switch value.kind {
		case kindRefused:
			usage, without = value.reason, "set" // it is refused even if no value follows
		case "bool":
			without = "true"
		}
		fs.Var(value, name, usage)
		flag := fs.Lookup(name)
		flag.Hidden, flag.NoOptDefVal = true, without
	}
}

// addIgnoredFlags adds kube-apiserver's flags of the watch cache. They are accepted, because no
// value of theirs changes an answer, and change nothing.
func addIgnoredFlags(fs *pflag.FlagSet) {
	const usage = "Changes nothing: there is no separate watch cache to tune."
	fs.Bool("watch-cache", true, usage)
	fs.StringSlice("watch-cache-sizes", nil, usage)
	fs.Int("default-watch-cache-size", 100, usage)
	for _, name := range ignoredFlags() {
		fs.Lookup(name).Hidden = true
	}
}

func ignoredFlags() []string {
	return []string{"default-watch-cache-size", "watch-cache", "watch-cache-sizes"}
}

// Ignored are the names of the flags that were given and change nothing, sorted.
func (o *Options) Ignored() []string {
	var names []string
	for _, name := range ignoredFlags() {
		if o.flags.FlagSet("misc").Changed(name) {
			names = append(names, "--"+name)
		}
	}
	return names
}
