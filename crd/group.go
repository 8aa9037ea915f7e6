package crd

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"byre/apiserver/delegation"
	"byre/apiserver/endpoints"
	"byre/apiserver/objectstore"
	"byre/sqlstore"
	"byre/watch"
)

// group is apiextensions.k8s.io itself.
type group struct {
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	rest   *customresourcedefinition.REST
	store  *objectstore.Store // that rest keeps them in
	feed   *watch.Feed
}

// definitions is the resource that is kept here; its keys are a stock server's.
var definitions = apiextensions.Resource("customresourcedefinitions")

func newGroup(d delegation.Dependencies) (*group, error) {
	// Custom resources need this scheme too, for the options and the Status that
	// travel with them.
	g := &group{scheme: endpoints.NewScheme(install.Install), feed: d.Storage.Feed}
	g.codecs = endpoints.NewCodecs(g.scheme)
	var err error
	if g.rest, err = customresourcedefinition.NewREST(g.scheme, d.RESTOptions(g.scheme, g.codecs, definitions)); err != nil {
		return nil, fmt.Errorf("crd: storage of definitions: %w", err)
	}
	var ok bool
	if g.store, ok = g.rest.Storage.Storage.(*objectstore.Store); !ok {
		return nil, fmt.Errorf("crd: storage of definitions is a %T", g.rest.Storage.Storage)
	}
	return g, nil
}

// api serves the group, in discovery and OpenAPI too.
func (g *group) api(d delegation.Dependencies, delegate http.Handler) (*endpoints.API, error) {
	version := apiextensionsv1.SchemeGroupVersion.Version
	return d.ServeGroup("crd", endpoints.Group{
		Name:     apiextensions.GroupName,
		Versions: []string{version},
		Storage: map[string]map[string]rest.Storage{version: {
			"customresourcedefinitions":        g.rest,
			"customresourcedefinitions/status": customresourcedefinition.NewStatusREST(g.scheme, g.rest),
		}},
		Scheme:         g.scheme,
		Codecs:         g.codecs,
		ParameterCodec: metav1.ParameterCodec,
	}, generated.GetOpenAPIDefinitions, delegate)
}

// known is the revision of a definition that the feed has; see table.
func (g *group) known(name string) (int64, bool) {
	e, _, loaded := g.feed.Lookup(sqlstore.Key{Group: definitions.Group, Resource: definitions.Resource, Name: name})
	if e == nil {
		return 0, loaded
	}
	return e.Revision, loaded
}

// fresh waits until the feed has what is stored now; see table.
func (g *group) fresh(ctx context.Context) (int64, error) { return g.feed.Latest(ctx) }

// latest returns a definition as it is now, with its schemas.
func (g *group) latest(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	internal, err := g.rest.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	return crd, g.scheme.Convert(internal, crd, nil)
}

// source returns a definition as it is stored, not older than a resourceVersion.
func (g *group) source(ctx context.Context, name, resourceVersion string) (*source, error) {
	key, err := g.rest.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	text, err := g.store.GetEncoded(ctx, key, storage.GetOptions{ResourceVersion: resourceVersion})
	switch {
	case storage.IsNotFound(err):
		return nil, errReplaced
	case err != nil:
		return nil, storeerr.InterpretGetError(err, definitions, name)
	}
	return &source{text: text, decoder: g.codecs.UniversalDecoder(apiextensionsv1.SchemeGroupVersion)}, nil
}
