package registry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// newGetter returns the options getter over a store and its feed.
func newGetter(store *sqlstore.Store, feed *watch.Feed) *storage.RESTOptionsGetter {
	return storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed}, storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
}

// newBuiltin constructs the groups that a --runtime-config turns on, over a store that does
// not run: the constructor must not read from it.
func newBuiltin(t *testing.T, runtimeConfig cliflag.ConfigurationMap) *registry.Builtin {
	t.Helper()
	b, err := emulate(t, runtimeConfig, thisRelease())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// thisRelease emulates no other.
func thisRelease() emulation {
	return emulation{CurrentVersion: compatibility.DefaultBuildEffectiveVersion().EmulationVersion()}
}

// emulate is newBuiltin with an emulated release.
func emulate(t *testing.T, runtimeConfig cliflag.ConfigurationMap, release emulation) (*registry.Builtin, error) {
	t.Helper()
	resources, err := registry.ParseRuntimeConfig(runtimeConfig)
	if err != nil {
		t.Fatal(err)
	}
	model := storetest.NewModel()
	client := fake.NewClientset()
	return registry.New(registry.Config{
		RESTOptions:             newGetter(sqlstore.New(model, sqlstore.Options{}), watch.New(model, watch.Options{})),
		APIResourceConfigSource: resources,
		Emulation:               release,
		Client:                  client,
		Informers:               informers.NewSharedInformerFactory(client, 0),
		Authorizer:              authorizerfactory.NewAlwaysAllowAuthorizer(),
		Tokens:                  registry.TokenConfig{Issuer: newIssuer(t)},
		Services:                registry.ServiceConfig{ClusterIPRange: clusterIPs, NodePortRange: nodePorts},
		Kubelet:                 registry.DefaultKubelet(),
	})
}

func newIssuer(t *testing.T) serviceaccount.TokenGenerator {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := serviceaccount.JWTTokenGenerator("https://test.invalid", key)
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}
