package crd

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"byre/crd/instances"
)

const sample = "widgets.example.com"

// definitionAt is the stripped definition of widgets at a revision. Each generation has a
// different spec.
func definitionAt(revision int, uid string, generation int64) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: sample, UID: types.UID(uid), Generation: generation,
			ResourceVersion: strconv.Itoa(revision)},
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
	instances.Strip(crd)
	return crd
}

// fakeStore is a definitionStore with at most one definition.
type fakeStore struct {
	crd       *apiextensionsv1.CustomResourceDefinition
	reads     int
	forgotten int
	// loaded reports whether the watch cache holds definitions.
	loaded bool
}

func (s *fakeStore) CachedRevision(string) (int64, bool) {
	if s.crd == nil {
		return 0, s.loaded
	}
	return instances.Revision(s.crd), s.loaded
}

func (s *fakeStore) Sync(context.Context) (int64, error) { return 100, nil }

func (s *fakeStore) Get(context.Context, string) (*apiextensionsv1.CustomResourceDefinition, error) {
	s.reads++
	if s.crd == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, sample)
	}
	return s.crd.DeepCopy(), nil
}

func (s *fakeStore) ForgetInstances(schema.GroupResource) { s.forgotten++ }

// sourceReader is a instances.SourceReader.
type sourceReader func(name, resourceVersion string) (instances.Source, error)

func (r sourceReader) Source(_ context.Context, name, resourceVersion string) (instances.Source, error) {
	return r(name, resourceVersion)
}

func (sourceReader) IsReplaced(context.Context, *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	return false, nil
}

func newTestResolver(s *fakeStore) *resolver {
	return newResolver(&instances.Environment{}, s)
}

