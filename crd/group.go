package crd

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/client-go/tools/cache"

	"byre/apiserver/handlers"
	"byre/apiserver/process"
	"byre/apiserver/query"
	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/encoding"
	"byre/crd/instances"
	"byre/sqlstore"
	"byre/watch"
)

// group is the API group apiextensions.k8s.io: the registry of definitions.
type group struct {
	scheme *apiruntime.Scheme
	codecs serializer.CodecFactory
	rest   *customresourcedefinition.REST
	store  *storage.Store // of rest
	feed   *watch.Feed
}

// definitions is the resource of the definitions. Its keys are those of a stock
// kube-apiserver.
var definitions = apiextensions.Resource("customresourcedefinitions")

func newGroup(d process.Dependencies) (*group, error) {
	// Custom resources use this scheme too, for the options and the Status that are sent
	// with them.
	g := &group{scheme: handlers.NewScheme(install.Install), feed: d.Storage.Feed}
	g.codecs = handlers.NewCodecs(g.scheme)
	var err error
	stored := definitionStorage{storage.GroupResources(g.scheme, g.codecs, d.EffectiveVersion, definitions)}
	if g.rest, err = customresourcedefinition.NewREST(g.scheme,
		storage.NewRESTOptionsGetter(d.Storage, stored)); err != nil {
		return nil, fmt.Errorf("crd: storage of definitions: %w", err)
	}
	g.rest.CreateStrategy, g.rest.UpdateStrategy = definitionCreation{g.rest.CreateStrategy},
		definitionUpdate{g.rest.UpdateStrategy}
	var ok bool
	if g.store, ok = g.rest.Storage.Storage.(*storage.Store); !ok {
		return nil, fmt.Errorf("crd: storage of definitions is a %T", g.rest.Storage.Storage)
	}
	return g, nil
}

// definitionStorage describes how definitions are stored: with the generation that writes of
// instances require, and so that a definition with instances can't be deleted.
type definitionStorage struct{ storage.Resources }

// StoreConfig implements storage.Resources.
func (s definitionStorage) StoreConfig(
	gr schema.GroupResource, example apiruntime.Object,
) (storage.Config, apiruntime.GroupVersioner, error) {
	config, versioner, err := s.Resources.StoreConfig(gr, example)
	config.Generation = instances.Generation
	config.Contents = func(name string) *sqlstore.Resource {
		plural, group, _ := strings.Cut(name, ".")
		return &sqlstore.Resource{Group: group, Resource: plural, Owner: sqlstore.Custom}
	}
	return config, versioner, err
}

// perVersion undoes, in a definition that is to be validated, a part of upstream's conversion: fields by which
// instances can be selected that all versions share are moved out of the versions, and so is a schema that they
// share. Validation looks for the schema of such fields beside them, and refuses a definition whose versions share
// the fields and have different schemas. The conversion to what is stored gives the same for both.
func perVersion(object apiruntime.Object) {
	spec := &object.(*apiextensions.CustomResourceDefinition).Spec
	if len(spec.SelectableFields) == 0 || spec.Validation != nil {
		return
	}
	for i := range spec.Versions {
		spec.Versions[i].SelectableFields = spec.SelectableFields
	}
	spec.SelectableFields = nil
}

// definitionCreation is upstream's strategy of a create with perVersion, and definitionUpdate that of an update.
type (
	definitionCreation struct{ rest.RESTCreateStrategy }
	definitionUpdate   struct{ rest.RESTUpdateStrategy }
)

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s definitionCreation) PrepareForCreate(ctx context.Context, object apiruntime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, object)
	perVersion(object)
}

// PrepareForUpdate implements rest.RESTUpdateStrategy. Upstream's compares the objects as they were converted.
func (s definitionUpdate) PrepareForUpdate(ctx context.Context, object, old apiruntime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, object, old)
	perVersion(object)
}

// definitionREST is the registry of definitions, in which the deletion of a collection deletes
// each definition as a deletion of its own: with its instances. Upstream's deletes the
// definitions at once, and leaves the instances behind.
type definitionREST struct{ *customresourcedefinition.REST }

