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

// The MutatingAdmissionPolicy plugin polls the index of OpenAPI v3 documents every
// five seconds from the start of the server. The index holds a hash of each document,
// so the server must build every document to answer. That costs tens of megabytes,
// and most servers have no MutatingAdmissionPolicy. The types below therefore answer
// the plugin with an index made from discovery until the first policy exists. A
// document of that index is requested when the plugin asks for its schema.

// lazyOpenAPIClientset is a clientset whose OpenAPI v3 client is a lazyOpenAPIClient.
type lazyOpenAPIClientset struct {
	kubernetes.Interface
	policies policyInformer
}

// policyInformer is the informer of MutatingAdmissionPolicies and the channel that
// ends the wait for it.
type policyInformer struct {
	informers.MutatingAdmissionPolicyInformer
	stop <-chan struct{}
}

func newLazyOpenAPIClientset(client kubernetes.Interface, factory kubeinformers.SharedInformerFactory, stop <-chan struct{}) kubernetes.Interface {
	return lazyOpenAPIClientset{client, policyInformer{factory.Admissionregistration().V1().MutatingAdmissionPolicies(), stop}}
}

func (c lazyOpenAPIClientset) Discovery() discovery.DiscoveryInterfaces {
	return lazyDiscovery{c.Interface.Discovery(), c.policies}
}

type lazyDiscovery struct {
	discovery.DiscoveryInterfaces
	policies policyInformer
}

func (d lazyDiscovery) OpenAPIV3() openapi.Client {
	return &lazyOpenAPIClient{discovery: d.DiscoveryInterfaces, policies: d.policies}
}

type lazyOpenAPIClient struct {
	discovery discovery.DiscoveryInterface
	policies  policyInformer
}

// Paths returns the server's index if a MutatingAdmissionPolicy exists, and else an
// index made from discovery. The plugin makes the first call while the server is still
// starting; Paths then waits until the informer has synced.
func (p *lazyOpenAPIClient) Paths() (map[string]openapi.GroupVersion, error) {
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
	paths := map[string]openapi.GroupVersion{"api/v1": lazyGroupVersion{p.discovery, "api/v1"}}
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			path := "apis/" + version.GroupVersion
			paths[path] = lazyGroupVersion{p.discovery, path}
		}
	}
	return paths, nil
}

// discoveryTimeout bounds the request for the list of groups.
const discoveryTimeout = 10 * time.Second

// groups requests /apis in the unaggregated form, which lists groups and versions
// only. client-go's ServerGroups requests the aggregated form, which lists every
// resource.
func (p *lazyOpenAPIClient) groups() (*metav1.APIGroupList, error) {
	ctx, cancel := context.WithTimeout(context.Background(), discoveryTimeout)
	defer cancel()
	data, err := p.discovery.RESTClient().Get().AbsPath("/apis").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	groups := &metav1.APIGroupList{}
	return groups, json.Unmarshal(data, groups)
}

// lazyGroupVersion is the entry of one group version in the index that is made from
// discovery. It requests the document when Schema is called.
type lazyGroupVersion struct {
	discovery discovery.DiscoveryInterface
	path      string
}

func (d lazyGroupVersion) Schema(contentType string) ([]byte, error) {
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

// ServerRelativeURL returns the key of the plugin's cache. It differs from every URL
// of the server's index, so that the plugin drops what it cached through this entry
// once Paths returns the server's index.
func (d lazyGroupVersion) ServerRelativeURL() string { return "/openapi/v3/" + d.path + "?hash=lazy" }
