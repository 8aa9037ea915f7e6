package server

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"

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
func NewKubeAPIServer() *KubeAPIServer {
	s := &KubeAPIServer{Options: NewOptions(), EtcdPrefix: "/registry"}
	s.Controllers = []string{}
	s.Cluster.AllowPrivileged = false // as kube-apiserver
	return s
}

// Flags returns all flags of kube-apiserver and of byre serve in their sections.
func (s *KubeAPIServer) Flags() cliflag.NamedFlagSets {
	sets := s.Options.Flags()
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
