package storage

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"

	"byre/sqlstore"
	"byre/watch"
)

// Backend is what the Stores and the registries of all resources share, built-in
// and custom. Store, Feed and Program are required.
type Backend struct {
	// Store is where objects are written; Feed is where they are read.
	Store *sqlstore.Store
	Feed  *watch.Feed
	// Program is the part of a record's Encoding that names the program's version of the
	// API, such as "v1.37".
	Program string
	// Transformers gives the encryption of a resource; nil, or a nil result,
	// means none.
	Transformers func(schema.GroupResource) value.Transformer
	// DeleteCollectionWorkers is how many objects of a collection a registry deletes
	// concurrently; 0 means 1.
	DeleteCollectionWorkers int
	// NoGarbageCollection makes registries delete an owner at once, whether or not it
	// has dependents.
	NoGarbageCollection bool
}

// Resources describes how the objects of each resource are encoded and what keys they
// have. SchemeResources implements it for types that a scheme knows; package crd
// implements it for instances.
type Resources interface {
	// StoredAs returns the resource under which the objects of gr are stored. It is gr
	// itself for all resources but events.k8s.io.
	StoredAs(gr schema.GroupResource) schema.GroupResource
	// StoreConfig returns two things. The first is the part of a Store's Config that
	// depends on the resource: GroupResource, Owner, ResourcePrefix (without a slash
	// before it), Codec, StorageVersion, Encoding and what else differs from the default.
	// The Getter sets the other fields; the registry gives IndexFields where
	// StoreConfig does not. The second is the versioner that finds the storage version
	// among an object's kinds.
	StoreConfig(gr schema.GroupResource, example runtime.Object) (Config, runtime.GroupVersioner, error)
}

// RESTOptionsGetter is the generic.RESTOptionsGetter of all resources. It makes a Store for each
// registry that asks, and keeps the first Store of each resource for Lookup.
type RESTOptionsGetter struct {
	cfg       Backend
	resources Resources
	mu        sync.RWMutex
	stores    map[schema.GroupResource]*Store
	// measured are the resources that UpdateMetrics has set gauges for.
	measured map[schema.GroupResource]watch.Usage
}

var _ generic.RESTOptionsGetter = (*RESTOptionsGetter)(nil)

// NewRESTOptionsGetter makes a Getter.
func NewRESTOptionsGetter(cfg Backend, resources Resources) *RESTOptionsGetter {
	if cfg.DeleteCollectionWorkers == 0 {
		cfg.DeleteCollectionWorkers = 1
	}
	return &RESTOptionsGetter{cfg: cfg, resources: resources, stores: map[schema.GroupResource]*Store{}}
}

// Lookup returns the Store of a resource, or nil if no registry has asked for one yet.
func (g *RESTOptionsGetter) Lookup(gr schema.GroupResource) *Store {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.stores[g.resources.StoredAs(gr)]
}

// GetRESTOptions implements generic.RESTOptionsGetter. It follows upstream's
// storage factory (apiserver/pkg/server/storage/storage_factory.go).
func (g *RESTOptionsGetter) GetRESTOptions(
	gr schema.GroupResource, example runtime.Object,
) (generic.RESTOptions, error) {
	store, versioner, err := g.resources.StoreConfig(gr, example)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	backend := storagebackend.NewDefaultConfig(DefaultKeyPrefix, store.Codec)
	backend.EncodeVersioner = versioner
	if g.cfg.Transformers != nil {
		backend.Transformer = g.cfg.Transformers(gr)
	}
	return generic.RESTOptions{
		StorageConfig:           backend.ForResource(gr),
		Decorator:               g.decorator(store),
		EnableGarbageCollection: !g.cfg.NoGarbageCollection,
		DeleteCollectionWorkers: g.cfg.DeleteCollectionWorkers,
		ResourcePrefix:          store.ResourcePrefix,
	}, nil
}

// decorator returns what makes the Store of one resource. It keeps only the first Store
// of a resource: two registries over one resource (events) have Stores with equal
// configurations.
func (g *RESTOptionsGetter) decorator(cfg Config) generic.StorageDecorator {
	return func(
		backend *storagebackend.ConfigForResource,
		resourcePrefix string,
		_ func(runtime.Object) (string, error),
		newFunc, _ func() runtime.Object,
		attrs apistorage.AttrFunc,
		triggers apistorage.IndexerFuncs,
		_ *cache.Indexers,
	) (apistorage.Interface, factory.DestroyFunc, error) {
		cfg := cfg
		cfg.Store, cfg.Feed = g.cfg.Store, g.cfg.Feed
		cfg.ResourcePrefix, cfg.NewFunc, cfg.AttrFunc = resourcePrefix, newFunc, attrs
		cfg.Transformer = backend.Transformer
		if cfg.IndexFields == nil {
			cfg.IndexFields = indexFields(triggers)
		}
		s := New(cfg)
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, ok := g.stores[cfg.GroupResource]; !ok {
			g.stores[cfg.GroupResource] = s
		}
		return s, func() {}, nil
	}
}

