package admission

import (
	"context"
	"errors"
	"hash/fnv"

	"k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/featuregate"

	"byre/apiserver/storage"
)

// configuration has the objects that tell a plugin what to do: policies, or configurations of
// webhooks.
//
// What upstream does: its plugins prepare each write for policies and webhooks. That of the
// mutating webhooks copies every object, to detect later whether another plugin has changed
// it. After a start they look every 0.1 s whether they know all policies and webhooks, and
// writes wait for that.
//
// What is done instead: upstream's plugin is called only if there is a policy or a
// configuration.
//
// What it relies on: without these objects upstream's plugins neither change nor refuse
// anything. TestConfiguration_IsNeededForUpstreamsPlugins fails when they do, or when that
// of the mutating webhooks copies nothing any more.
//
// What it earns: 33 allocations, of 5.3 kB, for each write of a small Pod
// (BenchmarkConfiguration), and up to 0.1 s of each start.
type configuration struct{ objects cache.SharedIndexInformer }

// isEmpty reports whether there is certainly no object.
func (c configuration) isEmpty() bool {
	return c.objects.HasSynced() && len(c.objects.GetStore().ListKeys()) == 0
}

// configuredMutation is a plugin that is skipped while its configuration is empty.
type configuredMutation struct {
	admission.MutationInterface
	configuration
}

// Admit implements admission.MutationInterface.
func (p configuredMutation) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if p.isEmpty() {
		return nil
	}
	return p.MutationInterface.Admit(ctx, a, o)
}

// configuredValidation is a plugin that is skipped while its configuration is empty.
type configuredValidation struct {
	admission.ValidationInterface
	configuration
}

// Validate implements admission.ValidationInterface.
func (p configuredValidation) Validate(
	ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces,
) error {
	if p.isEmpty() {
		return nil
	}
	return p.ValidationInterface.Validate(ctx, a, o)
}

// idleUnlessConfigured decorates the plugins that policies and webhook configurations tell what
// to do. With hasFiles files may tell them too (ManifestBasedAdmissionControlConfig), and none is
// decorated. The metrics of plugins count by what a plugin implements, so that a decorated one
// implements the same.
func idleUnlessConfigured(
	factory informers.SharedInformerFactory, gate featuregate.FeatureGate, hasFiles bool,
) admission.Decorator {
	registrations := factory.Admissionregistration().V1()
	objects := map[string]func() cache.SharedIndexInformer{}
	if !hasFiles || !gate.Enabled(features.ManifestBasedAdmissionControlConfig) {
		objects[mutatingwebhook.PluginName] = registrations.MutatingWebhookConfigurations().Informer
		objects[validatingwebhook.PluginName] = registrations.ValidatingWebhookConfigurations().Informer
		objects[validatingpolicy.PluginName] = registrations.ValidatingAdmissionPolicies().Informer
		if gate.Enabled(features.MutatingAdmissionPolicy) {
			objects[mutatingpolicy.PluginName] = registrations.MutatingAdmissionPolicies().Informer
		}
	}
	return admission.DecoratorFunc(func(plugin admission.Interface, name string) admission.Interface {
		informer, ok := objects[name]
		if !ok {
			return plugin
		}
		switch plugin := plugin.(type) {
		case admission.MutationInterface:
			return configuredMutation{plugin, configuration{informer()}}
		case admission.ValidationInterface:
			return configuredValidation{plugin, configuration{informer()}}
		default:
			return plugin
		}
	})
}

// serialQuota is upstream's plugin ResourceQuota, asked one request at a time in a namespace with several quotas.
//
// Upstream's evaluator checks the requests of a namespace that wait together. If it can't update the status of one
// quota, it checks all of them again against that quota alone, and admits a request that another quota has refused,
// so that more objects are created than that quota allows. Kubernetes 1.38 leaves such a request out of the second
// check. A request that waits alone is never checked again once it is refused.
// TestQuota_RefusedRequestIsNotAdmittedByAnotherQuota fails when upstream has mended it: then this goes.
type serialQuota struct {
	admission.ValidationInterface

	quotas corelisters.ResourceQuotaLister
	// busy has a value while a request of a namespace of this hash is checked.
	busy [64]chan struct{}
}

// serializeQuota decorates the plugin ResourceQuota.
func serializeQuota(factory informers.SharedInformerFactory) admission.Decorator {
	return admission.DecoratorFunc(func(plugin admission.Interface, name string) admission.Interface {
		validation, ok := plugin.(admission.ValidationInterface)
		if name != resourcequota.PluginName || !ok {
			return plugin
		}
		s := &serialQuota{ValidationInterface: validation, quotas: factory.Core().V1().ResourceQuotas().Lister()}
		for i := range s.busy {
			s.busy[i] = make(chan struct{}, 1)
		}
		return s
	})
}

// Validate implements admission.ValidationInterface. A status is no request that a quota counts: the plugin itself
// writes that of a quota while another request waits for it here.
func (s *serialQuota) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	quotas, err := s.quotas.ResourceQuotas(a.GetNamespace()).List(labels.Everything())
	if err != nil || len(quotas) < 2 || a.GetSubresource() == "status" {
		return s.ValidationInterface.Validate(ctx, a, o)
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(a.GetNamespace()))
	busy := s.busy[hash.Sum32()%uint32(len(s.busy))]
	select {
	case busy <- struct{}{}:
		defer func() { <-busy }()
		return s.ValidationInterface.Validate(ctx, a, o)
	case <-ctx.Done():
		return apierrors.NewTimeoutError("the request has waited for others that the resource quotas of its namespace count",
			1)
	}
}

// podLister is the Pod lister of the plugins. It reads the server's own store instead of
// keeping decoded Pods. The plugins read Pods seldom: when a namespace's Pod security
// level changes, and when a kubelet makes a request. An informer would keep every Pod of
// the cluster decoded in memory and delay the start until it has synced.
type podLister struct {
	storage.Lister[v1.Pod]
	pods storage.LookupResource[v1.Pod]
}

// Pods implements corev1listers.PodLister.
func (l podLister) Pods(namespace string) corelisters.PodNamespaceLister {
	return l.pods.Lister(namespace)
}

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
