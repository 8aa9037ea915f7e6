package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// exampleScheme has upstream's example group, which its suite stores.
func exampleScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	return scheme
}

// fixture is a store with selectsEverything behind it running.
type fixture struct {
	*Store
	store *sqlstore.Store
	feed  *watch.Feed
	codec runtime.Codec
}

// testPrefix is what upstream's prefix transformer puts before values.
const testPrefix = "test!"

// podAttrs are the selectable fields that upstream's watch cache test has.
func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a pod", obj)
	}
	return labels.Set(pod.Labels), fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

// backend is a database that the tests run on.
type backend struct {
	name string
	open func(testing.TB) sqlstore.Driver
	// soleWriter: no other process writes to the database.
	soleWriter bool
}

func backends() []backend {
	return []backend{
		{"model", func(testing.TB) sqlstore.Driver { return storetest.NewModel() }, true},
		{"sqlite", dbtest.SQLite, true},
		{"postgres", dbtest.Postgres, false},
	}
}

func newFixture(t testing.TB, b backend, change ...func(*Config)) *fixture {
	t.Helper()
	return newFixtureWith(t, b, watch.Options{Interval: 50 * time.Millisecond}, change...)
}

func newFixtureWith(t testing.TB, b backend, opts watch.Options, change ...func(*Config)) *fixture {
	t.Helper()
	driver := b.open(t)
	t.Cleanup(func() { driver.Close() })
	feed := watch.New(driver, opts)
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish, ExpireInterval: 100 * time.Millisecond})
	dbtest.Serve(t, "feed", feed.Run)
	dbtest.Serve(t, "store", store.Run)

	codecs := serializer.NewCodecFactory(exampleScheme())
	cfg := Config{
		Store:            store,
		Feed:             feed,
		GroupResource:    schema.GroupResource{Resource: "pods"},
		ResourcePrefix:   "/pods/",
		Codec:            apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		StorageVersion:   examplev1.SchemeGroupVersion,
		Encoding:         "test/v1",
		NewFunc:          func() runtime.Object { return &example.Pod{} },
		AttrFunc:         podAttrs,
		IndexFields:      []string{"spec.nodeName"},
		BookmarkInterval: time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	f := &fixture{Store: New(cfg), store: store, feed: feed, codec: cfg.Codec}
	// etcd's first revision is 1, and upstream's tests count from there.
	if err := f.records.ensureFirstRevision(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// increase writes an object that no test reads, and so moves the revision by one.
func (f *fixture) increase(ctx context.Context, t *testing.T) int64 {
	c, err := f.store.Commit(ctx, sqlstore.Write{
		Op:    sqlstore.Create,
		Key:   sqlstore.Key{Resource: "increases", Name: fmt.Sprint(time.Now().UnixNano())},
		Value: []byte("{}"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.Revision
}

func (f *fixture) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	revision, err := parseVersion(resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.CompactOlder(ctx, sqlstore.Compaction{UpTo: revision}); err != nil {
		t.Fatal(err)
	}
}

// compactAndIncrease compacts and then writes, as upstream's test of etcd does.
func (f *fixture) compactAndIncrease(ctx context.Context, t *testing.T, resourceVersion string) {
	f.compact(ctx, t, resourceVersion)
	f.increase(ctx, t)
}

// stored checks the encoding of a stored value, as upstream's test of etcd does.
func (f *fixture) stored(ctx context.Context, t *testing.T, key string) {
	at, err := f.records.locate(key)
	if err != nil {
		t.Fatal(err)
	}
	record, _, err := f.store.Get(ctx, at.Key)
	if err != nil {
		t.Fatalf("no value under %q: %v", key, err)
	}
	data, _, err := f.serializer.Open(ctx, watch.NewEntry(record))
	if err != nil {
		t.Fatal(err)
	}
	obj, err := runtime.Decode(f.codec, data)
	if err != nil {
		t.Fatalf("can't decode %s: %v", data, err)
	}
	if pod := metav1.Object(obj.(*example.Pod)); pod.GetResourceVersion() != "" || pod.GetSelfLink() != "" {
		t.Errorf("stored with resourceVersion %q, selfLink %q", pod.GetResourceVersion(), pod.GetSelfLink())
	}
}

// swap changes the transformer of a running store, which only tests do, and drops what was
// read with the old one.
func (f *fixture) swap(transformer value.Transformer) {
	f.serializer.Transformer.Transformer = transformer
	f.forget()
}

func (f *fixture) forget() {
	snapshot, err := f.feed.Snapshot(context.Background(), sqlstore.Resource{Resource: "pods"})
	if err != nil {
		return
	}
	for e := range snapshot.All("", nil) {
		e.SetAttributes(nil)
		e.Representations.Clear()
	}
}

func withPrefix(cfg *Config) {
	cfg.Transformer = storagetesting.NewPrefixTransformer([]byte(testPrefix), false)
}

type prefixed struct{ *fixture }

func (p prefixed) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	before := p.serializer.Transformer.Transformer.(*storagetesting.PrefixTransformer)
	changed := *before
	p.swap(modify(&changed))
	return func() { p.swap(before) }
}

type corruptible struct{ *fixture }

// UpdateTransformer implements storagetesting.InterfaceWithTransformerOverride.
func (c corruptible) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	before := c.serializer.Transformer.Transformer
	c.swap(modify(before))
	return func() { c.swap(before) }
}

// failingTransformer is a transformer that can't read what is stored while fails is set.
type failingTransformer struct {
	value.Transformer
	fails atomic.Bool
}

func (f *failingTransformer) TransformFromStorage(
	ctx context.Context, data []byte, at value.Context,
) ([]byte, bool, error) {
	if f.fails.Load() {
		return nil, true, errors.New("bits flipped")
	}
	return f.Transformer.TransformFromStorage(ctx, data, at)
}

func newFailing(t *testing.T, b backend) (*fixture, func(bool)) {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.AllowUnsafeMalformedObjectDeletion, true)
	f := newFixture(t, b, withPrefix)
	transformer := &failingTransformer{Transformer: f.serializer.Transformer.Transformer}
	f.swap(transformer)
	return f, func(fails bool) {
		transformer.fails.Store(fails)
		f.forget()
	}
}

// keptOpen is a driver that Close leaves open: two fixtures use it in turn.
type keptOpen struct{ sqlstore.Driver }

func (keptOpen) Close() error { return nil }

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
	err := f.Delete(context.Background(), "/pods/"+namespace+"/"+name, out, nil, storage.ValidateAllObjectFunc, nil,
		storage.DeleteOptions{})
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
