package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	netutils "k8s.io/utils/net"

	"byre/apiserver/access/auth"
	"byre/apiserver/controllers"

	"byre/apiserver/process/pki"
	"byre/apiserver/registry"
)

// delegateGroups are the API groups of the other servers of the delegation chain.
// --runtime-config may name them too.
var delegateGroups = []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}

// Completed are valid Options with everything that follows from the flags. Only
// Complete makes them. Nobody changes them afterwards.
type Completed struct {
	*Options
	// EnabledControllers are the names of the controllers to run.
	EnabledControllers []string
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
	if o.Store.ReadsOnly() && !o.flags.FlagSet("controllers").Changed("controllers") {
		o.Controllers = nil
	}
	if errs := o.Validate(); len(errs) > 0 {
		return Completed{}, errors.Join(errs...)
	}
	if errs := c.checkFiles(); len(errs) > 0 {
		return Completed{}, errors.Join(errs...)
	}
	o.Admission.NodeAuthorizer = o.Auth.Authorization.UsesMode(modes.ModeNode)
	if err := c.completeControllers(); err != nil {
		return Completed{}, err
	}
	if err := c.completeAddresses(); err != nil {
		return Completed{}, err
	}
	if err := c.completeResources(); err != nil {
		return Completed{}, err
	}
	return c, nil
}

func (c *Completed) completeControllers() error {
	var err error
	if c.EnabledControllers, err = controllers.Select(c.Controllers, c.WithControllerManager); err != nil {
		return err
	}
	if !c.Store.GarbageCollection {
		c.EnabledControllers = slices.DeleteFunc(c.EnabledControllers, func(name string) bool { return name == names.GarbageCollectorController })
	}
	return nil
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
	if address := c.EndpointAddress(); address != nil && !c.Store.ReadsOnly() && netutils.IsIPv6(address) != netutils.IsIPv6CIDR(&c.ServiceIPRange) {
		return fmt.Errorf("--service-cluster-ip-range: %s is of another IP family than --advertise-address, %s, so that Pods would not reach the server: "+
			"name the family of the address first, or set --endpoint-reconciler-type=none", &c.ServiceIPRange, address)
	}
	if given := c.Generic.AdvertiseAddress; given == nil || given.IsUnspecified() || c.hasNoEndpoint() {
		return nil
	}
	if errs := validation.ValidateEndpointIP(c.AdvertiseAddress.String(), nil); len(errs) > 0 {
		return fmt.Errorf("--advertise-address: %s can't be an endpoint of the Service kubernetes: it %s: give an address that Pods reach, or --endpoint-reconciler-type=none",
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
		c.APIResources, err = resourceconfig.EmulationForwardCompatibleResourceConfig(resources, c.RuntimeConfig, legacyscheme.Scheme)
		if err != nil {
			return fmt.Errorf("--runtime-config: %w", err)
		}
	}
	if flows := flowcontrolv1.SchemeGroupVersion; c.Features.EnablePriorityAndFairness && !c.APIResources.ResourceEnabled(flows.WithResource("flowschemas")) {
		return fmt.Errorf("--runtime-config turns off %s, which --enable-priority-and-fairness needs: turn that off too", flows)
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
