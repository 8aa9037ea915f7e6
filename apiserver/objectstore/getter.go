package objectstore

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"

	"byre/sqlstore"
	"byre/watch"
)

// GetterConfig says how a Getter builds Stores. Store, Feed, Serializer,
// Encoding and Program are required. Builtin is that of the built-in resources.
type GetterConfig struct {
	Store *sqlstore.Store
	Feed  *watch.Feed
	// Serializer is the scheme's codec factory.
	Serializer runtime.StorageSerializer
	// Scheme is the scheme; where it is nil decoding looks through each value
	// once more, for its kind.
	Scheme *runtime.Scheme
	// Encoding picks the storage version and the version in memory of a
	// resource.
	Encoding serverstorage.ResourceEncodingConfig
	// Prefixes are the key prefixes that differ from the resource's name.
	Prefixes map[schema.GroupResource]string
	// Cohabitants are resources kept as another one.
	Cohabitants map[schema.GroupResource]schema.GroupResource
	// DefaultedOnRead are resources whose strategies leave defaults open that the
	// next decode fills in. Their objects are stored with these defaults, as bytes
	// are answered as they are stored.
	DefaultedOnRead map[schema.GroupResource]bool
	// Transformers gives the encryption of a resource; nil, or a nil result,
	// means none.
	Transformers func(schema.GroupResource) value.Transformer
	// Program is the part of a record's Form that says which version of the
	// API the program wrote it by, such as "v1.36".
	Program string
	// DeleteCollectionWorkers is for registries; 0 means 1.
	DeleteCollectionWorkers int
	// NoGarbageCollection has registries delete an owner at once, whatever its
	// dependents.
	NoGarbageCollection bool
	// ObjectCounts is told how many objects each resource has; nil is fine.
	ObjectCounts flowcontrolrequest.StorageObjectCountTracker
}

// Getter is a generic.RESTOptionsGetter whose registries get Stores, and which
// remembers them by resource.
type Getter struct {
	cfg    GetterConfig
	mu     sync.RWMutex
	stores map[schema.GroupResource]*Store
	// measured are the resources that UpdateMetrics has set gauges for.
	measured map[schema.GroupResource]watch.Usage
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
	return g.stores[g.storedAs(gr)]
}

// GetRESTOptions implements generic.RESTOptionsGetter. It follows upstream's
// storage factory (apiserver/pkg/server/storage/storage_factory.go).
func (g *Getter) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	stored := g.storedAs(gr)
	codec, versioner, version, err := g.codec(gr, stored, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage codec of %s: %w", gr, err)
	}
	backend := storagebackend.NewDefaultConfig(defaultKeyPrefix, codec)
	backend.EncodeVersioner = versioner
	backend.StorageObjectCountTracker = g.cfg.ObjectCounts
	if g.cfg.Transformers != nil {
		backend.Transformer = g.cfg.Transformers(gr)
	}
	prefix, ok := g.cfg.Prefixes[stored]
	if !ok {
		prefix = strings.ToLower(stored.Resource)
	}
	return generic.RESTOptions{
		StorageConfig:             backend.ForResource(gr),
		Decorator:                 g.decorator(stored, version),
		EnableGarbageCollection:   !g.cfg.NoGarbageCollection,
		DeleteCollectionWorkers:   g.cfg.DeleteCollectionWorkers,
		ResourcePrefix:            prefix,
		StorageObjectCountTracker: g.cfg.ObjectCounts,
	}, nil
}

func (g *Getter) storedAs(gr schema.GroupResource) schema.GroupResource {
	if stored, ok := g.cfg.Cohabitants[gr]; ok {
		return stored
	}
	return gr
}

