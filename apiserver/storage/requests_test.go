package storage

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// all returns the options of a list or a watch of selectsEverything.
func all(change ...func(*storage.ListOptions)) storage.ListOptions {
	opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	for _, c := range change {
		c(&opts)
	}
	return opts
}

func labelled(selector string) func(*storage.ListOptions) {
	return func(o *storage.ListOptions) {
		parsed, err := labels.Parse(selector)
		if err != nil {
			panic(err)
		}
		o.Predicate.Label = parsed
	}
}

func from(revision int64) func(*storage.ListOptions) {
	return func(o *storage.ListOptions) { o.ResourceVersion = fmt.Sprint(revision) }
}

func withBookmarks(o *storage.ListOptions) { o.Predicate.AllowWatchBookmarks = true }

func withInitialEvents(o *storage.ListOptions) { yes := true; o.SendInitialEvents = &yes }

// create creates a Pod with labels ("a=1,b=2") and returns it as it was stored.
func (f *fixture) create(t testing.TB, namespace, name, labelled string) *example.Pod {
	t.Helper()
	set, err := labels.ConvertSelectorToLabelsMap(labelled)
	if err != nil {
		t.Fatal(err)
	}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set}}
	out := &example.Pod{}
	if err := f.Create(context.Background(), "/pods/"+namespace+"/"+name, pod, out, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

func (f *fixture) label(t testing.TB, namespace, name, key, value string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	err := f.GuaranteedUpdate(context.Background(), "/pods/"+namespace+"/"+name, out, false, nil,
		storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
			pod := in.(*example.Pod)
			if pod.Labels == nil {
				pod.Labels = map[string]string{}
			}
			pod.Labels[key] = value
			return pod, nil
		}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (f *fixture) delete(t testing.TB, namespace, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	err := f.Delete(context.Background(), "/pods/"+namespace+"/"+name, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// wire encodes an object as upstream's encoder would send it.
func (f *fixture) wire(t testing.TB, obj runtime.Object) string {
	t.Helper()
	data, err := runtime.Encode(f.codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(trimNewline(data))
}

// events reads n events of a watch.
func events(t testing.TB, w EncodedWatch, n int) []EncodedEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []EncodedEvent
	for len(got) < n {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("after %d of %d events: %v", len(got), n, err)
		}
		got = append(got, batch...)
	}
	if len(got) > n {
		t.Fatalf("%d events, want %d", len(got), n)
	}
	return got
}

func (f *fixture) watch(t testing.TB, opts storage.ListOptions) EncodedWatch {
	t.Helper()
	w, err := f.WatchEncoded(t.Context(), "/pods", opts, f.Stored())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func (f *fixture) listed(t testing.TB, key string, opts storage.ListOptions) (items []string, list *EncodedList) {
	t.Helper()
	list, err := f.ListEncoded(t.Context(), key, opts, f.Stored())
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range list.Items {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, string(e.AppendJSON(nil, true)))
	}
	return items, list
}

// onEach runs a test on every database.
func onEach(t *testing.T, test func(*testing.T, backend)) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) { t.Parallel(); test(t, b) })
	}
}

// trimNewline removes the newline that encoders end an object with.
func trimNewline(data []byte) []byte { return bytes.TrimRight(data, "\n") }
