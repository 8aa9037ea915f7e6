package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"byre/apiserver/storage/encoding"
)

// lookupTimeout bounds a read for an interface of upstream that passes no context, such as a
// lister.
const lookupTimeout = 10 * time.Second

// LookupReader reads built-in objects. Each field reads those of one resource. It is
// immutable and safe for concurrent use.
type LookupReader struct {
	ServiceAccounts    LookupResource[v1.ServiceAccount]
	Pods               LookupResource[v1.Pod]
	Secrets            LookupResource[v1.Secret]
	Nodes              LookupResource[v1.Node]
	Services           LookupResource[v1.Service]
	EndpointSlices     LookupResource[discoveryv1.EndpointSlice]
	ValidatingWebhooks LookupResource[admissionregistrationv1.ValidatingWebhookConfiguration]
	MutatingWebhooks   LookupResource[admissionregistrationv1.MutatingWebhookConfiguration]
}

// NewLookupReader makes a Reader of stores. stores may return nil for a resource that is not
// served yet; a read then fails with ServiceUnavailable.
func NewLookupReader(stores func(schema.GroupResource) *Store) *LookupReader {
	return &LookupReader{
		ServiceAccounts: LookupResource[v1.ServiceAccount]{stores, v1.Resource("serviceaccounts")},
		Pods:            LookupResource[v1.Pod]{stores, v1.Resource("pods")},
		Secrets:         LookupResource[v1.Secret]{stores, v1.Resource("secrets")},
		Nodes:           LookupResource[v1.Node]{stores, v1.Resource("nodes")},
		Services:        LookupResource[v1.Service]{stores, v1.Resource("services")},
		EndpointSlices:  LookupResource[discoveryv1.EndpointSlice]{stores, discoveryv1.Resource("endpointslices")},
		ValidatingWebhooks: LookupResource[admissionregistrationv1.ValidatingWebhookConfiguration]{stores,
			admissionregistrationv1.Resource("validatingwebhookconfigurations")},
		MutatingWebhooks: LookupResource[admissionregistrationv1.MutatingWebhookConfiguration]{stores,
			admissionregistrationv1.Resource("mutatingwebhookconfigurations")},
	}
}

// LookupResource reads the objects of one resource. T is the Go type of its storage version.
// Errors are API errors, such as NotFound. The caller owns the objects.
type LookupResource[T any] struct {
	stores   func(schema.GroupResource) *Store
	resource schema.GroupResource
}

// Get reads the current object, like a GET without resourceVersion. For a resource
// without namespaces, namespace is "".
func (r LookupResource[T]) Get(ctx context.Context, namespace, name string) (*T, error) {
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	return r.get(ctx, store, namespace, name, "")
}

// GetCached reads the object from the watch cache, like a GET with resourceVersion "0".
// It queries the database only to fill the cache, so reads of objects that do not exist
// cause no queries. It may miss what another replica has just written.
func (r LookupResource[T]) GetCached(ctx context.Context, namespace, name string) (*T, error) {
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	if err := store.Load(ctx); err != nil {
		return nil, err
	}
	return r.get(ctx, store, namespace, name, "0")
}

// ListCached reads the objects of a namespace that the selector selects from the watch
// cache. If namespace is "", it reads those of all namespaces.
func (r LookupResource[T]) ListCached(ctx context.Context, namespace string, selector labels.Selector) ([]*T, error) {
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	predicate := apistorage.Everything
	predicate.Label = selector
	list, err := store.ListEncoded(ctx, store.Prefix()+keyOf(namespace, ""), apistorage.ListOptions{
		ResourceVersion: "0", Predicate: predicate, Recursive: true,
	}, store.Stored())
	if err != nil {
		return nil, err
	}
	var items []*T
	for encoded, err := range list.Items {
		if err != nil {
			return nil, err
		}
		object, err := r.decode(encoded)
		if err != nil {
			return nil, err
		}
		items = append(items, object)
	}
	return items, nil
}

func (r LookupResource[T]) store() (*Store, error) {
	if store := r.stores(r.resource); store != nil {
		return store, nil
	}
	return nil, apierrors.NewServiceUnavailable(r.resource.String() + " are not served yet")
}

func (r LookupResource[T]) get(ctx context.Context, store *Store, namespace, name, resourceVersion string) (*T, error) {
	encoded, err := store.GetEncoded(ctx, store.Prefix()+keyOf(namespace, name),
		apistorage.GetOptions{ResourceVersion: resourceVersion}, store.Stored())
	switch {
	case apistorage.IsNotFound(err):
		return nil, apierrors.NewNotFound(r.resource, name)
	case err != nil:
		return nil, err
	}
	return r.decode(encoded)
}

func (r LookupResource[T]) decode(encoded encoding.Encoded) (*T, error) {
	object := new(T)
	if err := json.Unmarshal(encoded.AppendJSON(nil, true), object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", r.resource, err)
	}
	return object, nil
}

// keyOf returns the part of a key after the store's prefix, for an object, or, if name
// is "", for all objects of a namespace.
func keyOf(namespace, name string) string {
	if namespace == "" {
		return "/" + name
	}
	return "/" + namespace + "/" + name
}

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
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return l.resource.ListCached(ctx, l.namespace, selector)
}

// Get reads one object.
func (l Lister[T]) Get(name string) (*T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return l.resource.GetCached(ctx, l.namespace, name)
}

// Informer is an informer of client-go of which upstream uses the lister L only.
type Informer[L any] struct{ Of L }

// Lister returns the lister.
func (i Informer[L]) Lister() L { return i.Of }

// Informer returns nil: there is none.
func (Informer[L]) Informer() cache.SharedIndexInformer { return nil }

// CoreInformers is a factory of informers with another informer of Pods, and another one of Secrets, unless these are
// nil.
type CoreInformers struct {
	informers.SharedInformerFactory
	Pods    corev1informers.PodInformer
	Secrets corev1informers.SecretInformer
}

// Core implements informers.SharedInformerFactory.
func (f CoreInformers) Core() coreinformers.Interface {
	return coreGroup{f.SharedInformerFactory.Core(), f}
}

type coreGroup struct {
	coreinformers.Interface
	factory CoreInformers
}

func (g coreGroup) V1() corev1informers.Interface { return coreV1{g.Interface.V1(), g.factory} }

type coreV1 struct {
	corev1informers.Interface
	factory CoreInformers
}

func (v coreV1) Pods() corev1informers.TypedPodInformer {
	if v.factory.Pods == nil {
		return v.Interface.Pods()
	}
	return corev1informers.ToTypedPodInformer(v.factory.Pods)
}

func (v coreV1) Secrets() corev1informers.TypedSecretInformer {
	if v.factory.Secrets == nil {
		return v.Interface.Secrets()
	}
	return corev1informers.ToTypedSecretInformer(v.factory.Secrets)
}
