package registry

import (
	"context"
	"net"
	"net/http"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Config holds the dependencies of the storages of the built-in groups. All are required but
// those that say what their zero value means.
type Config struct {
	// RESTOptions returns the storage options of each resource.
	RESTOptions generic.RESTOptionsGetter
	// APIResourceConfigSource says which versions and resources are served; see
	// ParseRuntimeConfig.
	APIResourceConfigSource serverstorage.APIResourceConfigSource
	// Emulation says which release's API is served: a kind that a later release introduced, or
	// that this release or an earlier one removed, is not.
	Emulation genericapiserver.ResourceExpirationEvaluatorOptions
	// Client is a clientset over the server's loopback transport.
	Client kubernetes.Interface
	// Informers is an informer factory over Client, made with AllocatorResync. The
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
	// EventTTL is the lifetime of an event.
	EventTTL time.Duration

	// Kubelet configures connections to kubelets.
	Kubelet *kubeletclient.KubeletClientConfig
	// ProxyTransport connects to pods, services and nodes for the proxy
	// subresources.
	ProxyTransport http.RoundTripper

	// StoreReady returns an error if the database does not answer. The component
	// status etcd-0 reports it.
	StoreReady func(context.Context) error
	// InProcess are the component statuses, controller-manager and scheduler, whose work this process does.
	InProcess []string
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
	// ClusterIPRange is the range of the primary IP family.
	ClusterIPRange net.IPNet
	// SecondaryClusterIPRange is the range of the other IP family; the zero value
	// means single-stack.
	SecondaryClusterIPRange net.IPNet
	// NodePortRange is the range of node ports.
	NodePortRange utilnet.PortRange
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
