package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// randomJSON returns a decoded JSON value.
func randomJSON(random *rand.Rand, depth int) any {
	kinds := 7
	if depth == 0 {
		kinds = 5
	}
	switch random.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return random.IntN(2) == 0
	case 2:
		return json.Number(fmt.Sprint(random.IntN(3)))
	case 3:
		return ""
	case 4:
		return []string{"a", "b", "<&>", `\`, `"\"`, "]}, "}[random.IntN(6)]
	case 5:
		list := make([]any, random.IntN(4))
		for i := range list {
			list[i] = randomJSON(random, depth-1)
		}
		return list
	}
	return randomObject(random, depth-1)
}

func randomObject(random *rand.Rand, depth int) map[string]any {
	object := make(map[string]any)
	for range random.IntN(5) {
		object[[]string{"a", "b", "metadata", "status", "x.y/z", "", `"\`, "}"}[random.IntN(8)]] = randomJSON(random, depth)
	}
	return object
}

// apply makes the differences of a value that it may change, and returns the new value.
func apply(value any, all []difference) any {
	for _, d := range all {
		value = applyOne(value, d.path, &d)
	}
	return value
}

func applyOne(value any, path []any, d *difference) any {
	if len(path) == 0 {
		return d.new
	}
	switch part := path[0].(type) {
	case string:
		object := maps.Clone(value.(map[string]any))
		if len(path) == 1 && d.removed {
			delete(object, part)
			return object
		}
		object[part] = applyOne(object[part], path[1:], d)
		return object
	case int:
		list := slices.Clone(value.([]any))
		switch {
		case len(path) == 1 && d.removed:
			return slices.Delete(list, part, part+1)
		case len(path) == 1 && d.added:
			return slices.Insert(list, part, d.new)
		}
		list[part] = applyOne(list[part], path[1:], d)
		return list
	}
	panic("no path")
}

// The differences of two objects, applied to the first, give the second.
func TestCompare_DifferencesMakeTheNewFromTheOld(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		before, after := randomObject(random, 3), randomObject(random, 3)
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, encode(after), "", " \t\r"); err != nil {
			t.Fatal(err)
		}
		all := compare(nil, nil, encode(before), [][]byte{encode(after), spaced.Bytes()}[random.IntN(2)])
		if got := apply(before, all); !reflect.DeepEqual(got, any(after)) {
			t.Fatalf("from %s to %s: %s", encode(before), encode(after), encode(got))
		}
		if (len(all) == 0) != reflect.DeepEqual(before, after) {
			t.Fatalf("from %s to %s: %d differences", encode(before), encode(after), len(all))
		}
	}
}

func TestCompare_SaysWhatChangedAsPeopleDo(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", mostText)
	for _, test := range []struct {
		before, after string
		want          []FieldChange
	}{
		{`{"spec":{"replicas":1}}`, `{"spec":{"replicas":3}}`, []FieldChange{{"spec.replicas", "1", "3"}}},
		{
			`{"metadata":{"labels":{"app.kubernetes.io/name":"a"}},"spec":{"a":1},"status":{"x":1}}`, `{"metadata":{"labels":{}},"spec":{},"status":{"x":2}}`,
			[]FieldChange{{"spec.a", "1", ""}, {`metadata.labels["app.kubernetes.io/name"]`, `"a"`, ""}, {"status.x", "1", "2"}},
		},
		{`{"c":[{"i":"a"}]}`, `{"c":[{"i":"<b>"},{"i":"c"}]}`, []FieldChange{{"c[0].i", `"a"`, `"<b>"`}, {"c[1]", "", `{"i":"c"}`}}},
		{`{"n":1.10,"big":12345678901234567890}`, `{"n":1.10,"big":12345678901234567891}`, []FieldChange{{"big", "12345678901234567890", "12345678901234567891"}}},
		{`{"a":null}`, `{"a":"` + long + `"}`, []FieldChange{{"a", "null", `"` + long[:mostText-2] + "…"}}},
	} {
		var got []FieldChange
		for _, d := range compare(nil, nil, []byte(test.before), []byte(test.after)) {
			got = append(got, d.fieldChange(mostText))
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("from %s to %s: %q, want %q", test.before, test.after, got, test.want)
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
