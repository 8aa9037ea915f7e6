package crd

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/apiserver/storage"
)

// Config is what New needs. Storage, Discovery and Effective are required.
type Config struct {
	// Storage says where objects are kept. Its Serializer, Encoding, Prefixes
	// and Cohabitants are of no account: this package brings its own.
	Storage storage.GetterConfig
	// Effective is the version that the server emulates.
	Effective compatibility.EffectiveVersion
	// Serving is what all resources of the server have in common.
	endpoints.Serving
	// Discovery is where definitions' groups are entered and removed.
	Discovery *discovery.Registry
	// Loopback reaches the whole server as itself.
	Loopback *restclient.Config
	// Logger is told what goes wrong outside of requests; nil means
	// slog.Default().
	Logger *slog.Logger
}

// Server is a handler of definitions and of what they define.
type Server struct {
	definitions *endpoints.API
}

// groupPriority is the place of apiextensions.k8s.io in discovery, as
// kube-apiserver has it.
const groupPriority = 16700

// New makes a Server; requests for what it does not serve go on to next. It
// starts nothing.
func New(c Config, next http.Handler) (*Server, error) {
	if c.Discovery == nil || c.Effective == nil {
		return nil, errors.New("crd: Discovery and Effective are required")
	}
	scheme := newScheme()
	codecs := newCodecs(scheme)
	group, err := definitionsGroup(c, scheme, codecs)
	if err != nil {
		return nil, err
	}
	s := &Server{}
	s.definitions, err = endpoints.New(endpoints.Config{
		Groups:    []endpoints.Group{group},
		Serving:   c.Serving,
		Discovery: c.Discovery,
		NotFound:  next,
	})
	if err != nil {
		return nil, fmt.Errorf("crd: %w", err)
	}
	return s, nil
}

// definitionsGroup is apiextensions.k8s.io itself.
func definitionsGroup(c Config, scheme *runtime.Scheme, codecs serializer.CodecFactory) (endpoints.Group, error) {
	kept := c.Storage
	kept.Serializer = codecs
	kept.Encoding = serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, c.Effective)
	kept.Prefixes, kept.Cohabitants = nil, nil
	definitions, err := customresourcedefinition.NewREST(scheme, storage.NewRESTOptionsGetter(kept))
	if err != nil {
		return endpoints.Group{}, fmt.Errorf("crd: storage of definitions: %w", err)
	}
	version := apiextensionsv1.SchemeGroupVersion.Version
	return endpoints.Group{
		Name:     apiextensions.GroupName,
		Versions: []string{version},
		Priority: groupPriority,
		Storage: map[string]map[string]rest.Storage{
			version: {
				"customresourcedefinitions":        definitions,
				"customresourcedefinitions/status": customresourcedefinition.NewStatusREST(scheme, definitions),
			},
		},
		Scheme:         scheme,
		Codecs:         codecs,
		ParameterCodec: metav1.ParameterCodec,
	}, nil
}

// Versions are the group versions that are always served.
func (s *Server) Versions() []*endpoints.Version { return s.definitions.Versions() }

// ServeHTTP serves definitions and what they define.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.definitions.ServeHTTP(w, req)
}
