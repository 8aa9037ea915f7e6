package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Lister reads the objects of one namespace, or of all if it is "", from the watch cache. It
// implements upstream's namespace listers.
type Lister[T any] struct {
	resource  LookupResource[T]
	namespace string
}

// Lister returns the lister of a namespace.
func (r LookupResource[T]) Lister(namespace string) Lister[T] { return Lister[T]{r, namespace} }

// List reads the objects that the selector selects.
func (l Lister[T]) List(selector labels.Selector) ([]*T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), LookupTimeout)
	defer cancel()
	return l.resource.ListCached(ctx, l.namespace, selector)
}

// Get reads one object.
func (l Lister[T]) Get(name string) (*T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), LookupTimeout)
	defer cancel()
	return l.resource.GetCached(ctx, l.namespace, name)
}

// Informer is an informer of client-go of which upstream uses the lister L only.
type Informer[L any] struct{ Of L }

// Lister returns the lister.
func (i Informer[L]) Lister() L { return i.Of }

// Informer returns nil: there is none.
func (Informer[L]) Informer() cache.SharedIndexInformer { return nil }

// WithPods returns a factory of informers with another informer of Pods.
func WithPods(factory informers.SharedInformerFactory, pods corev1informers.PodInformer) informers.SharedInformerFactory {
	return coreFactory{factory, func(v corev1informers.Interface) corev1informers.Interface { return withPods{v, pods} }}
}

// WithSecrets returns a factory of informers with another informer of Secrets.
func WithSecrets(factory informers.SharedInformerFactory, secrets corev1informers.SecretInformer) informers.SharedInformerFactory {
	return coreFactory{factory, func(v corev1informers.Interface) corev1informers.Interface { return withSecrets{v, secrets} }}
}

// coreFactory is a factory whose informers of the core group replace makes of those of the factory.
type coreFactory struct {
	informers.SharedInformerFactory
	replace func(corev1informers.Interface) corev1informers.Interface
}

func (f coreFactory) Core() coreinformers.Interface {
	return coreGroup{f.SharedInformerFactory.Core(), f.replace}
}

type coreGroup struct {
	coreinformers.Interface
	replace func(corev1informers.Interface) corev1informers.Interface
}

func (g coreGroup) V1() corev1informers.Interface { return g.replace(g.Interface.V1()) }

type withPods struct {
	corev1informers.Interface
	pods corev1informers.PodInformer
}

func (v withPods) Pods() corev1informers.TypedPodInformer {
	return corev1informers.ToTypedPodInformer(v.pods)
}

type withSecrets struct {
	corev1informers.Interface
	secrets corev1informers.SecretInformer
}

func (v withSecrets) Secrets() corev1informers.TypedSecretInformer {
	return corev1informers.ToTypedSecretInformer(v.secrets)
}
