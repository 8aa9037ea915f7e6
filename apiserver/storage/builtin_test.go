package storage

import (
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/pkg/api/testing" // installs every built-in group

	"byre/sqlstore/storetest"
)

// Storage versions must equal those of a stock kube-apiserver, or a later program cannot
// read what this one wrote.
func TestBuiltinEncoding_IsTheStockStorageVersion(t *testing.T) {
	t.Parallel()
	encoding := builtinEncoding(nil)
	for gr, want := range map[schema.GroupResource]string{
		{Resource: "pods"}:                                              "v1",
		{Group: "apps", Resource: "deployments"}:                        "apps/v1",
		{Group: "coordination.k8s.io", Resource: "leasecandidates"}:     "coordination.k8s.io/v1beta1",
		{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}: "certificates.k8s.io/v1beta1",
	} {
		got, err := encoding.StorageEncodingFor(gr)
		if err != nil || got.String() != want {
			t.Errorf("%s is stored as %s (%v), want %s", gr, got, err, want)
		}
	}
}

func internal(gvk schema.GroupVersionKind) schema.GroupVersion {
	return schema.GroupVersion{Group: gvk.Group, Version: runtime.APIVersionInternal}
}

// fixtures are upstream's own objects, one of each kind, with every field set.
func fixtures(t *testing.T) []string {
	files, err := filepath.Glob(filepath.Join(storetest.ModuleDir(t, "k8s.io/api"), "testdata", "HEAD", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}
