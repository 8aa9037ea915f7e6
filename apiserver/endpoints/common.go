package endpoints

import (
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/component-base/compatibility"
	openapicommon "k8s.io/kube-openapi/pkg/common"

	"byre/apiserver/discovery"
	"byre/apiserver/objectstore"
	"byre/apiserver/openapi"
)

// Common is what the servers of a chain have in common. All but Serving and
// Build are required.
type Common struct {
	// Storage says where objects are kept.
	Storage objectstore.GetterConfig
	// Effective is the version that the server emulates.
	Effective compatibility.EffectiveVersion
	// Serving is what all resources have in common; its TypeConverter is of the
	// built-in groups.
	Serving
	// Discovery and OpenAPI are told what is served; they take entries at any
	// time.
	Discovery *discovery.Registry
	OpenAPI   *openapi.Service
	// Build identifies the program in the documents of OpenAPI; see
	// openapi.BuildIdentity.
	Build string
}

// Check says what is missing.
func (c *Common) Check() error {
	if c.Effective == nil || c.Discovery == nil || c.OpenAPI == nil {
		return errors.New("the fields Effective, Discovery and OpenAPI are required")
	}
	return nil
}

// Own is the storage of types that are not built in. Their keys begin, like
// those of a stock server that is not kube-apiserver itself, with group and
// resource.
func (c *Common) Own(scheme *runtime.Scheme, codecs runtime.StorageSerializer, resources ...schema.GroupResource) *objectstore.Getter {
	kept := c.Storage
	kept.Scheme, kept.Serializer = scheme, codecs
	kept.Encoding = serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, c.Effective)
	kept.Cohabitants, kept.DefaultedOnRead = nil, nil
	kept.Prefixes = map[schema.GroupResource]string{}
	for _, gr := range resources {
		kept.Prefixes[gr] = gr.Group + "/" + gr.Resource
	}
	return objectstore.NewRESTOptionsGetter(kept)
}

// ServeOwn serves a group of types that are not built in, in discovery and, as a
// source of the name, in OpenAPI. Other requests go on to next.
func (c *Common) ServeOwn(name string, group Group, definitions openapicommon.GetOpenAPIDefinitions, next http.Handler) (*API, error) {
	groups := []Group{group}
	names, err := ModelNames(groups)
	if err != nil {
		return nil, err
	}
	models := openapi.NewModels(c.Effective.EmulationVersion().String(), definitions, group.Scheme)
	serving := c.Serving
	serving.TypeConverter = models.TypeConverter(names...)
	api, err := New(Config{
		Groups:    groups,
		Serving:   serving,
		Discovery: c.Discovery,
		NotFound:  next,
	})
	if err != nil {
		return nil, err
	}
	c.OpenAPI.Set(name, models.Source(api.Roots(), c.Build))
	return api, nil
}
