package changes

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

// apply makes the Differences of a value that it may change, and returns the new value.
func apply(value any, all []Difference) any {
	for _, d := range all {
		value = applyOne(value, d.path, &d)
	}
	return value
}

func applyOne(value any, path []any, d *Difference) any {
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
		if err := json.Indent(&spaced, Encode(after), "", " \t\r"); err != nil {
			t.Fatal(err)
		}
		all := compare(nil, nil, Encode(before), [][]byte{Encode(after), spaced.Bytes()}[random.IntN(2)])
		if got := apply(before, all); !reflect.DeepEqual(got, any(after)) {
			t.Fatalf("from %s to %s: %s", Encode(before), Encode(after), Encode(got))
		}
		if (len(all) == 0) != reflect.DeepEqual(before, after) {
			t.Fatalf("from %s to %s: %d differences", Encode(before), Encode(after), len(all))
		}
	}
}

func TestCompare_SaysWhatChangedAsPeopleDo(t *testing.T) {
	t.Parallel()
	const mostText = 256
	long := strings.Repeat("ä", mostText)
	for _, test := range []struct {
		before, after string
		want          []Field
	}{
		{`{"spec":{"replicas":1}}`, `{"spec":{"replicas":3}}`, []Field{{"spec.replicas", "1", "3"}}},
		{
			`{"metadata":{"labels":{"app.kubernetes.io/name":"a"}},"spec":{"a":1},"status":{"x":1}}`, `{"metadata":{"labels":{}},"spec":{},"status":{"x":2}}`,
			[]Field{{"spec.a", "1", ""}, {`metadata.labels["app.kubernetes.io/name"]`, `"a"`, ""}, {"status.x", "1", "2"}},
		},
		{`{"c":[{"i":"a"}]}`, `{"c":[{"i":"<b>"},{"i":"c"}]}`, []Field{{"c[0].i", `"a"`, `"<b>"`}, {"c[1]", "", `{"i":"c"}`}}},
		{`{"n":1.10,"big":12345678901234567890}`, `{"n":1.10,"big":12345678901234567891}`, []Field{{"big", "12345678901234567890", "12345678901234567891"}}},
		{`{"a":null}`, `{"a":"` + long + `"}`, []Field{{"a", "null", `"` + long[:mostText-2] + "…"}}},
	} {
		var got []Field
		for _, d := range compare(nil, nil, []byte(test.before), []byte(test.after)) {
			got = append(got, d.Field(mostText))
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("from %s to %s: %q, want %q", test.before, test.after, got, test.want)
		}
	}
}
