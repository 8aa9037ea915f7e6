package changes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
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
		object[[]string{"a", "b", "metadata", "status", "name", "x.y/z", "", `"\`, "}"}[random.IntN(9)]] = randomJSON(random, depth)
	}
	return object
}

// apply makes the Differences of a value that it may change, and returns the new value.
func apply(value any, all iter.Seq[*Difference]) (changed any, n int) {
	for d := range all {
		value = applyOne(value, d.path, d)
		n++
	}
	return value, n
}

func applyOne(value any, path Path, d *Difference) any {
	if len(path) == 0 {
		return Decode(d.new)
	}
	part := path[0]
	if part.Index < 0 {
		object := maps.Clone(value.(map[string]any))
		if len(path) == 1 && d.new == nil {
			delete(object, part.Name)
			return object
		}
		object[part.Name] = applyOne(object[part.Name], path[1:], d)
		return object
	}
	list, i := slices.Clone(value.([]any)), part.Index
	if len(path) == 1 && d.old == nil {
		return slices.Insert(list, i, Decode(d.new))
	}
	if part.Name != "" {
		field, _, _ := strings.Cut(part.Name, "=")
		var elements []map[string][]byte
		for _, element := range list {
			elements = append(elements, Fields(Encode(element)))
		}
		i = slices.Index(namesBy([]string{field}, elements), part.Name)
	}
	if len(path) == 1 && d.new == nil {
		return slices.Delete(list, i, i+1)
	}
	list[i] = applyOne(list[i], path[1:], d)
	return list
}

// The differences of two objects, applied to the first, give the second.
func TestCompare_DifferencesMakeTheNewFromTheOld(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		before, after := randomObject(random, 3), randomObject(random, 3)
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, Encode(after), "", " \t\r"); err != nil {
			t.Fatal(err)
		}
		got, n := apply(before, Compare(Encode(before), [][]byte{Encode(after), spaced.Bytes()}[random.IntN(2)], nil))
		if !reflect.DeepEqual(got, any(after)) {
			t.Fatalf("from %s to %s: %s", Encode(before), Encode(after), Encode(got))
		}
		if (n == 0) != reflect.DeepEqual(before, after) {
			t.Fatalf("from %s to %s: %d differences", Encode(before), Encode(after), n)
		}
	}
}

func TestCompare_SaysWhatChangedAsPeopleDo(t *testing.T) {
	t.Parallel()
	const mostText = 256
	long := strings.Repeat("ä", mostText)
	for _, test := range []struct {
		before, after string
		want          []FieldText
	}{
		{`{"spec":{"replicas":1}}`, `{"spec":{"replicas":3}}`, []FieldText{{"spec.replicas", "1", "3"}}},
		{
			`{"metadata":{"labels":{"app.kubernetes.io/name":"a"}},"spec":{"a":1},"status":{"x":1}}`,
			`{"metadata":{"labels":{}},"spec":{},"status":{"x":2}}`,
			[]FieldText{{"spec.a", "1", ""}, {`metadata.labels["app.kubernetes.io/name"]`, `"a"`, ""}, {"status.x", "1", "2"}},
		},
		{`{"c":[{"i":"a"}]}`, `{"c":[{"i":"<b>"},{"i":"c"}]}`,
			[]FieldText{{"c[0].i", `"a"`, `"<b>"`}, {"c[1]", "", `{"i":"c"}`}}},
		{
			`{"c":[{"name":"a","i":1},{"name":"b","i":1}]}`, `{"c":[{"name":"x","i":1},{"name":"b","i":2}]}`,
			[]FieldText{{"c[name=a]", `{"i":1,"name":"a"}`, ""}, {"c[name=b].i", "1", "2"}, {"c[name=x]", "", `{"i":1,"name":"x"}`}},
		},
		{
			`{"c":[{"name":"a"},{"name":"b"}]}`, `{"c":[{"name":"b"},{"name":"a"}]}`,
			[]FieldText{{"c", `[{"name":"a"},{"name":"b"}]`, `[{"name":"b"},{"name":"a"}]`}},
		},
		{`{"c":[{"name":"1"},{"name":"a b"}]}`, `{"c":[]}`,
			[]FieldText{{`c[name="1"]`, `{"name":"1"}`, ""}, {`c[name="a b"]`, `{"name":"a b"}`, ""}}},
		{`{"n":1.10,"big":12345678901234567890}`, `{"n":1.10,"big":12345678901234567891}`,
			[]FieldText{{"big", "12345678901234567890", "12345678901234567891"}}},
		{`{"a":null}`, `{"a":"` + long + `"}`, []FieldText{{"a", "null", `"` + long[:mostText-2] + "…"}}},
	} {
		var got []FieldText
		for d := range Compare([]byte(test.before), []byte(test.after), nil) {
			got = append(got, d.Field(mostText))
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("from %s to %s: %q, want %q", test.before, test.after, got, test.want)
		}
	}
}

// nested returns an object with a value at a depth.
func nested(depth int, value string) []byte {
	return []byte(strings.Repeat(`{"a":`, depth) + value + strings.Repeat("}", depth))
}

// Whoever may write an object decides how many of its fields a change changes, how deep they are, and how long
// their names.
func TestCompare_TakesLittleMemoryForEachDifference(t *testing.T) {
	t.Parallel()
	const n = 200_000
	list := func(element string) string { return "[" + strings.Repeat(element+",", n) + element + "]" }
	name := strings.Repeat("k", 1<<20)
	members := func(value string) []byte {
		var b strings.Builder
		for i := range 100 {
			fmt.Fprintf(&b, `"k%d":%s,`, i, value)
		}
		return []byte(`{"` + name + `":{` + b.String() + `"k":0}}`)
	}
	for _, test := range []struct {
		what          string
		before, after []byte
		want          int
	}{
		{"many deep elements", nested(mostDepth-1, list("1")), nested(mostDepth-1, list("2")), n + 1},
		{"deeper than paths go", nested(2*mostDepth, list("1")), nested(2*mostDepth, list("2")), 1},
		{"a long name", members("1"), members("2"), 100},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var kept []FieldText
		found := 0
		for d := range Compare(test.before, test.after, nil) {
			if found++; len(kept) < 1000 {
				kept = append(kept, d.Field(mostName))
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); found != test.want || grown > 16<<20 {
			t.Errorf("%s: %d differences, %d MiB are in use", test.what, found, grown>>20)
		}
		for _, f := range kept {
			if len(f.Path) > mostPath+len("…") {
				t.Fatalf("%s: a path of %d bytes", test.what, len(f.Path))
			}
		}
		runtime.KeepAlive(kept)
	}
}

// What a reader sees of a Secret is which values have changed, and none of them.
func TestCompareMasked_HasNoValueOfASecret(t *testing.T) {
	t.Parallel()
	object := func(data, applied string) []byte {
		return fmt.Appendf(nil,
			`{"kind":"Secret","metadata":{"name":"s","annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q,"note":"a"}},"data":{%s},"type":"Opaque"}`,
			`{"data":{"v":"`+applied+`"}}`, data)
	}
	before, after := object(`"same":"c2VjcmV0","other":"c2VjcmV0MQ==","gone":"c2VjcmV0Mg=="`, "c2VjcmV0"),
		object(`"same":"c2VjcmV0","other":"c2VjcmV0Mw==","new":"c2VjcmV0NA=="`, "c2VjcmV05A==")
	var got []string
	for d := range CompareMasked("", "secrets", before, after, nil) {
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
	for d := range CompareMasked("example.com", "secrets", before, after, nil) { // no Secret of Kubernetes
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
