package storage

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/value"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"byre/sqlstore"
	"byre/watch"
)

// GetterConfig says how a Getter builds Stores. Store, Feed, Serializer and
// Encoding are required.
type GetterConfig struct {
	Store *sqlstore.Store
	Feed  *watch.Feed
	// Serializer is the scheme's codec factory.
	Serializer runtime.StorageSerializer
	// Encoding picks the storage version and the version in memory for a
	// resource; for the built-in groups it comes from BuiltinEncoding.
	Encoding serverstorage.ResourceEncodingConfig
	// Prefixes are the key prefixes that differ from the resource's name.
	Prefixes map[schema.GroupResource]string
	// Transformers gives the encryption of a resource; nil, or a nil result,
	// means none.
	Transformers func(schema.GroupResource) value.Transformer
	// Program is the part of a record's Form that says which API version of
	// the program wrote it, such as "v1.36".
	Program string
	// DeleteCollectionWorkers is for registries; 0 means 1.
	DeleteCollectionWorkers int
	// ObjectCounts is told how many objects each resource has; nil is fine.
	ObjectCounts flowcontrolrequest.StorageObjectCountTracker
}

// Getter is a generic.RESTOptionsGetter whose registries get Stores, and which
// remembers them by resource.
type Getter struct {
	cfg    GetterConfig
	mu     sync.RWMutex
	stores map[schema.GroupResource]*Store
}

var _ generic.RESTOptionsGetter = (*Getter)(nil)

// NewRESTOptionsGetter makes a Getter.
func NewRESTOptionsGetter(cfg GetterConfig) *Getter {
	if cfg.DeleteCollectionWorkers == 0 {
		cfg.DeleteCollectionWorkers = 1
	}
	return &Getter{cfg: cfg, stores: map[schema.GroupResource]*Store{}}
}

// Lookup returns the Store that was built for a resource, or nil.
func (g *Getter) Lookup(gr schema.GroupResource) *Store {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.stores[gr]
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g *Getter) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	panic("in work")
}
