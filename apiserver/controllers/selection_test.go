package controllers_test

import (
	"slices"
	"strings"
	"testing"

	"byre/apiserver/controllers"
)

func TestSelection_UnderstandsTheFlag(t *testing.T) {
	const namespace, garbage = "namespace-controller", "garbage-collector-controller"
	all, err := controllers.Select([]string{"*"}, false)
	if err != nil || !slices.Contains(all, "endpointslice-controller") || slices.Contains(all, "deployment-controller") {
		t.Fatalf("the controllers that are on by default are %v, %v", all, err)
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
	if _, err := controllers.Select([]string{"*", "nodeipam"}, false); err == nil || !strings.Contains(err.Error(), `"nodeipam" is not in the list of known controllers`) {
		t.Errorf("error of an unknown controller is %v", err)
	}
}

func TestNames_AreSorted(t *testing.T) {
	if names := controllers.Names(); !slices.IsSorted(names) || len(names) < 5 {
		t.Errorf("names are %v", names)
	}
}

func TestSelection_WithControllerManagerIsAllThatItRunsByDefault(t *testing.T) {
	all, err := controllers.Select([]string{"*"}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"deployment-controller", "node-lifecycle-controller", "namespace-controller"} {
		if !slices.Contains(all, name) {
			t.Errorf("%s is not among %v", name, all)
		}
	}
	if slices.Contains(all, "token-cleaner-controller") {
		t.Error("the token cleaner runs, which kube-controller-manager runs by name only")
	}
}
