package history

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// BenchmarkItem makes the item of an update of a Deployment, of which a list or a watch has one.
func BenchmarkItem(b *testing.B) {
	s := &Storage{config: Config{Log: &changes.Log{Prefix: func(of sqlstore.Resource) string { return of.Resource }}}}
	value := func(replicas int) []byte {
		container := `{"name":"c%d","image":"registry.example.com/shop/web:1.2.3","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},"ports":[{"containerPort":8080,"protocol":"TCP"}]}`
		return fmt.Appendf(nil, `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop","uid":"1d2e","resourceVersion":"%d","generation":%d,"labels":{"app":"web"},"managedFields":[%s]},`+
			`"spec":{"replicas":%d,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[%s,%s]}}},"status":{"replicas":1}}`,
			replicas, replicas, strings.TrimSuffix(strings.Repeat(`{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c1\"}":{".":{},"f:image":{}}}}}}}},`, 4), ","),
			replicas, fmt.Sprintf(container, 1), fmt.Sprintf(container, 2))
	}
	key := sqlstore.Key{Group: "apps", Resource: "deployments", Namespace: "shop", Name: "web"}
	c := sqlstore.Change{Op: sqlstore.Update, Old: &sqlstore.Record{Key: key, Value: value(1)}, New: sqlstore.Record{Key: key, Value: value(2)}}
	for b.Loop() {
		if item, err := s.item(b.Context(), &c, false); err != nil || len(item.Changed) != 1 {
			b.Fatal(item)
		}
	}
}

// A command shows the whole difference of two versions.
func TestCompare_LeavesOutOnlyWhatEveryWriteChanges(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2*mostText)
	before := map[string]any{"metadata": map[string]any{"resourceVersion": "1", "generation": int64(1)}, "data": map[string]any{}}
	data := map[string]any{"long": long}
	want := []FieldChange{{"data.long", "", `"` + long + `"`}}
	for i := range 2 * mostFields {
		key := fmt.Sprintf("z%02d", i)
		data[key] = ""
		want = append(want, FieldChange{"data." + key, "", `""`})
	}
	after := map[string]any{"metadata": map[string]any{"resourceVersion": "2", "generation": int64(2)}, "data": data}
	if got, err := Compare(before, after); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the differences are %q", got)
	}
	if got, err := Compare(nil, map[string]any{"kind": "ConfigMap"}); !reflect.DeepEqual(got, []FieldChange{{"kind", "", `"ConfigMap"`}}) || err != nil {
		t.Errorf("what was created differs in %q", got)
	}
	if got, err := Compare(after, after); got == nil || len(got) > 0 || err != nil {
		t.Errorf("an object differs from itself in %q", got)
	}
}