// indexFields returns the fields by which upstream's watch cache indexes watchers. It
// leaves out metadata.name: a range of the feed can name one object without an index.
func indexFields(triggers apistorage.IndexerFuncs) []string {
	var fields []string
	for field := range triggers {
		if field != "metadata.name" {
			fields = append(fields, field)
		}
	}
	return fields
}

// WatchMetadata makes a MetadataWatch of a resource. The owner is that of a resource of which the Getter has no Store.
func (g *RESTOptionsGetter) WatchMetadata(gr schema.GroupResource, owner sqlstore.Owner) *MetadataWatch {
	stored := g.resources.StoredAs(gr)
	resource := sqlstore.Resource{Group: stored.Group, Resource: stored.Resource, Owner: owner}
	prefix := "/" + stored.Group + "/" + stored.Resource
	if s := g.Lookup(gr); s != nil {
		resource, prefix = s.Resource(), s.Prefix()
	}
	var transformer value.Transformer
	if g.cfg.Transformers != nil {
		transformer = g.cfg.Transformers(gr)
	}
	return NewMetadataWatch(g.cfg.Store, g.cfg.Feed, resource, DefaultKeyPrefix+prefix+"/", transformer)
}

// NewRawStorage makes the storage of a resource without a registry, for objects whose keys the
// caller makes. prefix is that of the keys, without a slash at its end.
func NewRawStorage(
	options generic.RESTOptionsGetter, gr schema.GroupResource, newFunc func() runtime.Object,
) (store apistorage.Interface, prefix string, err error) {
	opts, err := options.GetRESTOptions(gr, newFunc())
	if err != nil {
		return nil, "", err
	}
	prefix = "/" + opts.ResourcePrefix
	store, _, err = opts.Decorator(opts.StorageConfig, prefix, nil, newFunc, nil,
		apistorage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		return nil, "", fmt.Errorf("storage of %s: %w", gr, err)
	}
	return store, prefix, nil
}

// Stats returns the number and the average size of the objects of a resource, built-in
// or custom, by its name ("pods", "widgets.example.com"). It never blocks and makes no
// query. Like upstream's tracker, it returns flowcontrolrequest.ObjectCountNotFoundErr
// for a resource that has not been counted yet.
func (g *RESTOptionsGetter) Stats(resource string) (apistorage.Stats, error) {
	kept := g.resources.StoredAs(schema.ParseGroupResource(resource))
	r := sqlstore.Resource{Group: kept.Group, Resource: kept.Resource, Owner: sqlstore.BuiltIn}
	usage, known := g.cfg.Feed.Usage(r)
	if !known {
		return apistorage.Stats{}, flowcontrolrequest.ObjectCountNotFoundErr
	}
	if usage.Objects == 0 && g.Lookup(kept) == nil {
		r.Owner = sqlstore.Custom
		usage, _ = g.cfg.Feed.Usage(r)
	}
	return StatsOf(usage), nil
}

// UpdateMetrics sets upstream's gauges of what is stored: apiserver_storage_objects,
// apiserver_resource_objects and apiserver_resource_size_estimate_bytes. As upstream
// does, it also reports resources with a Store and no objects.
func (g *RESTOptionsGetter) UpdateMetrics() {
	all := g.cfg.Feed.AllUsage()
	if all == nil {
		return
	}
	usage := make(map[schema.GroupResource]watch.Usage, len(all))
	g.mu.Lock()
	defer g.mu.Unlock()
	for gr := range g.stores {
		usage[gr] = watch.Usage{}
	}
	for r, u := range all {
		gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		if r.Owner == sqlstore.BuiltIn || g.stores[gr] == nil {
			usage[gr] = u
		}
	}
	for gr, u := range usage {
		metrics.UpdateStoreStats(gr, StatsOf(u), nil)
	}
	for gr := range g.measured {
		if _, ok := usage[gr]; !ok {
			metrics.DeleteStoreStats(gr)
		}
	}
	g.measured = usage
}