// DeleteCollection implements rest.CollectionDeleter.
func (r definitionREST) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
	selected *internalversion.ListOptions,
) (apiruntime.Object, error) {
	list, err := r.List(ctx, selected)
	if err != nil {
		return nil, err
	}
	for _, crd := range list.(*apiextensions.CustomResourceDefinitionList).Items {
		if _, _, err := r.Delete(ctx, crd.Name, validate, options.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return list, nil
}

// api makes the handler of the group, which it enters in discovery and OpenAPI, and the table of definitions.
func (g *group) api(d process.Dependencies, delegate http.Handler) (*handlers.API, *query.BuiltinTables, error) {
	version := apiextensionsv1.SchemeGroupVersion.Version
	served := handlers.Group{
		Name:     apiextensions.GroupName,
		Versions: []string{version},
		Storage: map[string]map[string]rest.Storage{version: {
			"customresourcedefinitions":        definitionREST{g.rest},
			"customresourcedefinitions/status": customresourcedefinition.NewStatusREST(g.scheme, g.rest),
		}},
		Scheme:         g.scheme,
		Codecs:         g.codecs,
		ParameterCodec: metav1.ParameterCodec,
	}
	api, schemas, err := d.ServeGroup("crd", served, generated.GetOpenAPIDefinitions, delegate)
	if err != nil {
		return nil, nil, err
	}
	tables, err := query.NewBuiltinTables([]handlers.Group{served}, func(schema.GroupResource) *storage.Store {
		return g.store
	}, schemas)
	return api, tables, err
}

var _ definitionStore = (*group)(nil)
var _ instances.SourceReader = (*group)(nil)

// CachedRevision implements definitionStore.
func (g *group) CachedRevision(name string) (int64, bool) {
	e, _, loaded := g.feed.Lookup(sqlstore.Key{Group: definitions.Group, Resource: definitions.Resource, Name: name})
	if e == nil {
		return 0, loaded
	}
	return e.Revision, loaded
}

// Sync implements definitionStore.
func (g *group) Sync(ctx context.Context) (int64, error) {
	revision, err := g.feed.Latest(ctx)
	return revision, changes.APIError(err)
}

// Get implements definitionStore.
func (g *group) Get(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	text, err := g.read(ctx, name, "")
	if err != nil {
		return nil, err
	}
	return instances.DecodeStripped(text.Body(), text.ResourceVersion())
}

// read returns the stored JSON of a definition, in a state that is not older than
// resourceVersion. It fails with NotFound if there is no definition of that name.
func (g *group) read(ctx context.Context, name, resourceVersion string) (encoding.Encoded, error) {
	key, err := g.rest.KeyFunc(ctx, name)
	if err != nil {
		return encoding.Encoded{}, err
	}
	text, err := g.store.GetEncoded(ctx, key, apistorage.GetOptions{ResourceVersion: resourceVersion}, g.store.Stored())
	return text, storeerr.InterpretGetError(err, definitions, name)
}

// ForgetInstances implements definitionStore.
func (g *group) ForgetInstances(resource schema.GroupResource) {
	g.feed.Forget(sqlstore.Resource{Group: resource.Group, Resource: resource.Resource, Owner: sqlstore.Custom})
}

// IsReplaced implements instances.SourceReader.
func (g *group) IsReplaced(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	if revision, loaded := g.CachedRevision(crd.Name); loaded && revision == instances.Revision(crd) {
		return false, nil
	}
	text, err := g.read(ctx, crd.Name, "0")
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now, err := instances.DecodeStripped(text.Body(), text.ResourceVersion())
	return err == nil &&
		(now.UID != crd.UID || now.Annotations[instances.SpecHash] != crd.Annotations[instances.SpecHash]), err
}

// Source implements instances.SourceReader. The source costs little memory: it refers
// to the bytes that the watch cache holds.
func (g *group) Source(ctx context.Context, name, resourceVersion string) (instances.Source, error) {
	text, err := g.read(ctx, name, resourceVersion)
	switch {
	case apierrors.IsNotFound(err):
		return nil, instances.ErrReplaced
	case err != nil:
		return nil, err
	}
	decoder := g.codecs.UniversalDecoder(apiextensionsv1.SchemeGroupVersion)
	return func() (*apiextensionsv1.CustomResourceDefinition, error) {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		return crd, apiruntime.DecodeInto(decoder, text.AppendJSON(make([]byte, 0, text.Len()), true), crd)
	}, nil
}

// listWatch lists and watches the stripped definitions for the informer. It reads the store
// and not the API: over HTTP every definition would be decoded as a whole.
//
// Each watch has a goroutine, which Stop joins; the informer calls Stop.
type listWatch struct{ *cache.ListWatch }

// newInformer makes the informer of the definitions.
func (g *group) newInformer(resync time.Duration) cache.SharedIndexInformer {
	reader := &cache.ListWatch{ListWithContextFunc: g.list, WatchFuncWithContext: g.watch}
	return cache.NewSharedIndexInformer(listWatch{reader}, &apiextensionsv1.CustomResourceDefinition{}, resync,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// IsWatchListSemanticsUnSupported makes the reflector call List, which decodes on all
// processors.
func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

// selectionOf converts the informer's options to the store's. It asks for no pages.
func selectionOf(options metav1.ListOptions) apistorage.ListOptions {
	predicate := apistorage.Everything
	predicate.AllowWatchBookmarks = options.AllowWatchBookmarks
	return apistorage.ListOptions{
		ResourceVersion:      options.ResourceVersion,
		ResourceVersionMatch: options.ResourceVersionMatch,
		Predicate:            predicate,
		Recursive:            true,
	}
}

func (g *group) list(ctx context.Context, options metav1.ListOptions) (apiruntime.Object, error) {
	listed, err := g.store.ListEncoded(ctx, g.store.Prefix(), selectionOf(options), g.store.Stored())
	if err != nil {
		return nil, storeerr.InterpretListError(err, definitions)
	}
	listed.KeepItems()
	var texts []encoding.Encoded
	for text, err := range listed.Items {
		if err != nil {
			return nil, storeerr.InterpretListError(err, definitions)
		}
		texts = append(texts, text)
	}
	list := &apiextensionsv1.CustomResourceDefinitionList{
		ListMeta: metav1.ListMeta{ResourceVersion: listed.ResourceVersion},
		Items:    make([]apiextensionsv1.CustomResourceDefinition, len(texts)),
	}
	var decoders errgroup.Group
	decoders.SetLimit(runtime.GOMAXPROCS(0))
	for i, text := range texts {
		decoders.Go(func() error {
			crd, err := instances.DecodeStripped(text.Body(), text.ResourceVersion())
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			list.Items[i] = *crd
			return nil
		})
	}
	return list, decoders.Wait()
}

func (g *group) watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	events, err := g.store.WatchEncoded(ctx, g.store.Prefix(), selectionOf(options), g.store.Stored())
	if err != nil {
		return nil, err
	}
	stream, ctx := storage.NewEventStream(ctx)
	go stream.Run(ctx, func(ctx context.Context) error {
		defer events.Close()
		for {
			batch, err := events.Next(ctx)
			if err != nil {
				return err
			}
			for _, event := range batch {
				crd, err := instances.DecodeStripped(event.Object.Body(), event.Object.ResourceVersion())
				if err != nil {
					return apierrors.NewInternalError(err)
				}
				if err := stream.Send(ctx, apiwatch.Event{Type: event.Type, Object: crd}); err != nil {
					return err
				}
			}
		}
	})
	return definitionWatch{stream}, nil
}

// definitionWatch is a watch of the stripped definitions.
type definitionWatch struct{ storage.EventStream }

// Stop implements watch.Interface. It waits for the goroutine.
func (w definitionWatch) Stop() {
	w.EventStream.Stop()
	for range w.ResultChan() { // until it is closed
	}
}
