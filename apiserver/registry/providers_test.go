package registry

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"

	"byre/sqlstore/storetest"
)

// TestNamespaces_ReadTheirRegistry: the field from which namespaceStorage takes the registry has
// its type, and upstream's methods for reads return what the registry in that field returns.
func TestNamespaces_ReadTheirRegistry(t *testing.T) {
	t.Parallel()
	field, ok := reflect.TypeFor[namespacestore.REST]().FieldByName("store")
	if !ok || field.Type != reflect.TypeFor[*genericregistry.Store]() {
		t.Fatalf("upstream's storage has its registry elsewhere: %+v", field)
	}
	source, err := os.ReadFile(filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"),
		"pkg/registry/core/namespace/storage/storage.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Get", "List", "Watch"} {
		call := regexp.MustCompile(`(?m)^func \(r \*REST\) ` + name + `\(.*\{\n\treturn r\.store\.` + name +
			`\([a-z, ]*\)\n\}`)
		if !call.Match(source) {
			t.Errorf("%s does more than to call the registry's", name)
		}
	}
}
