package crd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const sample = "widgets.example.com"

// definitionAt is the definition of widgets at a revision, stripped. Each generation
// has another spec.
func definitionAt(revision int, uid string, generation int64) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: sample, UID: types.UID(uid), Generation: generation, ResourceVersion: strconv.Itoa(revision)},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    "example.com",
			Names:    apiextensionsv1.CustomResourceDefinitionNames{ShortNames: []string{strconv.FormatInt(generation, 10)}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			},
		},
	}
	strip(crd)
	return crd
}

// store is where a table looks for what the watch has not shown it.
type store struct {
	crd   *apiextensionsv1.CustomResourceDefinition
	reads int
	// loaded says that the feed has what is stored.
	loaded bool
}

func (s *store) known(string) (int64, bool) {
	if s.crd == nil {
		return 0, s.loaded
	}
	revision, err := strconv.ParseInt(s.crd.ResourceVersion, 10, 64)
	return revision, s.loaded && err == nil
}

func (s *store) fresh(context.Context) (int64, error) { return 100, nil }

func (s *store) latest(context.Context, string) (*apiextensionsv1.CustomResourceDefinition, error) {
	s.reads++
	if s.crd == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, sample)
	}
	return s.crd.DeepCopy(), nil
}

func newTestTable(s *store) (*table, *int) {
	changes := 0
	return &table{
		shared: &shared{}, known: s.known, fresh: s.fresh, latest: s.latest, byName: map[string]*definition{},
		changed: func(string) { changes++ }, forget: func(string, string) {}, gone: map[schema.GroupResource]bool{},
	}, &changes
}

// ends says whether watches of a definition's instances end.
func ends(d *definition) bool {
	select {
	case <-d.instances.ending.Begun():
		return true
	default:
		return false
	}
}

