package admission

import (
	"context"
	"time"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// lookupTimeout bounds the read of a Pod. The lister's interface passes no context.
const lookupTimeout = 10 * time.Second

// uncachedPodFactory is an informer factory whose Pod lister sends each read to the
// server instead of keeping a cache. The plugins read Pods seldom: when a namespace's
// Pod security level changes, and when a kubelet makes a request. An informer would
// keep every Pod of the cluster decoded in memory and delay the start until it has
// synced.
type uncachedPodFactory struct {
	informers.SharedInformerFactory
	client corev1.PodsGetter
}

func (f uncachedPodFactory) Core() coreinformers.Interface {
	return uncachedPodGroup{f.SharedInformerFactory.Core(), f.client}
}

type uncachedPodGroup struct {
	coreinformers.Interface
	client corev1.PodsGetter
}

func (g uncachedPodGroup) V1() corev1informers.Interface {
	return uncachedPodVersion{g.Interface.V1(), g.client}
}

type uncachedPodVersion struct {
	corev1informers.Interface
	client corev1.PodsGetter
}

func (v uncachedPodVersion) Pods() corev1informers.PodInformer {
	return uncachedPodInformer{v.Interface.Pods(), v.client}
}

type uncachedPodInformer struct {
	corev1informers.PodInformer
	client corev1.PodsGetter
}

func (i uncachedPodInformer) Lister() corev1listers.PodLister { return uncachedPodLister{i.client} }

// uncachedPodLister lists Pods with resourceVersion "0": the loopback client answers
// from the watch cache.
type uncachedPodLister struct {
	client corev1.PodsGetter
}

func (l uncachedPodLister) List(selector labels.Selector) ([]*v1.Pod, error) {
	return l.Pods(metav1.NamespaceAll).List(selector)
}

func (l uncachedPodLister) Pods(namespace string) corev1listers.PodNamespaceLister {
	return uncachedPodNamespaceLister{l.client.Pods(namespace)}
}

type uncachedPodNamespaceLister struct {
	client corev1.PodInterface
}

func (n uncachedPodNamespaceLister) List(selector labels.Selector) ([]*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	list, err := n.client.List(ctx, metav1.ListOptions{LabelSelector: selector.String(), ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	pods := make([]*v1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

func (n uncachedPodNamespaceLister) Get(name string) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return n.client.Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
}
