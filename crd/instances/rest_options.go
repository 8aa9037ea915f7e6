package instances

import (
	"context"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"byre/apiserver/objectstore"
	"byre/crd/definition"
	"byre/sqlstore"
)

// keyPrefix and the prefix made of group and resource are those of a stock
// kube-apiserver; encryption at rest authenticates values by them.
const keyPrefix = "/registry"

// restOptionsGetter gives the registry of one version its store. The stores of a
// definition's versions keep the same rows; each decodes to its own version.
type restOptionsGetter struct {
	config  objectstore.GetterConfig
	derived *derived
	version schema.GroupVersion
	ending  *objectstore.Ending
	// selectable are the fields that lists may be narrowed by.
	selectable []apiextensionsv1.SelectableField
}

// indexFields are the fields that lists are narrowed by without looking at every
// instance, where the stored bytes have them.
func (g *restOptionsGetter) indexFields() []string {
	if g.version != g.derived.storageVersion || !definition.SelectableFieldsEnabled() {
		return nil
	}
	var names []string
	for _, field := range g.selectable {
		names = append(names, strings.TrimPrefix(field.JSONPath, "."))
	}
	return names
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g *restOptionsGetter) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	backend := storagebackend.NewDefaultConfig(keyPrefix, g.derived.storageCodec(g.version))
	backend.EncodeVersioner = g.derived.storageVersion
	backend.StorageObjectCountTracker = g.config.ObjectCounts
	if g.config.Transformers != nil {
		backend.Transformer = g.config.Transformers(resource)
	}
	workers := g.config.DeleteCollectionWorkers
	if workers == 0 {
		workers = 1
	}
	return generic.RESTOptions{
		StorageConfig:             backend.ForResource(resource),
		Decorator:                 g.decorate,
		EnableGarbageCollection:   !g.config.NoGarbageCollection,
		DeleteCollectionWorkers:   workers,
		ResourcePrefix:            resource.Group + "/" + resource.Resource,
		StorageObjectCountTracker: g.config.ObjectCounts,
	}, nil
}

func (g *restOptionsGetter) decorate(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	_ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	attrs storage.AttrFunc,
	_ storage.IndexerFuncs,
	_ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	var ahead func(context.Context, [][]byte)
	if codec, ok := config.Codec.(*convertingCodec); ok {
		ahead = codec.ahead
	}
	store, err := objectstore.New(objectstore.Config{
		Store:          g.config.Store,
		Feed:           g.config.Feed,
		GroupResource:  config.GroupResource,
		Owner:          sqlstore.Custom,
		ResourcePrefix: resourcePrefix,
		KeyPrefix:      config.Prefix,
		Codec:          config.Codec,
		DecodeAhead:    ahead,
		Plain:          unstructured.UnstructuredJSONScheme,
		StorageVersion: g.derived.storageVersion,
		Form:           g.derived.form,
		View:           g.derived.views[g.version.Version],
		Lossy:          g.version != g.derived.storageVersion,
		NewFunc:        newFunc,
		NewListFunc:    newListFunc,
		AttrFunc:       attrs,
		IndexFields:    g.indexFields(),
		Ending:         g.ending,
		Transformer:    config.Transformer,
	})
	if err != nil {
		return nil, nil, err
	}
	return store, func() {}, nil
}
