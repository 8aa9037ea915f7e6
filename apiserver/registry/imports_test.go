package registry_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports_LeaveOutUpstreamsServers: the storages do without upstream's control plane, and
// without its provider of the core group, whose allocators connect to etcd.
func TestImports_LeaveOutUpstreamsServers(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, pkg := range []string{
		"k8s.io/kubernetes/pkg/controlplane",
		"k8s.io/kubernetes/pkg/controlplane/apiserver",
		"k8s.io/kubernetes/pkg/registry/core/rest",
		"k8s.io/kubernetes/pkg/registry/core/service/allocator/storage",
	} {
		if slices.Contains(deps, pkg) {
			t.Errorf("%s is imported", pkg)
		}
	}
}
