package admission

import (
	"errors"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/cache"
)

// openAPIClientset is a clientset whose OpenAPI client waits until an informer has synced. The
// plugin of MutatingAdmissionPolicies asks for the index of documents every five seconds from the
// start on. Its first request would come before the server answers, and policies would have no
// schemas before the second.
type openAPIClientset struct {
	kubernetes.Interface
	synced cache.InformerSynced
	stop   <-chan struct{}
}

func (c openAPIClientset) Discovery() discovery.DiscoveryInterfaces {
	return openAPIDiscovery{c.Interface.Discovery(), c}
}

type openAPIDiscovery struct {
	discovery.DiscoveryInterfaces
	clients openAPIClientset
}

func (d openAPIDiscovery) OpenAPIV3() openapi.Client {
	return openAPIClient{d.DiscoveryInterfaces.OpenAPIV3(), d.clients}
}

type openAPIClient struct {
	openapi.Client
	clients openAPIClientset
}

// Paths implements documents.Client.
func (c openAPIClient) Paths() (map[string]openapi.GroupVersion, error) {
	if !cache.WaitForCacheSync(c.clients.stop, c.clients.synced) {
		return nil, errors.New("the server is shutting down")
	}
	return c.Client.Paths()
}
