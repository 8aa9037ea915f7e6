package apiserver

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/tracing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/admission"
	"byre/apiserver/builtin"
	"byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/apiserver/loopback"
	"byre/apiserver/openapi"
	"byre/apiserver/storage"
)

// Shared is what the servers of the chain have in common.
type Shared struct {
	// Storage says where objects are kept; a neighbour with types of its own
	// puts its own serializer and encoding into a copy.
	Storage storage.GetterConfig
	// Effective is the Kubernetes version that the server behaves as.
	Effective basecompatibility.EffectiveVersion
	// Serving has admission, authorization and limits.
	Serving endpoints.Serving
	// Discovery and OpenAPI take entries at any time.
	Discovery *discovery.Registry
	OpenAPI   *openapi.Service
	// Build identifies the program in the documents of OpenAPI.
	Build string
	// Loopback, Client, Dynamic and Informers reach the whole chain as itself.
	// The informers are started after every server was made.
	Loopback  *rest.Config
	Client    kubernetes.Interface
	Dynamic   dynamic.Interface
	Informers informers.SharedInformerFactory
	// Services and Webhooks are how webhooks are found, and by what the server
	// shows itself to them.
	Services webhook.ServiceResolver
	Webhooks webhook.AuthenticationInfoResolverWrapper
	// ProxyCert and ProxyKey are the files of the certificate by which this
	// server shows itself to servers behind it.
	ProxyCert, ProxyKey string
}

// newShared makes what needs nothing but the store and the loopback transport.
func newShared(core *core, transport *loopback.Transport, registry *discovery.Registry) (Shared, error) {
	config := loopback.Config(transport)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Shared{}, fmt.Errorf("loopback client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return Shared{}, fmt.Errorf("loopback client: %w", err)
	}
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	return Shared{
		Storage: storage.GetterConfig{
			Store:       core.store,
			Feed:        core.feed,
			Serializer:  legacyscheme.Codecs,
			Scheme:      legacyscheme.Scheme,
			Encoding:    storage.BuiltinEncoding(legacyscheme.Scheme, effective),
			Prefixes:    storage.BuiltinPrefixes(),
			Cohabitants: storage.BuiltinCohabitants(),
			Unsettled:   storage.BuiltinUnsettled(),
			Program:     "v" + effective.BinaryVersion().String(),
		},
		Effective: effective,
		Discovery: registry,
		OpenAPI:   openapi.NewService(),
		Build:     openapi.BuildIdentity(time.Now()),
		Services:  admission.ClusterIPs(client.CoreV1()),
		Webhooks:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, &rest.Config{}, tracing.NewNoopTracerProvider()),
		Loopback:  config,
		Client:    client,
		Dynamic:   dynamicClient,
		Informers: informers.NewSharedInformerFactoryWithOptions(client, 0,
			informers.WithTransform(trim), informers.WithCustomResyncConfig(builtin.Resync())),
	}, nil
}

// trim leaves managed fields out of what informers keep: nothing in this process
// reads them there, and they are often the larger part of an object.
func trim(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}
