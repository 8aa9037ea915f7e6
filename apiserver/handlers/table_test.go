package handlers_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/randfill"
)

// TestPrintRow_FollowsTime prints random objects of every built-in kind and lets time
// pass. It compares the kept rows with those that upstream prints then, of each object
// and of all objects in a list.
func TestPrintRow_FollowsTime(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	kept := 0
	for _, r := range s.api.Stored() {
		if r.IsSubresource() {
			continue
		}
		t.Run(r.Path(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for seed := range int64(10) {
					obj := randomObject(r.GroupVersionKind(), seed)
					if obj == nil {
						continue
					}
					row, err := r.PrintRow(t.Context(), obj)
					if err != nil {
						t.Fatal(err)
					}
					if row == nil {
						continue // such a row is printed each time
					}
					kept++
					for _, pause := range []time.Duration{0, 700 * time.Millisecond, 95 * time.Second, 3 * time.Hour,
						60 * 24 * time.Hour} {
						time.Sleep(pause)
						got, err := row()
						if err != nil {
							t.Fatal(err)
						}
						for _, want := range printed(t, r.Scope().TableConvertor.ConvertToTable, r.GroupVersionKind(), obj) {
							if got != want {
								t.Fatalf("after %v\n got %s\nwant %s", pause, got, want)
							}
						}
					}
				}
			})
		})
	}
	if kept < 300 {
		t.Errorf("only %d rows were kept", kept)
	}
}

// The rows of a list of three objects, whose values differ, are those of the objects alone, for every built-in kind
// whose tables are made of such rows. It prints the others too: what is excepted has a reason.
func TestPrintRow_OfAListIsThatOfEachObject(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	annotations := map[string]string{"storageclass.kubernetes.io/is-default-class": "true",
		"ingressclass.kubernetes.io/is-default-class": "true"}
	compared, differing := 0, map[string]bool{}
	for _, r := range s.api.Stored() {
		if r.IsSubresource() || r.Scope().TableConvertor == nil {
			continue
		}
		kind := r.GroupVersionKind()
		for seed := range int64(20) {
			list, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal,
				Kind: kind.Kind + "List"})
			if err != nil {
				t.Fatal(err)
			}
			var objects []runtime.Object
			for i := range int64(3) {
				obj := randomObject(kind, 3*seed+i)
				if obj == nil {
					continue
				}
				m, err := meta.Accessor(obj)
				if err != nil {
					t.Fatal(err)
				}
				m.SetName([]string{"c", "a", "b"}[i])
				m.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Duration(1+(i+seed)%3) * 24 * time.Hour)))
				if seed%2 == 0 || i > 0 {
					m.SetAnnotations(annotations)
				}
				objects = append(objects, obj)
			}
			if err := meta.SetList(list, objects); err != nil {
				t.Fatal(err)
			}
			var alone []string
			for _, obj := range objects {
				alone = append(alone, rowsOf(t, r.Scope().TableConvertor.ConvertToTable, obj)...)
			}
			if rows := rowsOf(t, r.Scope().TableConvertor.ConvertToTable, list); !slices.Equal(rows, alone) {
				differing[kind.GroupKind().String()] = true
				if r.KeepsRows() {
					t.Errorf("%s:\n a list %s\nobjects %s", kind, rows, alone)
				}
			}
			compared += len(objects)
		}
	}
	if want := []string{"FlowSchema.flowcontrol.apiserver.k8s.io", "StorageClass.storage.k8s.io"}; compared < 1000 ||
		!slices.Equal(slices.Sorted(maps.Keys(differing)), want) {
		t.Errorf("%d objects were compared, and the lists of %q differ, want %q", compared,
			slices.Sorted(maps.Keys(differing)), want)
	}
}

// rowsOf returns the rows of an object or a list, without their objects.
func rowsOf(
	t *testing.T, convert func(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error), of runtime.Object,
) (rows []string) {
	t.Helper()
	table, err := convert(t.Context(), of, &metav1.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table.Rows {
		row.Object = runtime.RawExtension{}
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(text))
	}
	return rows
}

// printed returns the row of an object, of a request for the object and of one for a list.
func printed(
	t *testing.T, convert func(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error),
	kind schema.GroupVersionKind, obj runtime.Object,
) (rows []string) {
	t.Helper()
	objects := []runtime.Object{obj}
	if list, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal,
		Kind: kind.Kind + "List"}); err == nil && meta.SetList(list, objects) == nil {
		objects = append(objects, list)
	}
	for _, o := range objects {
		table, err := convert(t.Context(), o, &metav1.TableOptions{})
		if err != nil || len(table.Rows) != 1 {
			t.Fatalf("%v: %d rows", err, len(table.Rows))
		}
		table.Rows[0].Object = runtime.RawExtension{}
		text, err := json.Marshal(table.Rows[0])
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, strings.TrimSuffix(string(text), `,"object":null}`))
	}
	return rows
}

// randomObject returns an object in the internal version, or nil if the random values make
// none.
func randomObject(kind schema.GroupVersionKind, seed int64) runtime.Object {
	obj, err := legacyscheme.Scheme.New(kind)
	if err != nil {
		return nil
	}
	now := time.Now()
	randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(10).Funcs(
		func(t *metav1.Time, c randfill.Continue) {
			if c.Intn(4) > 0 {
				t.Time = now.Add(-time.Duration(c.Intn(100_000)) * time.Second).Truncate(time.Second)
			}
		},
		func(t *metav1.MicroTime, c randfill.Continue) {
			t.Time = now.Add(-time.Duration(c.Intn(100_000)) * time.Second).Truncate(time.Second)
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63n(1000), resource.DecimalSI)
		},
		func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte(`{}`) },
		func(s *string, c randfill.Continue) { *s = []string{"", "a", "<b&>", "x-y"}[c.Intn(4)] },
	).Fill(obj)
	var memory runtime.Object
	func() {
		defer func() { _ = recover() }() // conversions of values that no API accepts may panic
		memory, err = legacyscheme.Scheme.ConvertToVersion(obj,
			schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal})
	}()
	if err != nil || memory == nil {
		return nil
	}
	return memory
}
