package controllers_test

import (
	"slices"
	"strings"
	"testing"

	"byre/apiserver/controllers"
)

func TestSelection_UnderstandsTheFlag(t *testing.T) {
	const namespace, garbage = "namespace-controller", "garbage-collector-controller"
	all := controllers.Names()
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
		{"namespace,-namespace-controller", []string{namespace}},
		{"-namespace,namespace-controller", nil},
		{"*,-nodeipam,-cloud-node-lifecycle-controller", all},
	}
	for _, test := range tests {
		var list []string
		if test.flag != "" {
			list = strings.Split(test.flag, ",")
		}
		got, err := controllers.Select(list)
		if err != nil {
			t.Errorf("--controllers=%s: %v", test.flag, err)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("--controllers=%s selects %v, want %v", test.flag, got, test.want)
		}
	}
	if _, err := controllers.Select([]string{"*", "nodeipam"}); err == nil || !strings.Contains(err.Error(), `"nodeipam" is not in the list of known controllers`) {
		t.Errorf("error of an unknown controller is %v", err)
	}
}

func TestNames_AreSorted(t *testing.T) {
	if names := controllers.Names(); !slices.IsSorted(names) || len(names) < 5 {
		t.Errorf("names are %v", names)
	}
}
