package storage

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
)

// TestList_ByIndexedFieldReadsFewObjects: a list by an indexed field looks only at the
// objects with the value, whichever version of the program wrote them.
func TestList_ByIndexedFieldReadsFewObjects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	const n = 1000
	for i := range n {
		value := fmt.Sprintf(
			`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p%d","namespace":"ns"},"spec":{"nodeName":"node-%d"}}`, i, i%100)
		_, err := f.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: "ns", Name: fmt.Sprintf("p%d", i)},
			Value: []byte(value), Encoding: []string{"test/v1", "another"}[i%2],
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := f.lister.parseListRequest("/pods/",
		storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
			Label: labels.Everything(), Field: fields.OneTermEqualSelector("spec.nodeName", "node-7"), GetAttrs: podAttrs,
		}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.lister.waitUntilFresh(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	snapshot, err := f.lister.snapshot(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for range f.lister.candidates(l, snapshot) {
		seen++
	}
	if seen != n/100 {
		t.Errorf("looked at %d of %d objects to find %d", seen, n, n/100)
	}
}

// TestLabelSignature_PassesOverNothingThatIsSelected compares signatures with upstream's
// selectors.
func TestLabelSignature_PassesOverNothingThatIsSelected(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	const keys, values = 4, 3
	key := func() string { return fmt.Sprintf("k%d", random.IntN(keys)) }
	value := func() string { return []string{"", "v1", "v2"}[random.IntN(values)] }
	passed := 0
	for range 20_000 {
		set := labels.Set{}
		for range random.IntN(keys + 1) {
			set[key()] = value()
		}
		text := ""
		for range 1 + random.IntN(3) {
			k, v, w := key(), value(), value()
			text += "," + []string{
				k + "=" + v, k + "==" + v, k + "!=" + v, k, "!" + k, k + " in (" + v + ")", k + " in (" + v + "," + w + ")",
				k + " notin (" + v + ")", k + ">1", k + "<1",
			}[random.IntN(10)]
		}
		selector, err := labels.Parse(text[1:])
		if err != nil {
			t.Fatal(text, err)
		}
		demanded := demandedLabels(&storage.SelectionPredicate{Label: selector, Field: fields.Everything()})
		a := (&fieldNames{}).compact("", set, nil)
		switch lacks := a.Signature&demanded != demanded; {
		case lacks && selector.Matches(set):
			t.Fatalf("%q selects %v, whose signature lacks a bit", selector, set)
		case lacks:
			passed++
		}
	}
	if passed < 1000 {
		t.Errorf("signatures passed over %d of 20,000 only", passed)
	}
}

// TestList_ByLabelFindsWhatSelectorsSelect: a list by label is the same before and after the
// attributes of its objects are known.
func TestList_ByLabelFindsWhatSelectorsSelect(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	const n = 300
	for i := range n {
		value := fmt.Sprintf(
			`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p%03d","namespace":"ns","labels":{"app":"a%d","tier":"t%d"}}}`, i, i%20, i%3)
		_, err := f.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: "ns", Name: fmt.Sprintf("p%03d", i)},
			Value: []byte(value), Encoding: []string{f.cfg.Encoding, "another"}[i%2],
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(text string) (names []string) {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		page, err := f.lister.page(t.Context(), "/pods",
			storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
				Label: selector, Field: fields.Everything(), GetAttrs: podAttrs,
			}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range page.items {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, e.Name)
		}
		return names
	}
	for text, want := range map[string]int{"app=a7": 15, "app=a7,tier=t1": 5, "app=none": 0, "app!=a7": 285,
		"app in (a7,a8)": 30, "none": 0, "app": n} {
		f.forget()
		cold := list(text)
		warm := list(text)
		if len(cold) != want || !slices.Equal(cold, warm) {
			t.Errorf("%q lists %d objects cold and %d warm, want %d", text, len(cold), len(warm), want)
		}
	}
}

