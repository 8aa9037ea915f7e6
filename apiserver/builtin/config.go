package builtin

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
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	api "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/builtin/allocation"
)

// Config is what the storages of the built-in groups need.
type Config struct {
	// RESTOptions says what every resource is kept in.
	RESTOptions generic.RESTOptionsGetter
	// Resources says which versions and resources are served; see Resources.
	// Nil means DefaultResources.
	Resources serverstorage.APIResourceConfigSource
	// Emulation leaves out what came after the release that is emulated.
	Emulation Emulation
	// Client is the server's own clientset, over its loopback transport.
	Client kubernetes.Interface
	// Informers is a factory over Client, with the custom resync of Resync. The
	// cluster IP allocator and its repair loop ask it for Services, ServiceCIDRs
	// and IPAddresses; the caller starts it after New.
	Informers informers.SharedInformerFactory

	// Authenticator answers TokenReviews; nil makes them an internal error.
	Authenticator authenticator.Request
	// APIAudiences are the server's own audiences.
	APIAudiences authenticator.Audiences
	// Authorizer answers access reviews and guards against escalation.
	Authorizer authorizer.Authorizer
	// RuleResolver answers SelfSubjectRulesReviews.
	RuleResolver authorizer.RuleResolver

	Tokens   Tokens
	Services Services
	// EventTTL is how long an event lives; zero means 1 h.
	EventTTL time.Duration

	// Kubelet says how to reach kubelets; nil means DefaultKubelet.
	Kubelet *kubeletclient.KubeletClientConfig
	// ProxyTransport reaches pods, services and nodes that are proxied to; nil
	// means a transport that doesn't verify names, as proxying goes by IP.
	ProxyTransport http.RoundTripper

	// StoreReady tells whether the database answers; it is what component
	// statuses show where Kubernetes shows etcd. Nil means always ready.
	StoreReady func(context.Context) error
	// Logger is told which resources are left out though they were asked for; its
	// zero value discards.
	Logger klog.Logger
}

// Tokens are the settings of service account tokens.
type Tokens struct {
	// Issuer signs; nil leaves serviceaccounts/token out.
	Issuer serviceaccount.TokenGenerator
	// MaxExpiration caps what is asked for; zero means no cap.
	MaxExpiration time.Duration
	// ExtendExpiration gives projected tokens a longer life (up to
	// MaxExtendedExpiration) than asked for, for old clients that don't reload.
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration
}

// Services are the ranges that Services get addresses and ports from.
type Services struct {
	// ClusterIPRange is the range of the first IP family; its zero value means
	// 10.0.0.0/24.
	ClusterIPRange net.IPNet
	// SecondaryClusterIPRange is of the other family, or zero.
	SecondaryClusterIPRange net.IPNet
	// NodePortRange is where node ports come from; zero means 30000-32767.
	NodePortRange utilnet.PortRange
	// RepairInterval is between two repairs of the allocations; zero means 3 min.
	RepairInterval time.Duration
}

// defaultRepairInterval is kube-apiserver's.
const defaultRepairInterval = 3 * time.Minute

// Resync is what the informers are to be made with
// (informers.WithCustomResyncConfig), so that the allocations are repaired
// periodically and not only as things change.
func Resync() map[metav1.Object]time.Duration { return allocation.Resync(defaultRepairInterval) }

// DefaultKubelet is how kube-apiserver reaches kubelets when no flag says else.
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

// DefaultNodePortRange is kube-apiserver's.
func DefaultNodePortRange() utilnet.PortRange {
	return utilnet.PortRange{Base: 30000, Size: 2768}
}

// DefaultClusterIPRange is kube-apiserver's.
func DefaultClusterIPRange() net.IPNet {
	return net.IPNet{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
}

func (c Config) withDefaults() Config {
	if c.Resources == nil {
		c.Resources = DefaultResources()
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
