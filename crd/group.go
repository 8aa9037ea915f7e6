package crd

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	"byre/apiserver/endpoints"
	"byre/apiserver/openapi"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/watch"
)

// groupPriority is the place of apiextensions.k8s.io in discovery, as
// kube-apiserver has it.
const groupPriority = 16700

// group is apiextensions.k8s.io itself.
type group struct {
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	rest   *customresourcedefinition.REST
	feed   *watch.Feed
}

func newGroup(c Config) (*group, error) {
	g := &group{scheme: newScheme(), feed: c.Storage.Feed}
	g.codecs = newCodecs(g.scheme)
	kept := c.Storage
	kept.Scheme, kept.Serializer = g.scheme, g.codecs
	kept.Encoding = serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(g.scheme, c.Effective)
	kept.Prefixes, kept.Cohabitants = nil, nil
	var err error
	if g.rest, err = customresourcedefinition.NewREST(g.scheme, storage.NewRESTOptionsGetter(kept)); err != nil {
		return nil, fmt.Errorf("crd: storage of definitions: %w", err)
	}
	return g, nil
}

// api serves the group, in discovery and OpenAPI too.
func (g *group) api(c Config, next http.Handler) (*endpoints.API, error) {
	version := apiextensionsv1.SchemeGroupVersion.Version
	groups := []endpoints.Group{{
		Name:     apiextensions.GroupName,
		Versions: []string{version},
		Priority: groupPriority,
		Storage: map[string]map[string]rest.Storage{version: {
			"customresourcedefinitions":        g.rest,
			"customresourcedefinitions/status": customresourcedefinition.NewStatusREST(g.scheme, g.rest),
		}},
		Scheme:         g.scheme,
		Codecs:         g.codecs,
		ParameterCodec: metav1.ParameterCodec,
	}}
	names, err := endpoints.ModelNames(groups)
	if err != nil {
		return nil, fmt.Errorf("crd: %w", err)
	}
	models := openapi.NewModels(c.Effective.EmulationVersion().String(), generated.GetOpenAPIDefinitions, g.scheme)
	serving := c.Serving
	serving.TypeConverter = models.TypeConverter(names...)
	api, err := endpoints.New(endpoints.Config{
		Groups:    groups,
		Serving:   serving,
		Discovery: c.Discovery,
		NotFound:  next,
	})
	if err != nil {
		return nil, fmt.Errorf("crd: %w", err)
	}
	c.OpenAPI.Set("crd", models.Source(api.Roots(), c.Build))
	return api, nil
}

// read returns a definition with its schemas.
func (g *group) read(ctx context.Context, name string, options metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	internal, err := g.rest.Get(ctx, name, &options)
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	return crd, g.scheme.Convert(internal, crd, nil)
}

// known is the revision of a definition that the feed has; see table.
func (g *group) known(name string) (int64, bool) {
	e, _, loaded := g.feed.Lookup(sqlstore.Key{Group: apiextensions.GroupName, Resource: "customresourcedefinitions", Name: name})
	if e == nil {
		return 0, loaded
	}
	return e.Revision, loaded
}

// latest returns a definition as it is now, with its schemas.
func (g *group) latest(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	return g.read(ctx, name, metav1.GetOptions{})
}

// recent returns a definition as this server knows it, with its schemas.
func (g *group) recent(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	return g.read(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
}