// BenchmarkListByLabel lists 200 of 100,000 Pods by label, with signatures and without, and
// reports the processor time of all goroutines.
func BenchmarkListByLabel(b *testing.B) {
	const pods = 100_000
	f := podStore(b, backends()[0])
	fillLabelled(b, f, pods)
	for name, text := range map[string]string{
		"signature": "app.kubernetes.io/name=app-3",
		// A requirement with two values demands no label.
		"control": "app.kubernetes.io/name in (app-3,none)",
	} {
		b.Run(name, func(b *testing.B) {
			selector, err := labels.Parse(text)
			if err != nil {
				b.Fatal(err)
			}
			opts := storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
				Label: selector, Field: fields.Everything(), GetAttrs: podstrategy.GetAttrs,
			}}
			before := processTime(b)
			for b.Loop() {
				listPods(b, f, opts, 200)
			}
			b.ReportMetric(float64(processTime(b)-before)/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}

// listPods makes a list and reads it. It fails unless the list has n Pods.
func listPods(b *testing.B, f *fixture, opts storage.ListOptions, n int) {
	list, err := f.ListEncoded(b.Context(), "/pods", opts, f.Stored())
	if err != nil {
		b.Fatal(err)
	}
	got := 0
	for _, err := range list.Items {
		if err != nil {
			b.Fatal(err)
		}
		got++
	}
	if got != n {
		b.Fatalf("%d Pods are listed, want %d", got, n)
	}
}

// fillLabelled creates small Pods of which 200 have one value of a label.
func fillLabelled(b *testing.B, f *fixture, n int) {
	for i := range n {
		pod := benchPod(b, i)
		pod.Annotations, pod.Spec.Volumes, pod.Status.Conditions = nil, nil, nil
		pod.Labels = map[string]string{
			"app.kubernetes.io/name": fmt.Sprintf("app-%d", i%(n/200)), "app.kubernetes.io/instance": "production",
			"app.kubernetes.io/managed-by": "bench", "pod-template-hash": "7d4b9c6f5", "team": fmt.Sprintf("team-%d", i%7),
		}
		if err := f.Create(b.Context(), podKey(pod), pod, pod, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// processTime returns the processor time that the process has used, in nanoseconds.
func processTime(b *testing.B) int64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// podsPerNode is the number of Pods that a list by node selects.
const podsPerNode = 25

// storedPod is a small Pod as a program of another encoding has stored it.
const storedPod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"NAME","namespace":"NAMESPACE","uid":"00000000-0000-0000-0000-000000000000","labels":{"app":"bench"}},` +
	`"spec":{"containers":[{"name":"c","image":"i"}],"nodeName":"NODE"},"status":{"phase":"Running"}}`

// podsStored is a database with n Pods, spread over namespaces and nodes.
func podsStored(b testing.TB, n int, pod string) backend {
	return backend{"sqlite", func(t testing.TB) sqlstore.Driver {
		driver := dbtest.SQLite(t)
		const batch = 1000
		for from := 0; from < n; from += batch {
			writes := make([]sqlstore.Write, 0, batch)
			for i := from; i < min(n, from+batch); i++ {
				namespace, name, node := fmt.Sprintf("ns-%d", i%100), fmt.Sprintf("pod-%07d", i),
					fmt.Sprintf("node-%d", i/podsPerNode)
				value := bytes.ReplaceAll([]byte(pod), []byte("NAMESPACE"), []byte(namespace))
				value = bytes.ReplaceAll(bytes.ReplaceAll(value, []byte("NAME"), []byte(name)), []byte("NODE"), []byte(node))
				writes = append(writes, sqlstore.Write{
					Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: namespace, Name: name},
					UID: name, Encoding: "test/v1", Value: value,
				})
			}
			if _, err := driver.Commit(context.Background(), writes); err != nil {
				b.Fatal(err)
			}
		}
		return driver
	}, true}
}

// BenchmarkListByNode lists the Pods of one node: the time must not grow with the number of
// Pods. It reports the processor time of all goroutines.
func BenchmarkListByNode(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			if n > 100_000 && testing.Short() {
				b.Skip("makes a million Pods")
			}
			f := podStore(b, podsStored(b, n, storedPod))
			list := func(node int) {
				listPods(b, f, everythingOf(fmt.Sprintf("spec.nodeName=node-%d", node)), podsPerNode)
			}
			const nodes = 400
			at := func(i int) int { return i % nodes * (n / podsPerNode / nodes) }
			for i := range nodes { // the first list loads the Pods and makes the index, each decodes its Pods
				list(at(i))
			}
			runtime.GC() // the garbage of loading
			before := processTime(b)
			for i := 0; b.Loop(); i++ {
				list(at(i))
			}
			b.ReportMetric(float64(processTime(b)-before)/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}
