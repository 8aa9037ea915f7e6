package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	kubeinformers "k8s.io/client-go/informers"
	informers "k8s.io/client-go/informers/admissionregistration/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/cache"
)

// The MutatingAdmissionPolicy plugin asks for the index of OpenAPI documents every
// five seconds from the start on, and the index holds a hash of each document: to
// answer, the server must build them all, which is tens of megabytes for a feature
// that most servers don't use. So, until there is such a policy, the plugin gets an
// index made from discovery, whose documents are fetched when they are asked for.

// lazyOpenAPI is a client whose OpenAPI documents are not asked for needlessly.
type lazyOpenAPI struct {
	kubernetes.Interface
	policies policyIndex
}

// policyIndex tells whether there are MutatingAdmissionPolicies.
type policyIndex struct {
	informers.MutatingAdmissionPolicyInformer
	stop <-chan struct{}
}

func newLazyOpenAPI(client kubernetes.Interface, factory kubeinformers.SharedInformerFactory, stop <-chan struct{}) kubernetes.Interface {
	return lazyOpenAPI{client, policyIndex{factory.Admissionregistration().V1().MutatingAdmissionPolicies(), stop}}
}

func (c lazyOpenAPI) Discovery() discovery.DiscoveryInterface {
	return lazyDiscovery{c.Interface.Discovery(), c.policies}
}

type lazyDiscovery struct {
	discovery.DiscoveryInterface
	policies policyIndex
}

func (d lazyDiscovery) OpenAPIV3() openapi.Client {
	return &lazyPaths{discovery: d.DiscoveryInterface, policies: d.policies}
}

type lazyPaths struct {
	discovery discovery.DiscoveryInterface
	policies  policyIndex
}

// Paths returns the index: the real one once there is a policy. The first call
// comes while the server is still being put together; it waits until the server
// has answered to the informers.
func (p *lazyPaths) Paths() (map[string]openapi.GroupVersion, error) {
	if !cache.WaitForCacheSync(p.policies.stop, p.policies.Informer().HasSynced) {
		return nil, errors.New("the server is shutting down")
	}
	policies, err := p.policies.Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if len(policies) > 0 {
		return p.discovery.OpenAPIV3().Paths()
	}
	groups, err := p.groups()
	if err != nil {
		return nil, err
	}
	paths := map[string]openapi.GroupVersion{"api/v1": lazyDocument{p.discovery, "api/v1"}}
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			path := "apis/" + version.GroupVersion
			paths[path] = lazyDocument{p.discovery, path}
		}
	}
	return paths, nil
}

// discoveryTimeout bounds the request for the list of groups.
const discoveryTimeout = 10 * time.Second

// groups asks for the plain list of groups, which is small, where client-go's
// own call would ask for all resources at once.
func (p *lazyPaths) groups() (*metav1.APIGroupList, error) {
	ctx, cancel := context.WithTimeout(context.Background(), discoveryTimeout)
	defer cancel()
	data, err := p.discovery.RESTClient().Get().AbsPath("/apis").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	groups := &metav1.APIGroupList{}
	return groups, json.Unmarshal(data, groups)
}

// lazyDocument is one group version's document, not yet asked for.
type lazyDocument struct {
	discovery discovery.DiscoveryInterface
	path      string
}

func (d lazyDocument) Schema(contentType string) ([]byte, error) {
	paths, err := d.discovery.OpenAPIV3().Paths()
	if err != nil {
		return nil, err
	}
	document, ok := paths[d.path]
	if !ok {
		return nil, fmt.Errorf("there is no OpenAPI document for %s", d.path)
	}
	return document.Schema(contentType)
}

// ServerRelativeURL keys the plugin's cache. It differs from every real one, so
// that the real index, once there, replaces what was got through this one.
func (d lazyDocument) ServerRelativeURL() string { return "/openapi/v3/" + d.path + "?hash=lazy" }
