package registry

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/registry/allocation"
)

// Config holds the dependencies of the storages of the built-in groups.
type Config struct {
	// RESTOptions returns the storage options of each resource.
	RESTOptions generic.RESTOptionsGetter
	// APIResourceConfigSource says which versions and resources are served; see
	// ParseRuntimeConfig. nil means DefaultAPIResourceConfigSource.
	APIResourceConfigSource serverstorage.APIResourceConfigSource
	// Emulation says which release's API is served: a kind that a later release introduced, or
	// that this release or an earlier one removed, is not. Without a CurrentVersion it is the
	// release of the program.
	Emulation genericapiserver.ResourceExpirationEvaluatorOptions
	// Client is a clientset over the server's loopback transport.
	Client kubernetes.Interface
	// Informers is an informer factory over Client, made with CustomResync. The
	// cluster IP allocator and its repair loop use its informers of Services,
	// ServiceCIDRs and IPAddresses. The caller starts it after New.
	Informers informers.SharedInformerFactory

	// Authenticator answers TokenReviews. If it is nil, they fail with an internal
	// error.
	Authenticator authenticator.Request
	// APIAudiences are the server's own audiences.
	APIAudiences authenticator.Audiences
	// Authorizer answers access reviews and decides about escalation of privileges.
	Authorizer authorizer.Authorizer
	// EndpointSlices finds the endpoints of a Service for its subresource proxy.
	EndpointSlices proxy.EndpointSliceGetter
	// RuleResolver answers SelfSubjectRulesReviews.
	RuleResolver authorizer.RuleResolver

	Tokens   TokenConfig
	Services ServiceConfig
	// EventTTL is the lifetime of an event; zero means 1 h.
	EventTTL time.Duration

	// Kubelet configures connections to kubelets; nil means DefaultKubelet.
	Kubelet *kubeletclient.KubeletClientConfig
	// ProxyTransport connects to pods, services and nodes for the proxy
	// subresources. nil means a transport that does not verify certificates: the
	// proxy subresources connect to IP addresses. kube-apiserver does the same.
	ProxyTransport http.RoundTripper

	// StoreReady returns an error if the database does not answer. The component
	// status etcd-0 reports it. nil means always ready.
	StoreReady func(context.Context) error
}

// TokenConfig configures the subresource serviceaccounts/token.
type TokenConfig struct {
	// Issuer signs tokens. If it is nil, serviceaccounts/token is not served.
	Issuer serviceaccount.TokenGenerator
	// MaxExpiration is the longest lifetime of a token; zero means no limit.
	MaxExpiration time.Duration
	// ExtendExpiration extends the lifetime of projected tokens to
	// MaxExtendedExpiration, for old clients that do not reload them.
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration
}

// ServiceConfig holds the ranges from which Services get cluster IPs and node ports.
type ServiceConfig struct {
	// ClusterIPRange is the range of the primary IP family; the zero value means
	// 10.0.0.0/24.
	ClusterIPRange net.IPNet
	// SecondaryClusterIPRange is the range of the other IP family; the zero value
	// means single-stack.
	SecondaryClusterIPRange net.IPNet
	// NodePortRange is the range of node ports; zero means 30000-32767.
	NodePortRange utilnet.PortRange
	// RepairInterval is the time between two repairs of the allocations; zero means
	// 3 min.
	RepairInterval time.Duration
}

// defaultRepairInterval is kube-apiserver's default.
const defaultRepairInterval = 3 * time.Minute

// CustomResync returns the argument of informers.WithCustomResyncConfig with which the
// caller makes Config.Informers. With it the allocations of cluster IPs are repaired
// periodically, and not only when objects change.
func CustomResync() map[metav1.Object]time.Duration {
	return allocation.CustomResync(defaultRepairInterval)
}

// DefaultKubelet returns the kubelet configuration of kube-apiserver's default flags.
func DefaultKubelet() *kubeletclient.KubeletClientConfig {
	return &kubeletclient.KubeletClientConfig{
		Port:         10250,
		ReadOnlyPort: 10255,
		PreferredAddressTypes: []string{
			string(api.NodeHostName),
			string(api.NodeInternalDNS),
			string(api.NodeInternalIP),
			string(api.NodeExternalDNS),
			string(api.NodeExternalIP),
		},
		HTTPTimeout: 5 * time.Second,
	}
}

// DefaultNodePortRange returns kube-apiserver's default, 30000-32767.
func DefaultNodePortRange() utilnet.PortRange {
	return utilnet.PortRange{Base: 30000, Size: 2768}
}

// DefaultClusterIPRange returns kube-apiserver's default, 10.0.0.0/24.
func DefaultClusterIPRange() net.IPNet {
	return net.IPNet{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
}

func (c Config) withDefaults() Config {
	if c.APIResourceConfigSource == nil {
		c.APIResourceConfigSource = DefaultAPIResourceConfigSource()
	}
	if c.Emulation.CurrentVersion == nil {
		c.Emulation.CurrentVersion = compatibility.DefaultBuildEffectiveVersion().EmulationVersion()
	}
	if c.EventTTL == 0 {
		c.EventTTL = time.Hour
	}
	if c.Kubelet == nil {
		c.Kubelet = DefaultKubelet()
	}
	if c.ProxyTransport == nil {
		c.ProxyTransport = utilnet.SetTransportDefaults(&http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		})
	}
	if c.StoreReady == nil {
		c.StoreReady = func(context.Context) error { return nil }
	}
	if c.Services.ClusterIPRange.IP == nil {
		c.Services.ClusterIPRange = DefaultClusterIPRange()
	}
	if c.Services.NodePortRange.Size == 0 {
		c.Services.NodePortRange = DefaultNodePortRange()
	}
	if c.Services.RepairInterval == 0 {
		c.Services.RepairInterval = defaultRepairInterval
	}
	return c
}
