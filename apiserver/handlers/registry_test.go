package handlers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsstorage "k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	cliflag "k8s.io/component-base/cli/flag"
	apiservicestorage "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"byre/apiserver/handlers"
	"byre/sqlstore"
	"byre/watch"
)

// Overriding is a storage that changes what its registry lists.
type Overriding struct{ *genericregistry.Store }

// List implements rest.Lister.
func (*Overriding) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return nil, nil
}

// embedding has such a storage below it.
type embedding struct{ *Overriding }

// readOtherwise are the built-in resources whose reads are not those of a registry that they embed.
// Who adds one makes sure that answers from stored bytes are what upstream's storage would read.
var readOtherwise = map[string]string{
	"/v1 componentstatuses":      "decoded",   // asks the components, and stores nothing
	"/v1 namespaces":             "provided",  // has an unexported registry: TestNamespaces_ReadTheirRegistry
	"/v1 persistentvolumeclaims": "decorated", // defaults dataSource and dataSourceRef
	"/v1 services":               "decorated", // defaults the fields for two IP families
}

// byValue embeds a storage, and is no pointer, as the storage of package crd.
type byValue struct{ *apiextensionsstorage.REST }

// Reads go to the registry of a storage, past the storage itself. So no storage may have a Get,
// List or Watch of its own: it would not be called. Those that are read otherwise are listed.
func TestRegistry_ReadsAreNotOverridden(t *testing.T) {
	store := &genericregistry.Store{}
	bad := &Overriding{store}
	for _, storage := range []rest.Storage{bad, &embedding{bad}} {
		if got := fmt.Sprint(handlers.OverriddenReads(storage)); got != "[*handlers_test.Overriding.List]" {
			t.Fatalf("%T overrides %s", storage, got)
		}
	}
	storages := map[string]rest.Storage{
		"customresourcedefinitions": &apiextensionsstorage.REST{Store: store},
		"apiservices":               &apiservicestorage.REST{Store: store},
		"a value":                   byValue{&apiextensionsstorage.REST{Store: store}},
	}
	all := cliflag.ConfigurationMap{"api/all": "true"}
	for _, group := range newGroups(t, &sqlstore.Store{}, watch.New(nil, watch.Options{}), all) {
		for version, byPath := range group.Storage {
			for path, storage := range byPath {
				// A subresource is read by its own Get.
				if _, lists := storage.(rest.Lister); lists && !strings.Contains(path, "/") {
					storages[group.Name+"/"+version+" "+path] = storage
				}
			}
		}
	}
	if len(storages) < 60 {
		t.Errorf("there are only %d resources", len(storages))
	}
	otherwise := map[string]string{}
	for name, storage := range storages {
		if how := handlers.Reads(storage); how != "embedded" {
			otherwise[name] = how
		}
		if overridden := handlers.OverriddenReads(storage); len(overridden) > 0 {
			t.Errorf("%s: %v would not be called", name, overridden)
		}
	}
	if diff := cmp.Diff(readOtherwise, otherwise); diff != "" {
		t.Errorf("resources that are read otherwise (-listed +found):\n%s", diff)
	}
}
