package handlers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	cliflag "k8s.io/component-base/cli/flag"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/watch"
)

// newGroups makes the built-in groups that a --runtime-config turns on.
func newGroups(t testing.TB, store *sqlstore.Store, feed *watch.Feed, runtimeConfig cliflag.ConfigurationMap) []handlers.Group {
	t.Helper()
	resources, err := registry.ParseRuntimeConfig(runtimeConfig)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := serviceaccount.JWTTokenGenerator("https://test.invalid", key)
	if err != nil {
		t.Fatal(err)
	}
	client, effective := fake.NewClientset(), compatibility.DefaultBuildEffectiveVersion()
	b, err := registry.New(registry.Config{
		RESTOptions:             storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed}, storage.BuiltinResources(effective)),
		APIResourceConfigSource: resources,
		Client:                  client,
		Informers:               informers.NewSharedInformerFactory(client, 0),
		Authorizer:              authorizerfactory.NewAlwaysAllowAuthorizer(),
		Tokens:                  registry.TokenConfig{Issuer: issuer},
		Emulation:               genericapiserver.ResourceExpirationEvaluatorOptions{CurrentVersion: effective.EmulationVersion()},
		Services:                registry.ServiceConfig{ClusterIPRange: registry.DefaultClusterIPRange(), NodePortRange: registry.DefaultNodePortRange()},
		Kubelet:                 registry.DefaultKubelet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b.Groups()
}

// newEverything serves every built-in group and version without a database, as upstream
// serves them when it writes the release's documents: with --runtime-config=api/all=true
// and with the feature gates on that add resources or encodings.
func newEverything(t *testing.T) *handlers.API {
	t.Helper()
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		genericfeatures.CBORServingAndStorage:    true,
		genericfeatures.OpenAPIEnums:             false,
		features.CompositePodGroup:               true,
		features.EvictionRequestAPI:              true,
		features.GenericWorkload:                 true,
		features.TopologyAwareWorkloadScheduling: true,
	})
	api, err := handlers.New(handlers.Config{
		Groups:    newGroups(t, &sqlstore.Store{}, watch.New(nil, watch.Options{}), cliflag.ConfigurationMap{"api/all": "true"}),
		Discovery: documents.NewDiscovery("10.10.10.10:8050"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return api
}
