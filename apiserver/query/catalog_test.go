package query

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// A value has the type of its column, or is NULL.
func TestType_ValueIsOfTheTypeOrNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[Type]any{
		`"a\u00e9\n"`: {Text: "aé\n"},
		`"plain"`:     {Text: "plain"},
		`""`:          {Text: ""},
		`5`:           {Text: "5", Integer: int64(5), Real: 5.0, Quantity: 5.0},
		`-9223372036854775808`: {Text: "-9223372036854775808", Integer: int64(-9223372036854775808),
			Real: -9223372036854775808.0, Quantity: -9223372036854775808.0},
		`9223372036854775808`: {Text: "9223372036854775808", Real: 9223372036854775808.0,
			Quantity: 9223372036854775807.0},
		`1.5`:                         {Text: "1.5", Real: 1.5, Quantity: 1.5},
		`1e3`:                         {Text: "1e3", Real: 1000.0, Quantity: 1000.0},
		`true`:                        {Boolean: true},
		`false`:                       {Boolean: false},
		`"true"`:                      {Text: "true"},
		`"100m"`:                      {Text: "100m", Quantity: 0.1},
		`"1.5Gi"`:                     {Text: "1.5Gi", Quantity: 1.5 * (1 << 30)},
		`"Ki"`:                        {Text: "Ki"},
		`"+"`:                         {Text: "+"},
		`"1e-2147483648"`:             {Text: "1e-2147483648"},
		`"1e2147483647"`:              {Text: "1e2147483647"},
		`"2026-01-31T12:00:00Z"`:      {Text: "2026-01-31T12:00:00Z", Time: "2026-01-31T12:00:00Z"},
		`"2026-01-31T12:00:00+02:00"`: {Text: "2026-01-31T12:00:00+02:00", Time: "2026-01-31T10:00:00Z"},
		`"2026-01-31T12:00:00.5Z"`:    {Text: "2026-01-31T12:00:00.5Z", Time: "2026-01-31T12:00:00.500000Z"},
		`"2026-02-31T12:00:00Z"`:      {Text: "2026-02-31T12:00:00Z"},
		`{"a":1}`:                     {},
		`[1]`:                         {},
	} {
		for of := range typeNames {
			expected := want[of]
			if of == JSON {
				expected = RawJSON(text)
			}
			if got := of.Value([]byte(text)); !reflect.DeepEqual(got, expected) {
				t.Errorf("%s as %s is %#v, want %#v", text, of, got, expected)
			}
		}
	}
	for of := range typeNames {
		c := NewColumn("c", of, "", "spec", "c")
		if c.Value(nil) != nil || c.Value([]byte("null")) != nil {
			t.Errorf("null as %s is a value", of)
		}
		if of.Name() == "" {
			t.Errorf("%s has no name in answers", of)
		}
	}
}

// Each quantity that the API reads is the nearest number, and texts of times are in the order of the times.
func TestType_ValuesOfRandomTexts(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		number := strings.TrimSuffix(fmt.Sprintf("%d.%d", random.IntN(1000), random.IntN(1000)), ".0")
		text := []string{"", "-", "+"}[random.IntN(3)] + number + []string{"", "n", "u", "m", "k", "M", "Ki", "Mi", "Gi",
			"e3", "E-2", "x"}[random.IntN(12)]
		encoded, _ := json.Marshal(text) // a string
		q, err := resource.ParseQuantity(text)
		got := Quantity.Value(encoded)
		if (got == nil) != (err != nil) {
			t.Fatalf("%s is %v, and as a quantity %v", text, got, err)
		}
		if err == nil {
			if want := q.AsApproximateFloat64(); cmp.Compare(got.(float64), want) != 0 && (got.(float64)-want)/want > 1e-12 {
				t.Fatalf("%s is %v, want %v", text, got, want)
			}
		}
	}
	base := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	at := func() time.Time {
		return base.Add(time.Duration(random.IntN(3_000_000)) * time.Microsecond).In(time.FixedZone("",
			3600*(random.IntN(5)-2)))
	}
	for range 10_000 {
		a, b := at(), at()
		x := Time.Value([]byte(`"` + a.Format("2006-01-02T15:04:05.000000Z07:00") + `"`)).(string)
		y := Time.Value([]byte(`"` + b.Format("2006-01-02T15:04:05.000000Z07:00") + `"`)).(string)
		if a.Compare(b) != strings.Compare(x, y) {
			t.Fatalf("%v and %v are %s and %s", a, b, x, y)
		}
	}
}

