package controllers_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"byre/apiserver/controllers"
)

// byDefault are the controllers that run without flags.
var byDefault = []string{
	"certificatesigningrequest-approving-controller",
	"certificatesigningrequest-cleaner-controller",
	"certificatesigningrequest-signing-controller",
	"clusterrole-aggregation-controller",
	"endpoints-controller",
	"endpointslice-controller",
	"endpointslice-mirroring-controller",
	"garbage-collector-controller",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller",
	"namespace-controller",
	"persistentvolume-binder-controller",
	"persistentvolume-protection-controller",
	"persistentvolumeclaim-protection-controller",
	"pod-garbage-collector-controller",
	"podcertificaterequest-cleaner-controller",
	"resourcequota-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"taint-eviction-controller",
	"ttl-after-finished-controller",
	"validatingadmissionpolicy-status-controller",
}

func TestSelection_UnderstandsTheFlag(t *testing.T) {
	const namespace, garbage = "namespace-controller", "garbage-collector-controller"
	all := selected(t, false, "*")
	if diff := cmp.Diff(byDefault, all); diff != "" {
		t.Fatalf("the controllers that run without flags (-want +got):\n%s", diff)
	}
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(names, name) })
	}
	tests := []struct {
		flag string
		want []string
	}{
		{"*", all},
		{"", nil},
		{namespace, []string{namespace}},
		{"namespace", []string{namespace}},
		{"*,-" + namespace, without(namespace)},
		{"-garbagecollector,*", without(garbage)},
		{"-" + namespace, nil},
		{"deployment,tokencleaner", []string{"deployment-controller", "token-cleaner-controller"}},
		{"namespace,-namespace-controller", []string{namespace}},
		{"-namespace,namespace-controller", nil},
		{"*,-nodeipam,-cloud-node-lifecycle-controller", all},
	}
	for _, test := range tests {
		var list []string
		if test.flag != "" {
			list = strings.Split(test.flag, ",")
		}
		got, err := controllers.Select(list, false)
		if err != nil {
			t.Errorf("--controllers=%s: %v", test.flag, err)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("--controllers=%s selects %v, want %v", test.flag, got, test.want)
		}
	}
	if _, err := controllers.Select([]string{"*", "nodeipam"}, false); err == nil ||
		!strings.Contains(err.Error(), `"nodeipam" is not in the list of known controllers`) {
		t.Errorf("error of an unknown controller is %v", err)
	}
}

func TestNames_AreSorted(t *testing.T) {
	if names := controllers.Names(); !slices.IsSorted(names) || len(names) < 5 {
		t.Errorf("names are %v", names)
	}
}

// selected returns the controllers that a list selects.
func selected(t *testing.T, withControllerManager bool, list ...string) []string {
	t.Helper()
	names, err := controllers.Select(list, withControllerManager)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

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