func find(t *testing.T, table *table) *definition {
	t.Helper()
	d, err := table.find(t.Context(), sample, "v1")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTableAsksTheStoreOnlyWhileItDoesNotKnow(t *testing.T) {
	s := &store{crd: definitionAt(5, "a", 1)}
	table, changes := newTestTable(s)
	if find(t, table) == nil || s.reads != 1 {
		t.Fatalf("not found in the store, after %d reads", s.reads)
	}
	if *changes != 0 || len(table.group("example.com")) != 0 {
		t.Error("shown to clients before the watch has shown it")
	}
	table.put(definitionAt(5, "a", 1), false)
	if find(t, table) == nil || s.reads != 1 || *changes != 1 {
		t.Errorf("after the watch has shown it: %d reads, %d changes", s.reads, *changes)
	}
}

// TestTableForgetsWhatTheWatchNeverShowed reads a definition that is deleted
// before the watch gets there.
func TestTableForgetsWhatTheWatchNeverShowed(t *testing.T) {
	s := &store{crd: definitionAt(5, "a", 1)}
	table, _ := newTestTable(s)
	if find(t, table) == nil {
		t.Fatal("not found in the store")
	}
	s.crd = nil
	if find(t, table) != nil {
		t.Error("served although it is gone")
	}
	if len(table.byName) != 0 {
		t.Error("kept although it is gone")
	}
}

// TestTableIsNotLate changes a definition that the watch has not shown yet.
func TestTableIsNotLate(t *testing.T) {
	s := &store{crd: definitionAt(5, "a", 1), loaded: true}
	table, _ := newTestTable(s)
	table.put(definitionAt(5, "a", 1), false)
	if find(t, table); s.reads != 0 {
		t.Error("read although nothing has changed")
	}
	s.crd = definitionAt(6, "a", 2)
	if d := find(t, table); d.crd.Generation != 2 || d.provisional || s.reads != 1 {
		t.Errorf("after a change: generation %d, provisional %v, %d reads", d.crd.Generation, d.provisional, s.reads)
	}
	if find(t, table); s.reads != 1 {
		t.Error("read again although nothing has changed since")
	}
	s.crd = nil
	if find(t, table) != nil {
		t.Error("served although it is gone")
	}
}

// TestTableIsAskedTooEarly asks for what a definition does not serve yet.
func TestTableIsAskedTooEarly(t *testing.T) {
	early := definitionAt(5, "a", 1)
	early.Status.Conditions = nil
	s := &store{crd: early, loaded: true}
	table, _ := newTestTable(s)
	table.put(early, false)
	for range 3 {
		if find(t, table) != nil {
			t.Fatal("served before it was established")
		}
	}
	if s.reads != 0 {
		t.Errorf("read %d times although nothing has changed", s.reads)
	}
	s.crd = definitionAt(6, "a", 1)
	if find(t, table) == nil {
		t.Error("not served although it is established by now")
	}
}

// TestTableLooksAgain replaces a definition between its being found and its being
// read: the request goes on with the one that replaced it.
func TestTableLooksAgain(t *testing.T) {
	s := &store{crd: definitionAt(5, "a", 1)}
	table, _ := newTestTable(s)
	errRead := errors.New("read")
	var asked []string
	table.shared.read = func(_ context.Context, _, revision string) (*source, error) {
		asked = append(asked, revision)
		if revision == "5" {
			s.crd = definitionAt(6, "a", 2)
			return nil, errReplaced
		}
		return nil, errRead
	}
	if _, _, err := table.version(t.Context(), sample, "v1"); !errors.Is(err, errRead) || !slices.Equal(asked, []string{"5", "6"}) {
		t.Errorf("read at %v: %v", asked, err)
	}
	table.shared.read = func(context.Context, string, string) (*source, error) { return nil, errReplaced }
	if _, _, err := table.version(t.Context(), sample, "v1"); !errors.Is(err, errReplaced) {
		t.Errorf("a definition that is always another: %v", err)
	}
	s.crd = nil
	if d, _, err := table.version(t.Context(), sample, "v1"); d != nil || err != nil {
		t.Errorf("a definition that is gone: %v, %v", d, err)
	}
}

// TestStripTwice: what the watch has stripped keeps the hashes of the whole.
func TestStripTwice(t *testing.T) {
	crd := definitionAt(1, "a", 1)
	before := maps.Clone(crd.Annotations)
	strip(crd)
	if !maps.Equal(before, crd.Annotations) {
		t.Errorf("%v became %v", before, crd.Annotations)
	}
	crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{}
	if strip(crd); crd.Annotations[specHash] == before[specHash] {
		t.Error("annotations that came with a definition were taken for its hashes")
	}
}

func TestTableGoesForward(t *testing.T) {
	s := &store{}
	table, _ := newTestTable(s)
	first := table.put(definitionAt(5, "a", 1), false)
	if late := table.put(definitionAt(4, "a", 1), false); late != first {
		t.Error("an older state took the place of a newer one")
	}
	status := table.put(definitionAt(6, "a", 1), false)
	if status.instances != first.instances {
		t.Error("a change of the status made other instances")
	}
	deleting := definitionAt(6, "a", 1)
	deleting.ResourceVersion, deleting.Generation = "7", 2
	if begun := table.put(deleting, false); begun.instances != first.instances {
		t.Error("a new generation of the same spec made other instances")
	}
	spec := table.put(definitionAt(8, "a", 2), false)
	if spec.instances == status.instances || !ends(status) || ends(spec) {
		t.Error("a change of the spec did not end the watches of before, or ended its own")
	}
	again := table.put(definitionAt(10, "b", 1), false)
	table.remove(definitionAt(9, "a", 2), 9)
	if table.get(sample) != again {
		t.Error("the end of one definition took out the next of that name")
	}
	table.remove(definitionAt(11, "b", 1), 11)
	if table.get(sample) != nil || !ends(again) {
		t.Error("what is gone is still served")
	}
}

// TestTableForgetsLater: what the feed keeps of a definition's instances is needed
// for a while after its end, and not to be forgotten if it was defined again.
func TestTableForgetsLater(t *testing.T) {
	table, _ := newTestTable(&store{})
	forgotten := 0
	table.forget = func(string, string) { forgotten++ }
	for range 2 {
		table.put(definitionAt(5, "a", 1), false)
		table.remove(definitionAt(6, "a", 1), 6)
		if table.release(); forgotten != 0 {
			t.Fatal("forgotten by the first release after the end")
		}
		table.put(definitionAt(7, "b", 1), false)
		if table.release(); forgotten != 0 {
			t.Fatal("forgotten although it is defined again")
		}
		table.remove(definitionAt(8, "b", 1), 8)
	}
	table.release()
	if table.release(); forgotten != 1 {
		t.Errorf("forgotten %d times", forgotten)
	}
}

func TestLazyKeepsWhatIsUsed(t *testing.T) {
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
		{func() {}, 1},                           // made, though it had failed
		{l.release, 1},                           // kept: it was used
		{func() { l.release(); l.release() }, 2}, // given up, and made again
		{func() {}, 2},                           // kept
	} {
		step.before()
		if got, err := l.get(); err != nil || got != step.want {
			t.Errorf("step %d: %d, %v; want %d", i, got, err, step.want)
		}
	}
}