func TestColumnName_IsWhatPeopleWrite(t *testing.T) {
	t.Parallel()
	for want, path := range map[string][]string{
		"spec_node_name": {"spec", "nodeName"}, "spec_cluster_ip": {"spec", "clusterIP"},
		"spec_pod_cidr": {"spec", "podCIDR"},
		"up_to_date":    {"Up-to-date"}, "status_qos_class": {"status", "qosClass"}, "http_get": {"HTTPGet"}, "a1_b": {"a1B"},
		"spec_odd_name": {"spec", "odd-name"}, "": nil,
	} {
		if got := ColumnName(path...); got != want {
			t.Errorf("%q is %s, want %s", path, got, want)
		}
	}
}

// definitions are schemas that refer to each other.
func definitions() map[string]*spec.Schema {
	text := `{
	"Thing":{"type":"object","description":"A Thing.","properties":{
		"kind":{"type":"string"},"apiVersion":{"type":"string"},"metadata":{"type":"object","properties":{"name":{"type":"string"}}},
		"spec":{"$ref":"#/definitions/Spec"},
		"status":{"type":"object"},
		"data":{"type":"object","additionalProperties":{"type":"string"},"description":"Texts."},
		"items":{"type":"array","items":{"type":"string"}},
		"immutable":{"type":"boolean"},
		"object":{"type":"string"}},
		"x-kubernetes-group-version-kind":[{"group":"example.com","version":"v1","kind":"Thing"}]},
	"Spec":{"type":"object","properties":{
		"replicas":{"type":"integer","description":"How many."},
		"ratio":{"type":"number"},
		"since":{"type":"string","format":"date-time"},
		"port":{"description":"A port.","allOf":[{"$ref":"#/definitions/Port"}]},
		"size":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity"},
		"deep":{"type":"object","properties":{"er":{"type":"object","properties":{"est":{"type":"string"}}},"value":{"type":"string"}}},
		"list":{"type":"array","items":{"type":"string"}},
		"loop":{"$ref":"#/definitions/Loop"}}},
	"Port":{"type":"string","format":"int-or-string","description":"Of the definition."},
	"Loop":{"$ref":"#/definitions/Loop"},
	"io.k8s.apimachinery.pkg.api.resource.Quantity":{"type":"string"}}`
	var all map[string]*spec.Schema
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		panic(err)
	}
	return all
}

// A table has the columns that every table has, what is printed, the scalars of the schema down to two members, and the
// object.
func TestSchemas_DescribeTheColumnsOfAKind(t *testing.T) {
	t.Parallel()
	schemas := NewSchemas(definitions())
	table := schemas.Describe(schema.GroupResource{Group: "example.com", Resource: "things"},
		schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"})
	var got []string
	for _, c := range table.Columns[len(leading()):] {
		got = append(got, fmt.Sprintf("%s %s %s", c.Name, c.Type, c.Source()))
	}
	want := []string{
		"data JSON_TEXT data", "immutable BOOLEAN immutable", "items JSON_TEXT items",
		"spec_deep_value TEXT spec.deep.value", "spec_port TEXT spec.port", "spec_ratio REAL spec.ratio",
		"spec_replicas INTEGER spec.replicas",
		"spec_since DATETIME_TEXT spec.since", "spec_size DOUBLE spec.size", "spec_size_text TEXT spec.size",
		"object JSON_TEXT ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the columns are\n%q, want\n%q", got, want)
	}
	description := func(name string) string {
		i := slices.IndexFunc(table.Columns, func(c Column) bool { return c.Name == name })
		return table.Columns[i].Description
	}
	if table.Description != "A Thing." || table.Version != "v1" || table.Kind != "Thing" ||
		description("spec_replicas") != "How many." || description("spec_port") != "A port." {
		t.Errorf("the table is %+v", table)
	}
	if hidden := slices.DeleteFunc(slices.Clone(table.Columns), func(c Column) bool {
		return !c.IsHidden()
	}); len(hidden) != 1 || table.Columns[MomentColumn].Name != MomentName ||
		table.Columns[LabelsColumn].Name != "labels" || table.Columns[NamespaceColumn].Name != "namespace" ||
		table.Columns[NameColumn].Name != "name" || table.Columns[RevisionColumn].Name != "revision" {
		t.Errorf("hidden are %+v", hidden)
	}
	none := schemas.Describe(schema.GroupResource{Resource: "others"},
		schema.GroupVersionKind{Version: "v1", Kind: "Other"})
	if len(none.Columns) != len(leading())+1 {
		t.Errorf("a kind without a schema has the columns %+v", none.Columns)
	}
}

