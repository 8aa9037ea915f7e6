package aggregator

import (
	"errors"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/compatibility"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"
	apiservice "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/apiserver/openapi"
	"byre/apiserver/storage"
)

// Config is what New needs. All but Serving and Build are required.
type Config struct {
	// Storage says where objects are kept. Its Scheme, Serializer, Encoding,
	// Prefixes and Cohabitants are of no account: this package brings its own.
	Storage storage.GetterConfig
	// Effective is the version that the server emulates.
	Effective compatibility.EffectiveVersion
	// Serving is what all resources of the server have in common. Its
	// TypeConverter is of no account.
	endpoints.Serving
	// Discovery and OpenAPI are told what is served.
	Discovery *discovery.Registry
	OpenAPI   *openapi.Service
	// Build identifies the program in the documents of OpenAPI; see
	// openapi.BuildIdentity.
	Build string
}

// Server is a handler of APIServices.
type Server struct {
	services *endpoints.API
}

// groupPriority is the place of apiregistration.k8s.io in discovery: before all
// other groups, as in kube-apiserver.
const groupPriority = 20000

// New makes a Server; requests for what it does not serve go on to next. It
// starts nothing.
func New(c Config, next http.Handler) (*Server, error) {
	if c.Discovery == nil || c.OpenAPI == nil || c.Effective == nil {
		return nil, errors.New("aggregator: Discovery, OpenAPI and Effective are required")
	}
	scheme := newScheme()
	groups := []endpoints.Group{servicesGroup(c, scheme)}
	names, err := endpoints.ModelNames(groups)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	models := openapi.NewModels(c.Effective.EmulationVersion().String(), generated.GetOpenAPIDefinitions, scheme)
	serving := c.Serving
	serving.TypeConverter = models.TypeConverter(names...)
	services, err := endpoints.New(endpoints.Config{
		Groups:    groups,
		Serving:   serving,
		Discovery: c.Discovery,
		NotFound:  next,
	})
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	c.OpenAPI.Set("registration", models.Source(services.Roots(), c.Build))
	return &Server{services: services}, nil
}

// servicesGroup is apiregistration.k8s.io itself.
func servicesGroup(c Config, scheme *runtime.Scheme) endpoints.Group {
	codecs := newCodecs(scheme)
	kept := c.Storage
	kept.Scheme, kept.Serializer = scheme, codecs
	kept.Encoding = serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, c.Effective)
	kept.Prefixes, kept.Cohabitants = nil, nil
	services := apiservice.NewREST(scheme, storage.NewRESTOptionsGetter(kept))
	version := apiregistrationv1.SchemeGroupVersion.Version
	return endpoints.Group{
		Name:     apiregistration.GroupName,
		Versions: []string{version},
		Priority: groupPriority,
		Storage: map[string]map[string]rest.Storage{
			version: {
				"apiservices":        services,
				"apiservices/status": apiservice.NewStatusREST(scheme, services),
			},
		},
		Scheme:         scheme,
		Codecs:         codecs,
		ParameterCodec: metav1.ParameterCodec,
	}
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned,
		&metav1.Status{},
		&metav1.WatchEvent{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return scheme
}

func newCodecs(scheme *runtime.Scheme) serializer.CodecFactory {
	var options []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToJSON) {
		options = append(options, serializer.WithStreamingCollectionEncodingToJSON())
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToProtobuf) {
		options = append(options, serializer.WithStreamingCollectionEncodingToProtobuf())
	}
	return serializer.NewCodecFactory(scheme, options...)
}

// ServeHTTP serves APIServices.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.services.ServeHTTP(w, req)
}
