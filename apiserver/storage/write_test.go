package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// TestSize_OfAnObjectIsBounded: an object grows up to the limit, with its managed fields or without, and one of that
// size can still be deleted.
func TestSize_OfAnObjectIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	const key = "/pods/ns/large"
	fields := []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("m", 1<<20),
		Operation: metav1.ManagedFieldsOperationUpdate}}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "large"}}
	if err := f.Create(t.Context(), key, pod, &example.Pod{}, 0); err != nil {
		t.Fatal(err)
	}
	update := func(ctx context.Context, change func(*example.Pod)) (*example.Pod, error) {
		out := &example.Pod{}
		err := f.GuaranteedUpdate(ctx, key, out, false, nil,
			storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
				change(in.(*example.Pod))
				return in, nil
			}), nil)
		return out, err
	}
	annotate := func(name string, size int) func(*example.Pod) {
		return func(pod *example.Pod) {
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[name] = strings.Repeat("x", size)
			pod.ManagedFields = fields
		}
	}
	apply := WithRequest(t.Context(), &Request{Grows: true})
	for i, step := range []struct {
		ctx       context.Context
		size      int
		hasFields bool
		fails     bool
	}{
		{t.Context(), 1 << 20, true, false},
		{apply, 1 << 20, true, true}, // it has to write managed fields
		{WithRequest(t.Context(), &Request{MayOmitManagedFields: true}), 1 << 20, false, false},
		{WithRequest(t.Context(), &Request{MayOmitManagedFields: true}), 1 << 20, false, true},
		{t.Context(), maxObject - 2<<20 - 1000, false, true}, // with managed fields, and by nobody who may leave them out
		{WithRequest(t.Context(), &Request{MayOmitManagedFields: true}), maxObject - 2<<20 - 1000, false, false},
	} {
		out, err := update(step.ctx, annotate(fmt.Sprint(i), step.size))
		if (err != nil) != step.fails || err != nil && err.Error() != tooLargeObject {
			t.Fatalf("step %d: %v", i, err)
		}
		if err == nil && (len(out.ManagedFields) > 0) != step.hasFields {
			t.Errorf("step %d: %d managed fields", i, len(out.ManagedFields))
		}
	}
	if _, err := update(t.Context(), func(pod *example.Pod) {
		now := metav1.Now()
		pod.DeletionTimestamp, pod.Finalizers = &now, []string{strings.Repeat("f", 2000)}
	}); err != nil {
		t.Errorf("the deletion begins: %v", err)
	}
	if _, err := update(t.Context(), func(pod *example.Pod) { pod.Finalizers = []string{"f"} }); err != nil {
		t.Errorf("a finalizer goes: %v", err)
	}
}

// The quota counts for new and larger objects of a request that may make the database grow, but not for the Leases of
// nodes and servers.
func TestGrows_ByRequestAndResource(t *testing.T) {
	t.Parallel()
	pods, configMaps := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "configmaps"}
	for _, test := range []struct {
		resource      schema.GroupResource
		namespace     string
		before, after int // 0: it does not exist
		want          bool
	}{
		{pods, "ns", 0, 10, true},
		{configMaps, metav1.NamespaceSystem, 0, 10, true},
		{pods, "ns", 10, 11, true},
		{pods, "ns", 10, 10, false},
		{pods, "ns", 10, 9, false},
		{leases, metav1.NamespaceSystem, 0, 10, false},
		{leases, corev1.NamespaceNodeLease, 0, 10, false},
		{leases, "ns", 0, 10, true},
		{leases, "ns", 10, 11, false},
	} {
		from := &state{}
		if test.before > 0 {
			from.revision, from.data = 1, make([]byte, test.before)
		}
		for _, ofRequest := range []bool{true, false} {
			w := writer{s: &Store{cfg: Config{GroupResource: test.resource}}, request: &Request{Grows: ofRequest}}
			w.at.Namespace = test.namespace
			if got := w.grows(test.after, from); got != (test.want && ofRequest) {
				t.Errorf("%+v of a request that grows=%v: %v", test, ofRequest, got)
			}
		}
	}
}

// The author of a change is that of its request; without one it is the server.
func TestAuthor_IsOfTheRequest(t *testing.T) {
	t.Parallel()
	ann := sqlstore.Author{
		User: "ann", RealUser: "root", Verb: "apply", Subresource: "status", Manager: "kubectl", AuditID: "id-1",
	}
	for _, test := range []struct {
		ctx  context.Context
		want sqlstore.Author
	}{
		{WithRequest(t.Context(), &Request{Author: ann}), ann},
		{t.Context(), sqlstore.Author{User: programName, Verb: "delete"}},
	} {
		if got := requestFrom(test.ctx).author(sqlstore.Delete); got != test.want {
			t.Errorf("got %+v, want %+v", got, test.want)
		}
	}
}
