package crd

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

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
	scheme *runtime.Scheme
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
	if g.rest, err = customresourcedefinition.NewREST(g.scheme, storage.NewRESTOptionsGetter(d.Storage, stored)); err != nil {
		return nil, fmt.Errorf("crd: storage of definitions: %w", err)
	}
	g.rest.CreateStrategy, g.rest.UpdateStrategy = definitionCreation{g.rest.CreateStrategy}, definitionUpdate{g.rest.UpdateStrategy}
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
func (s definitionStorage) StoreConfig(gr schema.GroupResource, example runtime.Object) (storage.Config, runtime.GroupVersioner, error) {
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
func perVersion(object runtime.Object) {
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
func (s definitionCreation) PrepareForCreate(ctx context.Context, object runtime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, object)
	perVersion(object)
}

// PrepareForUpdate implements rest.RESTUpdateStrategy. Upstream's compares the objects as they were converted.
func (s definitionUpdate) PrepareForUpdate(ctx context.Context, object, old runtime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, object, old)
	perVersion(object)
}

// definitionREST is the registry of definitions, in which the deletion of a collection deletes
// each definition as a deletion of its own: with its instances. Upstream's deletes the
// definitions at once, and leaves the instances behind.
type definitionREST struct{ *customresourcedefinition.REST }

// DeleteCollection implements rest.CollectionDeleter.
func (r definitionREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, selected *internalversion.ListOptions) (runtime.Object, error) {
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
	tables, err := query.NewBuiltinTables([]handlers.Group{served}, func(schema.GroupResource) *storage.Store { return g.store }, schemas)
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
	return err == nil && (now.UID != crd.UID || now.Annotations[instances.SpecHash] != crd.Annotations[instances.SpecHash]), err
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
		return crd, runtime.DecodeInto(decoder, text.AppendJSON(make([]byte, 0, text.Len()), true), crd)
	}, nil
}
