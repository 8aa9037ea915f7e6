package apiserver

import (
	"net"
	"strconv"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"

	"byre/apiserver/process/pki"
	"byre/apiserver/process/routing"
	"byre/apiserver/registry"
	"byre/apiserver/registry/bootstrap"
)

// newBuiltin makes the REST storages of the built-in groups. files are the certificates
// and keys that the server issues itself; the kubelet client uses them unless flags
// name others.
func (s *Server) newBuiltin(files pki.Files) (*registry.Builtin, error) {
	o := s.config.Options
	kubelet := *o.Cluster.Kubelet
	if kubelet.TLSClientConfig.CertFile == "" {
		kubelet.TLSClientConfig.CertFile, kubelet.TLSClientConfig.KeyFile = files.KubeletClientCert, files.KubeletKey
	}
	if s.egress.cluster != nil {
		kubelet.Lookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return s.egress.cluster, nil }
	}
	return registry.New(registry.Config{
		RESTOptions:             s.getter,
		APIResourceConfigSource: s.config.Options.APIResources,
		Emulation:               o.Emulation.Of(effectiveVersion()),
		Client:                  s.clients.kube,
		Informers:               s.clients.informers,
		Authenticator:           s.auth.Authenticator,
		APIAudiences:            s.auth.APIAudiences,
		Authorizer:              s.auth.Authorizer,
		EndpointSlices:          routing.NewEndpointSliceGetter(s.clients.reader),
		RuleResolver:            s.auth.RuleResolver,
		Tokens: registry.TokenConfig{
			Issuer:                s.auth.TokenIssuer.Generator,
			MaxExpiration:         s.auth.TokenIssuer.MaxExpiration,
			ExtendExpiration:      s.auth.TokenIssuer.ExtendExpiration,
			MaxExtendedExpiration: s.auth.TokenIssuer.MaxExtendedExpiration,
		},
		Services: registry.ServiceConfig{
			ClusterIPRange:          s.config.Options.ServiceIPRange,
			SecondaryClusterIPRange: s.config.Options.SecondaryServiceIPRange,
			NodePortRange:           o.Cluster.NodePortRange,
		},
		EventTTL: o.Cluster.EventTTL,
		Kubelet:  &kubelet,

		ProxyTransport: newProxyTransport(s.egress.cluster),
		StoreReady:     s.core.checkDatabase,
	})
}

// newBootstrap makes the component that writes the objects that every cluster has, such
// as the system namespaces and the Service "kubernetes".
func (s *Server) newBootstrap() (*bootstrap.Bootstrap, error) {
	port, err := strconv.Atoi(s.port)
	if err != nil {
		return nil, err
	}
	config := bootstrap.Config{
		Client:                  s.clients.kube,
		APIResourceConfigSource: s.config.Options.APIResources,
		ServiceCIDRs:            []net.IPNet{s.config.Options.ServiceIPRange},
		Service: bootstrap.Service{
			ClusterIP:        s.config.Options.ServiceIP,
			AdvertiseAddress: s.config.Options.EndpointAddress(),
			AdvertisePort:    port,
			NodePort:         s.config.Options.Cluster.ServiceNodePort,
		},
		Ready:                     s.signals.HasBeenReady.Signaled(),
		ClusterAuthenticationInfo: s.clusterAuthenticationInfo(),
		Logger:                    klog.Background(),
	}
	if s.config.Options.SecondaryServiceIPRange.IP != nil {
		config.ServiceCIDRs = append(config.ServiceCIDRs, s.config.Options.SecondaryServiceIPRange)
	}
	if s.core.database.Shared {
		if config.Leases, err = bootstrap.NewStoredLeases(s.getter, replicaTTL); err != nil {
			return nil, err
		}
	}
	return bootstrap.New(config)
}

// replicaTTL is how long a server that is gone stays among the endpoints of the
// Service "kubernetes"; kube-apiserver's value.
const replicaTTL = 15 * time.Second

// clusterAuthenticationInfo is what an aggregated API server needs to authenticate the
// requests that this server proxies to it. The bootstrap component writes it into the
// ConfigMap extension-apiserver-authentication.
func (s *Server) clusterAuthenticationInfo() *clusterauthenticationtrust.ClusterAuthenticationInfo {
	info := &clusterauthenticationtrust.ClusterAuthenticationInfo{ClientCA: s.auth.ClientCA}
	if h := s.auth.RequestHeader; h != nil {
		info.RequestHeaderCA = h.CAContentProvider
		info.RequestHeaderUsernameHeaders = h.UsernameHeaders
		info.RequestHeaderUIDHeaders = h.UIDHeaders
		info.RequestHeaderGroupHeaders = h.GroupHeaders
		info.RequestHeaderExtraHeaderPrefixes = h.ExtraHeaderPrefixes
		info.RequestHeaderAllowedNames = h.AllowedClientNames
	}
	return info
}
