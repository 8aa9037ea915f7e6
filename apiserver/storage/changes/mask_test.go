package changes

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// What a reader sees of a Secret is which values have changed, and none of them.
func TestCompareMasked_HasNoValueOfASecret(t *testing.T) {
	t.Parallel()
	object := func(data, applied string) []byte {
		return fmt.Appendf(nil, `{"kind":"Secret","metadata":{"name":"s","annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q,"note":"a"}},"data":{%s},"type":"Opaque"}`,
			`{"data":{"v":"`+applied+`"}}`, data)
	}
	before, after := object(`"same":"c2VjcmV0","other":"c2VjcmV0MQ==","gone":"c2VjcmV0Mg=="`, "c2VjcmV0"), object(`"same":"c2VjcmV0","other":"c2VjcmV0Mw==","new":"c2VjcmV0NA=="`, "c2VjcmV05A==")
	var got []string
	for d := range CompareMasked("", "secrets", before, after) {
		f := d.Field(100)
		got = append(got, f.Path+": "+f.Old+" → "+f.New)
	}
	want := []string{
		`data.gone: "***" → `, `data.new:  → "***"`, `data.other: "*** (before)" → "*** (after)"`,
		`metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]: "*** (before)" → "*** (after)"`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the differences are %q, want %q", got, want)
	}
	for d := range CompareMasked("example.com", "secrets", before, after) { // no Secret of Kubernetes
		if f := d.Field(100); strings.Contains(f.Old+f.New, "***") {
			t.Errorf("%s is masked", f.Path)
		}
	}
}

// The versions that are masked are those of a caller who goes on with them.
func TestMaskSecret_LeavesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	object := func() map[string]any {
		return map[string]any{"metadata": map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "data": map[string]any{"a": "YQ=="}}
	}
	given := object()
	before, after := MaskSecret(nil, given)
	if before != nil || !reflect.DeepEqual(given, object()) {
		t.Errorf("nil became %v, and the object %v", before, given)
	}
	want := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "***"}}, "data": map[string]any{"a": "***"}}
	if !reflect.DeepEqual(after, want) {
		t.Errorf("masked, it is %v", after)
	}
	if _, after := MaskSecret(nil, map[string]any{"data": nil}); !reflect.DeepEqual(after, map[string]any{"data": nil}) {
		t.Errorf("without values, it is %v", after)
	}
}