func (g *Getter) codec(gr, stored schema.GroupResource, example runtime.Object) (runtime.Codec, runtime.GroupVersioner, schema.GroupVersion, error) {
	fail := func(err error) (runtime.Codec, runtime.GroupVersioner, schema.GroupVersion, error) {
		return nil, nil, schema.GroupVersion{}, err
	}
	var version schema.GroupVersion
	var err error
	if compatible, ok := g.cfg.Encoding.(serverstorage.CompatibilityResourceEncodingConfig); ok {
		version, err = compatible.BackwardCompatibileStorageEncodingFor(stored, example)
	} else {
		version, err = g.cfg.Encoding.StorageEncodingFor(stored)
	}
	if err != nil {
		return fail(err)
	}
	memory, err := g.cfg.Encoding.InMemoryEncodingFor(gr)
	if err != nil {
		return fail(err)
	}
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:   runtime.ContentTypeJSON,
		StorageSerializer:  g.cfg.Serializer,
		StorageVersion:     version,
		MemoryVersion:      memory,
		DecoderDecoratorFn: g.decoders,
	})
	if err != nil {
		return fail(err)
	}
	if g.cfg.DefaultedOnRead[stored] {
		codec = roundTripCodec{codec}
	}
	return codec, versioner, version, nil
}

// roundTripCodec encodes what a decode of the encoding would give.
type roundTripCodec struct{ runtime.Codec }

// Encode implements runtime.Encoder.
func (c roundTripCodec) Encode(obj runtime.Object, w io.Writer) error {
	var first bytes.Buffer
	if err := c.Codec.Encode(obj, &first); err != nil {
		return err
	}
	decoded, _, err := c.Decode(first.Bytes(), nil, nil)
	if err != nil {
		return err
	}
	return c.Codec.Encode(decoded, w)
}

// decoders puts one before upstream's that finds the kind where encoders put
// it: to find it, upstream's parses the whole value, and then parses it again.
func (g *Getter) decoders(all []runtime.Decoder) []runtime.Decoder {
	if g.cfg.Scheme == nil {
		return all
	}
	quick := json.NewSerializerWithOptions(kindFirst{}, g.cfg.Scheme, g.cfg.Scheme, json.SerializerOptions{})
	return append([]runtime.Decoder{quick}, all...)
}

// kindFirst reads the type of an object that begins with it, and leaves others
// to upstream.
type kindFirst struct{}

var _ json.MetaFactory = kindFirst{}

// Interpret implements json.MetaFactory.
func (kindFirst) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	s := scanner{data, 0}
	if s.member() && string(s.key()) == "kind" {
		kind, plain := s.plain()
		if plain && s.member() && string(s.key()) == "apiVersion" {
			if version, plain := s.plain(); plain {
				if gv, err := schema.ParseGroupVersion(version); err == nil {
					gvk := gv.WithKind(kind)
					return &gvk, nil
				}
			}
		}
	}
	return json.DefaultMetaFactory.Interpret(data)
}

// decorator makes the Store of one resource, and remembers the first one: two
// registries over one resource (events) have Stores that differ in nothing.
func (g *Getter) decorator(stored schema.GroupResource, version schema.GroupVersion) generic.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource,
		resourcePrefix string,
		_ func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object,
		attrs storage.AttrFunc,
		triggers storage.IndexerFuncs,
		_ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		s, err := New(Config{
			Store:          g.cfg.Store,
			Feed:           g.cfg.Feed,
			GroupResource:  stored,
			Owner:          sqlstore.BuiltIn,
			ResourcePrefix: resourcePrefix,
			KeyPrefix:      config.Prefix,
			Codec:          config.Codec,
			StorageVersion: version,
			Lossy:          g.cfg.DefaultedOnRead[stored],
			Form:           g.cfg.Program + "/" + version.String(),
			NewFunc:        newFunc,
			NewListFunc:    newListFunc,
			AttrFunc:       attrs,
			IndexFields:    indexFields(triggers),
			Transformer:    config.Transformer,
		})
		if err != nil {
			return nil, nil, err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, ok := g.stores[stored]; !ok {
			g.stores[stored] = s
		}
		return s, func() {}, nil
	}
}

// indexFields takes over what upstream's watch cache indexes watchers by. It
// needs no help for metadata.name: ranges have names.
func indexFields(triggers storage.IndexerFuncs) []string {
	var fields []string
	for field := range triggers {
		if field != "metadata.name" {
			fields = append(fields, field)
		}
	}
	return fields
}
