package instances_test

import (
	"strconv"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"byre/crd/instances"
)

const (
	name      = "widgets.example.com"
	shown     = false // the informer has shown the definition
	requested = true  // a request has read the definition from the store
)

// state is the stripped definition of widgets at a revision. Each generation has a
// different spec.
func state(
	revision int, uid string, generation int64, change ...func(*apiextensionsv1.CustomResourceDefinition),
) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Generation: generation,
			ResourceVersion: strconv.Itoa(revision)},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets",
				ShortNames: []string{strconv.FormatInt(generation, 10)}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true}, {Name: "v0"},
			},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			},
		},
	}
	for _, change := range change {
		change(crd)
	}
	instances.Strip(crd)
	return crd
}

// TestTable_Put enters a state of a definition on top of another one: which state the table
// then holds, and what the Change says of handlers, watches, indexes and discovery.
func TestTable_Put(t *testing.T) {
	t.Parallel()
	secondGeneration := func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Generation = 2 }
	otherNames := func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Status.AcceptedNames.Kind = "Widget" }
	otherFields := func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}}
	}
	type want struct {
		dropped, provisional, hidden, keepsHandlers, changesIndexes bool
		watchesEnd                                                  bool
		after                                                       int64
	}
	for _, test := range []struct {
		name   string
		before *apiextensionsv1.CustomResourceDefinition
		by     bool
		after  *apiextensionsv1.CustomResourceDefinition
		byNext bool
		want   want
	}{
		{"first", nil, shown, state(5, "a", 1), shown, want{}},
		{"first, by a request", nil, shown, state(5, "a", 1), requested, want{provisional: true, hidden: true}},
		{"older", state(5, "a", 1), shown, state(4, "a", 2), shown, want{dropped: true}},
		{"older, by a request", state(5, "a", 1), shown, state(4, "a", 2), requested, want{dropped: true}},
		{"same", state(5, "a", 1), shown, state(5, "a", 1), shown, want{dropped: true}},
		{"same, by a request", state(5, "a", 1), shown, state(5, "a", 1), requested, want{dropped: true}},
		{"same, confirmed by the informer", state(5, "a", 1), requested, state(5, "a", 1), shown, want{keepsHandlers: true}},
		{"status", state(5, "a", 1), shown, state(6, "a", 1), shown, want{keepsHandlers: true}},
		{"generation of the same spec", state(5, "a", 1), shown, state(6, "a", 1, secondGeneration), shown,
			want{keepsHandlers: true}},
		{"spec", state(5, "a", 1), shown, state(6, "a", 2), shown, want{watchesEnd: true}},
		{"spec, by a request", state(5, "a", 1), shown, state(6, "a", 2), requested, want{watchesEnd: true}},
		{"spec, twice by a request", state(5, "a", 1), requested, state(6, "a", 2), requested,
			want{provisional: true, hidden: true, watchesEnd: true}},
		{"accepted names", state(5, "a", 1), shown, state(6, "a", 1, otherNames), shown, want{watchesEnd: true}},
		{"selectable fields", state(5, "a", 1), shown, state(6, "a", 1, otherFields), shown,
			want{watchesEnd: true, changesIndexes: true}},
		{"another of that name", state(5, "a", 1), shown, state(9, "b", 1), shown, want{watchesEnd: true, after: 9}},
		{"another of that name, by a request", state(5, "a", 1), shown, state(9, "b", 1), requested,
			want{provisional: true, hidden: true, watchesEnd: true, after: 9}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var table instances.Table
			if test.before != nil {
				table.Put(test.before, test.by, false)
			}
			before := table.Get(name)
			change := table.Put(test.after, test.byNext, false)
			if test.want.dropped {
				if !change.IsNone() || table.Get(name) != before {
					t.Fatalf("%+v", change)
				}
				return
			}
			if change.IsNone() || change.Before != before || change.After != table.Get(name) || change.After.CRD != test.after {
				t.Fatalf("%+v", change)
			}
			got := want{
				provisional: change.After.Provisional, hidden: !change.IsVisible(),
				keepsHandlers: change.KeepsHandlers(), changesIndexes: change.ChangesIndexes(),
			}
			got.after, got.watchesEnd = change.WatchesEnd()
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if listed := len(table.Group("example.com")) == 1; listed == change.After.Provisional {
				t.Errorf("listed: %v", listed)
			}
		})
	}
}

// TestTable_Remove: only the deletion of the definition that the table holds removes it, and
// watches end after the revision of that deletion.
func TestTable_Remove(t *testing.T) {
	t.Parallel()
	var table instances.Table
	table.Put(state(5, "a", 1), shown, true)
	if change := table.Remove(state(6, "b", 1), 6); !change.IsNone() || table.Get(name) == nil {
		t.Errorf("the deletion of another definition of that name: %+v", change)
	}
	change := table.Remove(state(7, "a", 1), 7)
	after, end := change.WatchesEnd()
	if change.After != nil || !change.IsVisible() || change.KeepsHandlers() || !end || after != 7 ||
		table.Get(name) != nil {
		t.Errorf("%+v, watches end: %v, %d", change, end, after)
	}
	if change := table.Remove(state(7, "a", 1), 7); !change.IsNone() {
		t.Errorf("removed twice: %+v", change)
	}
}

func TestDefinition_Serves(t *testing.T) {
	t.Parallel()
	conditions := func(all ...apiextensionsv1.CustomResourceDefinitionConditionType) func(
		*apiextensionsv1.CustomResourceDefinition) {
		return func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Status.Conditions = nil
			for _, kind := range all {
				crd.Status.Conditions = append(crd.Status.Conditions,
					apiextensionsv1.CustomResourceDefinitionCondition{Type: kind, Status: apiextensionsv1.ConditionTrue})
			}
		}
	}
	var table instances.Table
	if table.Get(name).Serves("v1") {
		t.Error("a definition that does not exist serves v1")
	}
	for revision, test := range []struct {
		crd     func(*apiextensionsv1.CustomResourceDefinition)
		version string
		want    bool
	}{
		{conditions(), "v1", false},
		{conditions(apiextensionsv1.NamesAccepted), "v1", true},
		{conditions(apiextensionsv1.Established), "v1", true},
		{conditions(apiextensionsv1.Established), "v0", false},
		{conditions(apiextensionsv1.Established), "v2", false},
	} {
		table.Put(state(revision+1, "a", 1, test.crd), shown, true)
		if got := table.Get(name).Serves(test.version); got != test.want {
			t.Errorf("case %d: %s served: %v", revision, test.version, got)
		}
	}
}
