package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
)

// TestSize_OfAnObjectIsBounded: an object grows up to the limit, with its managed fields or without, and one of that size can still be
// deleted.
func TestSize_OfAnObjectIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	const key = "/pods/ns/large"
	fields := []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("m", 1<<20), Operation: metav1.ManagedFieldsOperationUpdate}}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "large"}}
	if err := f.Create(t.Context(), key, pod, &example.Pod{}, 0); err != nil {
		t.Fatal(err)
	}
	update := func(ctx context.Context, change func(*example.Pod)) (*example.Pod, error) {
		out := &example.Pod{}
		err := f.GuaranteedUpdate(ctx, key, out, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
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
	apply := WithWrite(t.Context(), &Write{Verb: "apply"})
	for i, step := range []struct {
		ctx       context.Context
		size      int
		hasFields bool
		fails     bool
	}{
		{t.Context(), 1 << 20, true, false},
		{apply, 1 << 20, true, true}, // it has to write managed fields
		{WithWrite(t.Context(), &Write{}), 1 << 20, false, false},
		{WithWrite(t.Context(), &Write{}), 1 << 20, false, true},
		{t.Context(), maxObject - 2<<20 - 1000, false, true}, // with managed fields, and by nobody who may leave them out
		{WithWrite(t.Context(), &Write{}), maxObject - 2<<20 - 1000, false, false},
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

// Only the server itself is exempt from the quota: not a user of its name in the history, and not
// one who impersonates it.
func TestIsOwn_OnlyOfTheServer(t *testing.T) {
	as := func(name string) context.Context {
		return request.WithUser(t.Context(), &user.DefaultInfo{Name: name})
	}
	for _, test := range []struct {
		name string
		ctx  context.Context
		want bool
	}{
		{"no request", t.Context(), true},
		{"the server", as(user.APIServerUser), true},
		{"a user with the name of the program", as(programName), false},
		{"a user", as("byre-admin"), false},
		{"an impersonated server", WithRealUser(as(user.APIServerUser), "byre-admin"), false},
	} {
		if got := isOwn(test.ctx); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
