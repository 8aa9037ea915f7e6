package registry_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports_LeaveOutUpstreamsServers: the program does not import upstream's generic
// server, control plane and installers, which would bring a second implementation of what
// byre does.
func TestImports_LeaveOutUpstreamsServers(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	// These are subresources, not installers.
	allowed := []string{"k8s.io/kubernetes/pkg/registry/core/node/rest", "k8s.io/kubernetes/pkg/registry/core/pod/rest"}
	for pkg := range strings.FieldsSeq(string(out)) {
		installer := strings.HasPrefix(pkg, "k8s.io/kubernetes/pkg/registry/") && strings.HasSuffix(pkg, "/rest") && !slices.Contains(allowed, pkg)
		switch {
		case installer, pkg == "k8s.io/apiserver/pkg/server", pkg == "k8s.io/kubernetes/pkg/controlplane":
			t.Errorf("%s is imported", pkg)
		}
	}
}
