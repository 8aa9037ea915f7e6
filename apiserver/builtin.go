package apiserver

import (
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"

	"byre/apiserver/access/auth"
	"byre/apiserver/options"
	"byre/apiserver/process/pki"
	"byre/apiserver/process/routing"
	"byre/apiserver/registry"
)

// newRegistry makes the REST storages of the groups of Kubernetes. files are the certificates
// and keys that the server issues itself; the kubelet client uses them unless flags
// name others.
func newRegistry(o options.Completed, n network, s *storageBackend, files pki.Files, c clients, a *auth.Auth) (*registry.Builtin, error) {
	kubelet := *o.Cluster.Kubelet
	if kubelet.TLSClientConfig.CertFile == "" {
		kubelet.TLSClientConfig.CertFile, kubelet.TLSClientConfig.KeyFile = files.KubeletClientCert, files.KubeletKey
	}
	if n.egress.cluster != nil {
		kubelet.Lookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return n.egress.cluster, nil }
	}
	return registry.New(registry.Config{
		RESTOptions:             s.getter,
		APIResourceConfigSource: o.APIResources,
		Emulation:               o.Emulation.Of(effectiveVersion()),
		Client:                  c.kube,
		Informers:               c.informers,
		Authenticator:           a.Authenticator,
		APIAudiences:            a.APIAudiences,
		Authorizer:              a.Authorizer,
		EndpointSlices:          routing.NewEndpointSliceGetter(c.reader),
		RuleResolver:            a.RuleResolver,
		Tokens: registry.TokenConfig{
			Issuer:                a.TokenIssuer.Generator,
			MaxExpiration:         a.TokenIssuer.MaxExpiration,
			ExtendExpiration:      a.TokenIssuer.ExtendExpiration,
			MaxExtendedExpiration: a.TokenIssuer.MaxExtendedExpiration,
		},
		Services: registry.ServiceConfig{
			ClusterIPRange:          o.ServiceIPRange,
			SecondaryClusterIPRange: o.SecondaryServiceIPRange,
			NodePortRange:           o.Cluster.NodePortRange,
		},
		EventTTL: o.Cluster.EventTTL,
		Kubelet:  &kubelet,

		ProxyTransport: newProxyTransport(n.egress.cluster),
		StoreReady:     s.checkDatabase,
	})
}
