package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	netutils "k8s.io/utils/net"

	"byre/apiserver/auth"
	"byre/apiserver/builtin"
	"byre/apiserver/controllers"
	"byre/apiserver/controlplane"
	"byre/apiserver/delegation"
	"byre/apiserver/pki"
	"byre/sqlstore"
)

// Database is an open database.
type Database struct {
	Driver sqlstore.Driver
	// Name is the file or the server, without secrets, and Schema the version of
	// its tables, for the log.
	Name   string
	Schema int
	// Shared says that other processes may write to it too.
	Shared bool
}

// OpenDatabase brings the database of the options to the program's schema and
// opens it.
type OpenDatabase func(context.Context, StoreOptions) (Database, error)

// delegateGroups are the API groups of the other servers of the delegation chain, which
// --runtime-config may name too.
var delegateGroups = []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}

// Config is what New needs, checked.
type Config struct {
	Options *Options
	// Open opens the database.
	Open OpenDatabase
	// Aggregator delegates to this server, and this server delegates to
	// CustomResources; nil for none.
	Aggregator, CustomResources delegation.NewServer
}

// CompletedConfig is a Config with everything that follows from the flags. It
// can only be made by Complete.
type CompletedConfig struct{ *completed }

type completed struct {
	Config
	controllers        []string
	resources          serverstorage.APIResourceConfigSource
	primary, secondary net.IPNet
	// serviceIP is the cluster IP of the Service "kubernetes".
	serviceIP net.IP
	// advertise is where members of the cluster find this server.
	advertise net.IP
	certDir   string
}

// Complete derives what the flags imply and checks everything. It touches
// nothing outside the process; every wrong flag is one of the joined errors.
func (c Config) Complete() (CompletedConfig, error) {
	if c.Options == nil || c.Open == nil {
		return CompletedConfig{}, errors.New("apiserver: Options and Open are required")
	}
	o := c.Options
	done := &completed{Config: c, certDir: o.Serving.CertDir}
	if done.certDir == "" {
		done.certDir = filepath.Join(o.Store.DataDir, "pki")
	}
	files := pki.Paths(done.certDir)
	o.Auth.Complete(auth.PKIFiles{
		ClientCA:           files.CACert,
		FrontProxyCA:       files.FrontProxyCA,
		FrontProxyUserName: pki.FrontProxyName,
		ServiceAccountKey:  files.ServiceAccountKey,
		ServiceAccountPub:  files.ServiceAccount,
	})
	if errs := o.Validate(); len(errs) > 0 {
		return CompletedConfig{}, errors.Join(errs...)
	}
	o.Admission.NodeAuthorizer = o.Auth.Authorization.UsesMode(modes.ModeNode)
	var err error
	if done.controllers, err = controllers.Select(o.Controllers); err != nil {
		return CompletedConfig{}, err
	}
	if !o.Store.GarbageCollection {
		done.controllers = slices.DeleteFunc(done.controllers, func(name string) bool { return name == names.GarbageCollectorController })
	}
	if done.primary, done.secondary, err = o.Cluster.serviceNets(); err != nil {
		return CompletedConfig{}, err
	}
	if done.serviceIP, err = netutils.GetIndexedIP(&done.primary, 1); err != nil {
		return CompletedConfig{}, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	done.advertise = o.Serving.advertised(netutils.IsIPv6CIDR(&done.primary))
	resources, err := builtin.ParseRuntimeConfig(o.RuntimeConfig, delegateGroups...)
	if err != nil {
		return CompletedConfig{}, fmt.Errorf("--runtime-config: %w", err)
	}
	done.resources = resources
	if o.Emulation.ForwardCompatible {
		done.resources, err = resourceconfig.EmulationForwardCompatibleResourceConfig(resources, o.RuntimeConfig, legacyscheme.Scheme)
		if err != nil {
			return CompletedConfig{}, fmt.Errorf("--runtime-config: %w", err)
		}
	}
	if err := controlplane.Validate(utilfeature.DefaultFeatureGate, done.resources); err != nil {
		return CompletedConfig{}, err
	}
	return CompletedConfig{done}, nil
}

// advertised picks the address that members of the cluster are told: the one
// given, the one bound, or else that of the default route. A machine without a
// network still serves its own loopback address.
func (o *ServingOptions) advertised(ipv6 bool) net.IP {
	if o.AdvertiseAddress != nil && !o.AdvertiseAddress.IsUnspecified() {
		return o.AdvertiseAddress
	}
	if ip, err := utilnet.ResolveBindAddress(o.BindAddress); err == nil {
		return ip
	}
	if ipv6 {
		return net.IPv6loopback
	}
	return net.IPv4(127, 0, 0, 1)
}

// hosts are the names and addresses that the serving certificate must cover.
func (c *completed) hosts() []string {
	hosts := []string{
		"localhost", "127.0.0.1", "::1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		c.serviceIP.String(), c.advertise.String(),
	}
	if ip := c.Options.Serving.BindAddress; !ip.IsUnspecified() {
		hosts = append(hosts, ip.String())
	}
	if name := c.Options.Serving.ExternalHostname; name != "" {
		hosts = append(hosts, name)
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		hosts = append(hosts, name)
	}
	return hosts
}

// localURL is where a client on this machine reaches the server at port.
func (c *completed) localURL(port string) string {
	host := "127.0.0.1"
	if ip := c.Options.Serving.BindAddress; !ip.IsUnspecified() {
		host = ip.String()
	} else if ip.To4() == nil && c.Options.Serving.BindAddress.Equal(net.IPv6unspecified) {
		host = "localhost"
	}
	return "https://" + net.JoinHostPort(host, port)
}

// kubeconfig is the path of the administrator's kubeconfig.
func (c *completed) kubeconfig() string {
	return filepath.Join(c.Options.Store.DataDir, "admin.kubeconfig")
}

// endpoint is the address that the Service "kubernetes" leads to. A loopback
// address is not one: the API refuses it, and it would lead a Pod to itself.
func (c *completed) endpoint() net.IP {
	none := reconcilers.Type(c.Options.Cluster.EndpointReconciler) == reconcilers.NoneEndpointReconcilerType
	if none || c.advertise.IsLoopback() {
		return nil
	}
	return c.advertise
}
