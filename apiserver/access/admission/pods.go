package admission

import (
	"context"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"byre/apiserver/storage/lookup"
)

// uncachedPodFactory is an informer factory whose Pod lister reads the server's own
// store instead of keeping decoded Pods. The plugins read Pods seldom: when a namespace's
// Pod security level changes, and when a kubelet makes a request. An informer would
// keep every Pod of the cluster decoded in memory and delay the start until it has
// synced.
type uncachedPodFactory struct {
	informers.SharedInformerFactory
	pods lookup.Resource[v1.Pod]
}

func (f uncachedPodFactory) Core() coreinformers.Interface {
	return uncachedPodGroup{f.SharedInformerFactory.Core(), f.pods}
}

type uncachedPodGroup struct {
	coreinformers.Interface
	pods lookup.Resource[v1.Pod]
}

func (g uncachedPodGroup) V1() corev1informers.Interface {
	return uncachedPodVersion{g.Interface.V1(), g.pods}
}

type uncachedPodVersion struct {
	corev1informers.Interface
	pods lookup.Resource[v1.Pod]
}

func (v uncachedPodVersion) Pods() corev1informers.TypedPodInformer {
	return uncachedPodInformer{v.Interface.Pods(), v.pods}
}

type uncachedPodInformer struct {
	corev1informers.TypedPodInformer
	pods lookup.Resource[v1.Pod]
}

func (i uncachedPodInformer) Lister() corev1listers.PodLister { return uncachedPodLister{i.pods} }

type uncachedPodLister struct {
	pods lookup.Resource[v1.Pod]
}

func (l uncachedPodLister) List(selector labels.Selector) ([]*v1.Pod, error) {
	return l.Pods(metav1.NamespaceAll).List(selector)
}

func (l uncachedPodLister) Pods(namespace string) corev1listers.PodNamespaceLister {
	return uncachedPodNamespaceLister{l.pods, namespace}
}

type uncachedPodNamespaceLister struct {
	pods      lookup.Resource[v1.Pod]
	namespace string
}

func (n uncachedPodNamespaceLister) List(selector labels.Selector) ([]*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookup.Timeout)
	defer cancel()
	return n.pods.ListCached(ctx, n.namespace, selector)
}

func (n uncachedPodNamespaceLister) Get(name string) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookup.Timeout)
	defer cancel()
	return n.pods.GetCached(ctx, n.namespace, name)
}
