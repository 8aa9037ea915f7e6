package controllers_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"byre/apiserver/controllers"
)

// absent are the controllers of kube-controller-manager that byre does not have, with the
// reason. Those whose feature gates are off by default need no entry.
var absent = map[string]string{
	"node-ipam-controller":       "kube-controller-manager builds it only with --allocate-node-cidrs, which byre does not have",
	"selinux-warning-controller": "off by default, and it only warns of Pods that share a volume with different SELinux labels",
}

// TestUpstream_WithControllerManagerRunsWhatItRuns compares the controllers with those of
// kube-controller-manager: which there are, which run by default, and their aliases.
func TestUpstream_WithControllerManagerRunsWhatItRuns(t *testing.T) {
	t.Parallel()
	var known, byDefault []string
	for name, d := range app.NewControllerDescriptors() {
		isGated := slices.ContainsFunc(d.GetRequiredFeatureGates(), func(gate featuregate.Feature) bool {
			return !utilfeature.DefaultFeatureGate.Enabled(gate)
		})
		if isGated {
			continue
		}
		if _, ok := absent[name]; ok {
			continue
		}
		known = append(known, name)
		if !d.IsDisabledByDefault() {
			byDefault = append(byDefault, name)
		}
		for _, alias := range d.GetAliases() {
			if got := selected(t, false, alias); !slices.Equal(got, []string{name}) {
				t.Errorf("--controllers=%s selects %v, and in kube-controller-manager %s", alias, got, name)
			}
		}
	}
	slices.Sort(known)
	slices.Sort(byDefault)
	if diff := cmp.Diff(known, controllers.Names()); diff != "" {
		t.Errorf("the controllers that there are (-kube-controller-manager +byre):\n%s", diff)
	}
	if diff := cmp.Diff(byDefault, selected(t, true, "*")); diff != "" {
		t.Errorf("the controllers that run with --with-controller-manager (-kube-controller-manager +byre):\n%s", diff)
	}
	for name := range absent {
		if _, ok := app.NewControllerDescriptors()[name]; !ok {
			t.Errorf("kube-controller-manager has no %s: take it out of the table", name)
		}
		if slices.Contains(controllers.Names(), name) {
			t.Errorf("byre has %s: take it out of the table", name)
		}
	}
}