func find(t *testing.T, r *resolver) *resolved {
	t.Helper()
	d, err := r.find(t.Context(), sample, "v1")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestResolver_ReadsOnlyWhatTheInformerHasNotShown(t *testing.T) {
	t.Parallel()
	s := &fakeStore{crd: definitionAt(5, "a", 1)}
	r := newTestResolver(s)
	if find(t, r) == nil || s.reads != 1 {
		t.Fatalf("not found in the store, after %d reads", s.reads)
	}
	if r.takeChanged().Len() != 0 || len(r.listGroup("example.com")) != 0 {
		t.Error("shown to clients before the informer has shown it")
	}
	r.put(definitionAt(5, "a", 1), false)
	if find(t, r) == nil || s.reads != 1 || r.takeChanged().Len() != 1 {
		t.Errorf("after the informer has shown it: %d reads", s.reads)
	}
}

// TestResolver_RemovesWhatTheInformerNeverShows: a definition that a request has read, and
// that is deleted before the informer shows it, is removed.
func TestResolver_RemovesWhatTheInformerNeverShows(t *testing.T) {
	t.Parallel()
	s := &fakeStore{crd: definitionAt(5, "a", 1)}
	r := newTestResolver(s)
	if find(t, r) == nil {
		t.Fatal("not found in the store")
	}
	s.crd = nil
	if find(t, r) != nil {
		t.Error("served although it is gone")
	}
	if r.get(sample) != nil {
		t.Error("kept although it is gone")
	}
}

// TestResolver_IsNotStale: while the informer lags, requests are served by the changed
// definition.
func TestResolver_IsNotStale(t *testing.T) {
	t.Parallel()
	s := &fakeStore{crd: definitionAt(5, "a", 1), loaded: true}
	r := newTestResolver(s)
	r.put(definitionAt(5, "a", 1), false)
	if find(t, r); s.reads != 0 {
		t.Error("read although nothing has changed")
	}
	s.crd = definitionAt(6, "a", 2)
	if d := find(t, r); d.CRD.Generation != 2 || d.Provisional || s.reads != 1 {
		t.Errorf("after a change: generation %d, provisional %v, %d reads", d.CRD.Generation, d.Provisional, s.reads)
	}
	if find(t, r); s.reads != 1 {
		t.Error("read again although nothing has changed since")
	}
	s.crd = nil
	if find(t, r) != nil {
		t.Error("served although it is gone")
	}
}

// TestResolver_FollowsANewEpoch: a change of the definition was lost by a failover. The informer lists again, and shows
// an older revision.
func TestResolver_FollowsANewEpoch(t *testing.T) {
	t.Parallel()
	s := &fakeStore{crd: definitionAt(105, "a", 2), loaded: true}
	r := newTestResolver(s)
	r.put(definitionAt(105, "a", 2), false)
	r.put(definitionAt(100, "a", 1), false) // late
	if d := find(t, r); d.CRD.Generation != 2 {
		t.Errorf("after a late event: generation %d", d.CRD.Generation)
	}
	s.crd = definitionAt(100, "a", 1)
	r.put(definitionAt(100, "a", 1), false)
	if d := find(t, r); d.CRD.Generation != 1 || s.reads != 0 {
		t.Errorf("in the new epoch: generation %d, %d reads", d.CRD.Generation, s.reads)
	}
}

// TestResolver_PollsAreCheap: repeated requests for a version that is not served yet do not
// read the store each time.
func TestResolver_PollsAreCheap(t *testing.T) {
	t.Parallel()
	early := definitionAt(5, "a", 1)
	early.Status.Conditions = nil
	s := &fakeStore{crd: early, loaded: true}
	r := newTestResolver(s)
	r.put(early, false)
	for range 3 {
		if find(t, r) != nil {
			t.Fatal("served before it was established")
		}
	}
	if s.reads != 0 {
		t.Errorf("read %d times although nothing has changed", s.reads)
	}
	s.crd = definitionAt(6, "a", 1)
	if find(t, r) == nil {
		t.Error("not served although it is established by now")
	}
}

// TestResolver_RetriesReplaced: a definition is replaced after it was found and before its
// source is read; the new one serves the request.
func TestResolver_RetriesReplaced(t *testing.T) {
	t.Parallel()
	s := &fakeStore{crd: definitionAt(5, "a", 1)}
	r := newTestResolver(s)
	errRead := errors.New("read")
	var asked []string
	r.env.Sources = sourceReader(func(_, revision string) (instances.Source, error) {
		asked = append(asked, revision)
		if revision == "5" {
			s.crd = definitionAt(6, "a", 2)
			return nil, instances.ErrReplaced
		}
		return nil, errRead
	})
	if _, _, err := r.version(t.Context(), sample, "v1"); !errors.Is(err, errRead) ||
		!slices.Equal(asked, []string{"5", "6"}) {
		t.Errorf("read at %v: %v", asked, err)
	}
	r.env.Sources = sourceReader(func(string, string) (instances.Source, error) { return nil, instances.ErrReplaced })
	if _, _, err := r.version(t.Context(), sample, "v1"); !errors.Is(err, instances.ErrReplaced) {
		t.Errorf("a definition that is always another: %v", err)
	}
	s.crd = nil
	if d, _, err := r.version(t.Context(), sample, "v1"); d != nil || err != nil {
		t.Errorf("a definition that is gone: %v, %v", d, err)
	}
}

// TestResolver_ReplacesHandlers: a change of the spec, and no other change, replaces the
// handlers.
func TestResolver_ReplacesHandlers(t *testing.T) {
	t.Parallel()
	r := newTestResolver(&fakeStore{})
	first := r.put(definitionAt(5, "a", 1), false)
	if late := r.put(definitionAt(4, "a", 2), false); late.Definition != first.Definition ||
		late.handlers != first.handlers {
		t.Error("an older state took the place of a newer one")
	}
	status := r.put(definitionAt(6, "a", 1), false)
	if status.handlers != first.handlers {
		t.Error("a change of the status replaced the handlers")
	}
	spec := r.put(definitionAt(8, "a", 2), false)
	if spec.handlers == status.handlers {
		t.Error("a change of the spec kept the handlers")
	}
	again := r.put(definitionAt(10, "b", 1), false)
	r.remove(definitionAt(9, "a", 2), 9)
	if got := r.get(sample); got == nil || got.handlers != again.handlers {
		t.Error("the deletion of one definition removed the next of that name")
	}
	r.remove(definitionAt(11, "b", 1), 11)
	if r.get(sample) != nil || len(r.handlers) != 0 {
		t.Error("a deleted definition is still served")
	}
}

// TestResolver_ForgetsInstancesLater: watches need the watch cache of a definition's
// instances for some time after its deletion. The watch cache stays if the resource is
// defined again.
func TestResolver_ForgetsInstancesLater(t *testing.T) {
	t.Parallel()
	s := &fakeStore{}
	r := newTestResolver(s)
	for range 2 {
		r.put(definitionAt(5, "a", 1), false)
		r.remove(definitionAt(6, "a", 1), 6)
		if r.release(); s.forgotten != 0 {
			t.Fatal("forgotten by the first release after the end")
		}
		r.put(definitionAt(7, "b", 1), false)
		if r.release(); s.forgotten != 0 {
			t.Fatal("forgotten although it is defined again")
		}
		r.remove(definitionAt(8, "b", 1), 8)
	}
	r.release()
	if r.release(); s.forgotten != 1 {
		t.Errorf("forgotten %d times", s.forgotten)
	}
}
