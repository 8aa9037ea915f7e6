package admission

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// lookupTimeout bounds the look-up of an object whose lister has no
// context of the request.
const lookupTimeout = 10 * time.Second

// livePods is an informer factory whose Pods are asked for, not followed. The
// plugins look at Pods seldom (at a change of a namespace's security level, at
// a kubelet's request); to follow them would keep every Pod of the cluster
// decoded in memory, and a start waiting until they are.
type livePods struct {
	informers.SharedInformerFactory
	client corev1.PodsGetter
}

func (f livePods) Core() coreinformers.Interface {
	return livePodsGroup{f.SharedInformerFactory.Core(), f.client}
}

type livePodsGroup struct {
	coreinformers.Interface
	client corev1.PodsGetter
}

func (g livePodsGroup) V1() corev1informers.Interface {
	return livePodsVersion{g.Interface.V1(), g.client}
}

type livePodsVersion struct {
	corev1informers.Interface
	client corev1.PodsGetter
}

func (v livePodsVersion) Pods() corev1informers.PodInformer {
	return livePodInformer{v.Interface.Pods(), v.client}
}

type livePodInformer struct {
	corev1informers.PodInformer
	client corev1.PodsGetter
}

func (i livePodInformer) Lister() corev1listers.PodLister { return podLister{i.client} }

// podLister is a lister whose answers are as of now.
type podLister struct {
	client corev1.PodsGetter
}

func (l podLister) List(selector labels.Selector) ([]*v1.Pod, error) {
	return l.Pods(metav1.NamespaceAll).List(selector)
}

func (l podLister) Pods(namespace string) corev1listers.PodNamespaceLister {
	return namespacedPods{l.client.Pods(namespace)}
}

type namespacedPods struct {
	client corev1.PodInterface
}

func (n namespacedPods) List(selector labels.Selector) ([]*v1.Pod, error) {
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

func (n namespacedPods) Get(name string) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return n.client.Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
}
