package controllers

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
)

// TestDefaultSettings_AreThoseOfTheFlags compares the settings of each controller with those of a kube-controller-manager
// that is started without flags. Some have their defaults from the flags only.
func TestDefaultSettings_AreThoseOfTheFlags(t *testing.T) {
	t.Parallel()
	settings, err := defaultSettings()
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	upstream.Flags(nil, nil, nil) // sets defaults
	compared := 0
	for field, o := range reflect.ValueOf(upstream).Elem().Fields() {
		got := reflect.ValueOf(settings).FieldByName(field.Name)
		if !got.IsValid() || field.Name == "Generic" || field.Name == "KubeCloudShared" || field.Name == "GarbageCollectorController" {
			continue // byre reads none of these
		}
		compared++
		// Each type of options embeds the pointer to its settings.
		if diff := cmp.Diff(o.Elem().Field(0).Elem().Interface(), got.Interface()); diff != "" {
			t.Errorf("%s (-kube-controller-manager +byre):\n%s", field.Name, diff)
		}
	}
	if compared < 25 {
		t.Errorf("%d kinds of settings were compared", compared)
	}
}