// What kubectl prints of Pods is counted, and the owner is the controller.
func TestColumns_OfWhatIsMadeOfSeveralValues(t *testing.T) {
	t.Parallel()
	columns := append(leading(), printed(schema.GroupResource{Resource: "pods"})...)
	value := func(name, text string) any {
		i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == name })
		return columns[i].Value([]byte(text))
	}
	const statuses = `[{"name":"a","ready":true,"restartCount":2},{"ready":false,"restartCount":3},{"ready":"true","restartCount":"x"}]`
	const owners = `[{"kind":"A","name":"a"},{"kind":"B","name":"b","uid":"1","controller":true},{"kind":"C","name":"c","controller":true}]`
	for _, test := range []struct {
		name, text string
		want       any
	}{
		{"ready", statuses, "1/3"}, {"restarts", statuses, int64(5)}, {"ready", "[]", "0/0"}, {"restarts", "[]", int64(0)},
		{"ready", "null", nil},
		{"owner_kind", owners, "B"}, {"owner_name", owners, "b"}, {"owner_uid", owners, "1"},
		{"owner_name", `[{"name":"a","controller":false}]`, nil},
		{"phase", `"Running"`, "Running"},
	} {
		if got := value(test.name, test.text); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s of %s is %v, want %v", test.name, test.text, got, test.want)
		}
	}
	for of := range printedColumns { // each is as it must be written
		plural, group, _ := strings.Cut(of, ".")
		for _, c := range printed(schema.GroupResource{Group: group, Resource: plural}) {
			if c.Name == "" || strings.ContainsAny(c.Name, "#?=. ") || len(c.Path) < 2 || c.make == nil {
				t.Errorf("%s has a column %+v", of, c)
			}
		}
	}
}

// Names fit into PostgreSQL, and stay different.
func TestFullName_FitsAndIsUnique(t *testing.T) {
	t.Parallel()
	if got := FullName(schema.GroupResource{Resource: "pods"}); got != "pods" {
		t.Error(got)
	}
	if got := FullName(schema.GroupResource{Group: "Apps", Resource: "deployments"}); got != "deployments.apps" {
		t.Error(got)
	}
	seen := map[string]bool{}
	for i := range 100 {
		name := FullName(schema.GroupResource{Group: strings.Repeat("long.", 12) + fmt.Sprint(i, ".example.com"),
			Resource: "things"})
		if len(name) > maxName || seen[name] {
			t.Errorf("%s has %d bytes", name, len(name))
		}
		seen[name] = true
	}
	if exact := strings.Repeat("a", maxName); FullName(schema.GroupResource{Resource: exact}) != exact ||
		FullName(schema.GroupResource{Resource: exact + "a"}) == exact+"a" {
		t.Error("the bound is another one")
	}
}

// fixed has the tables of its names, or fails.
type fixed struct {
	names []string
	err   error
}

func (f fixed) Names() []string { return f.names }

func (f fixed) Table(_ context.Context, name string) (*Table, error) {
	if f.err != nil || !slices.Contains(f.names, name) {
		return nil, f.err
	}
	return &Table{Kind: f.names[0]}, nil
}

// Of servers that have a table of one name, the first counts; the error of one is not an absent table.
func TestServers_AskInTheirOrder(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	servers := Servers{fixed{names: []string{"a", "b"}}, fixed{names: []string{"c", "b"}}}
	names := servers.Names()
	if slices.Sort(names); !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("the names are %q", names)
	}
	for name, want := range map[string]string{"a": "a", "b": "a", "c": "c", "d": ""} {
		table, err := servers.Table(t.Context(), name)
		if err != nil || (table == nil) != (want == "") || table != nil && table.Kind != want {
			t.Errorf("%s is %+v, %v", name, table, err)
		}
	}
	if _, err := append(servers, fixed{err: failed}).Table(t.Context(), "d"); !errors.Is(err, failed) {
		t.Errorf("it fails with %v", err)
	}
}
