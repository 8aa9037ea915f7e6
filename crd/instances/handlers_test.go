package instances

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// slowReader takes a second to decode a definition.
type slowReader struct {
	crd     *apiextensionsv1.CustomResourceDefinition
	decoded int
}

func (r *slowReader) Source(context.Context, string, string) (Source, error) {
	return func() (*apiextensionsv1.CustomResourceDefinition, error) {
		r.decoded++
		time.Sleep(time.Second)
		return r.crd, nil
	}, nil
}

func (*slowReader) IsReplaced(context.Context, *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	return false, nil
}

// All clients whose watches a change of a definition has ended come at once.
func TestHandlers_AreDerivedOnce(t *testing.T) {
	t.Parallel()
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "gears", Singular: "gear", Kind: "Gear",
		ListKind: "GearList"}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gears.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.ClusterScoped, Names: names,
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names},
	}
	converters, err := conversion.NewCRConverterFactory(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		reader := &slowReader{crd: crd}
		h := New(NewEnvironment(Environment{Scheme: runtime.NewScheme(), Converters: converters, Sources: reader}), crd)
		first, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		go func() { _ = h.prepare(first) }()
		for range 50 {
			go func() {
				if err := h.prepare(t.Context()); err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(time.Minute)
		if reader.decoded != 1 {
			t.Errorf("decoded %d times", reader.decoded)
		}
	})
}

func TestLazy_KeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	made, failing := 0, true
	l := newLazy(func() (int, error) {
		if failing {
			return 0, errors.New("not now")
		}
		made++
		return made, nil
	})
	if _, err := l.get(); err == nil {
		t.Error("no error")
	}
	failing = false
	for i, step := range []struct {
		before func()
		want   int
	}{
		{func() {}, 1},                           // made again after the failure
		{l.release, 1},                           // kept, because it was used
		{func() { l.release(); l.release() }, 2}, // released, and made again
		{func() {}, 2},                           // kept
	} {
		step.before()
		if got, err := l.get(); err != nil || got != step.want {
			t.Errorf("step %d: %d, %v; want %d", i, got, err, step.want)
		}
	}
}
