package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// eventText is an event as text: the parts that the garbage collector's graph uses.
func eventText(e MetadataEvent) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/%s", e.Type, e.Object.Namespace, e.Object.Name)
	for _, owner := range e.Object.OwnerReferences {
		fmt.Fprintf(&b, " of %s %s", owner.Kind, owner.Name)
	}
	for _, finalizer := range e.Object.Finalizers {
		fmt.Fprintf(&b, " keeps %s", finalizer)
	}
	if e.Object.DeletionTimestamp != nil {
		b.WriteString(" going")
	}
	if e.Old != nil && e.Old.DeletionTimestamp != nil {
		b.WriteString(" was going")
	}
	return b.String()
}

func (f *fixture) owned(t *testing.T, namespace, name string, change func(*example.Pod)) *example.Pod {
	t.Helper()
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:   namespace,
		Name:        name,
		UID:         "uid-of-this",
		Labels:      map[string]string{"ownerReferences": `[{"kind":"Trap"}]`},
		Annotations: map[string]string{"a": `"}],"finalizers":["trap"]`},
	}}
	change(pod)
	out := &example.Pod{}
	if err := f.Create(t.Context(), "/pods/"+namespace+"/"+name, pod, out, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

func (f *fixture) change(t *testing.T, namespace, name string, change func(*example.Pod)) {
	t.Helper()
	err := f.GuaranteedUpdate(t.Context(), "/pods/"+namespace+"/"+name, &example.Pod{}, false, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			change(obj.(*example.Pod))
			return obj, nil
		}), nil)
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) watchMetadata() *MetadataWatch {
	return NewMetadataWatch(f.store, f.feed, f.Resource(), DefaultKeyPrefix+f.Prefix()+"/", f.cfg.Transformer)
}

func TestWatch_MetadataOnly(t *testing.T) {
	t.Parallel()
	transformers := map[string]value.Transformer{"plain": nil, "encrypted": gcm(t, "key")}
	for kind, transformer := range transformers {
		t.Run(kind, func(t *testing.T) {
			onEach(t, func(t *testing.T, b backend) {
				driver := b.open(t)
				b.open = func(testing.TB) sqlstore.Driver { return driver }
				watchMetadata(t, newFixture(t, b, func(cfg *Config) { cfg.Transformer = transformer }), driver)
			})
		})
	}
}

func watchMetadata(t *testing.T, f *fixture, driver sqlstore.Driver) {
	w := f.watchMetadata()
	defer w.Close()
	var seen []MetadataEvent
	expect := func(want ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		seen = seen[:0]
		var got []string
		for first := true; first || len(got) < len(want); first = false {
			events, err := w.Next(ctx)
			if err != nil {
				t.Fatalf("after %q: %v", got, err)
			}
			for _, e := range events {
				seen, got = append(seen, e), append(got, eventText(e))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("saw %q, want %q", got, want)
		}
	}
	expect() // nothing exists, and the call does not wait

	set := func(p *example.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u"}}
	}
	first := f.owned(t, "a", "owned", set)
	expect("ADDED a/owned of ReplicaSet web")
	if o := seen[0].Object; o.UID != first.UID || o.ResourceVersion != first.ResourceVersion || o.Labels != nil ||
		o.Annotations != nil {
		t.Errorf("it has uid %s, resourceVersion %s, labels %v", o.UID, o.ResourceVersion, o.Labels)
	}

	f.owned(t, "a", "kept", func(p *example.Pod) { p.Finalizers = []string{"x/y", "z"} })
	expect("ADDED a/kept keeps x/y keeps z")
	now := metav1.Now()
	f.change(t, "a", "kept", func(p *example.Pod) { p.DeletionTimestamp = &now })
	expect("MODIFIED a/kept keeps x/y keeps z going")
	f.change(t, "a", "kept", func(p *example.Pod) { p.Finalizers = p.Finalizers[:1] })
	expect("MODIFIED a/kept keeps x/y going was going")
	f.delete(t, "a", "kept")
	expect("DELETED a/kept keeps x/y going")

	if f.feed.IsLoaded(f.records.resource()) {
		t.Error("following metadata has the records loaded")
	}

	f.owned(t, "a", "stays", func(*example.Pod) {})
	f.owned(t, "b", "goes", func(*example.Pod) {})
	f.owned(t, "b", "returns", func(*example.Pod) {})
	expect("ADDED a/stays", "ADDED b/goes", "ADDED b/returns")
	f.delete(t, "b", "goes")
	f.delete(t, "b", "returns")
	last := f.owned(t, "b", "returns", func(p *example.Pod) { p.UID = "uid-of-another" })
	f.compact(t.Context(), t, last.ResourceVersion)
	// A new feed has no history of its own and reads the store's.
	w.Close()
	w.feed = watch.New(storetest.Shared(driver), watch.Options{}) // nobody publishes to this feed
	dbtest.Serve(t, "feed", w.feed.Run)
	var err error
	if w.sub, err = w.feed.Subscribe(t.Context(), watch.Interest{Resource: sqlstore.Resource{Resource: "pods"}},
		1); err != nil {
		t.Fatal(err)
	}
	expect("MODIFIED a/owned of ReplicaSet web", "MODIFIED a/stays", "ADDED b/returns", "DELETED b/returns",
		"DELETED b/goes")
}

// listingDriver calls a test's function after a list was read.
type listingDriver struct {
	sqlstore.Driver
	listed func()
}

func (d *listingDriver) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	listed, err := d.Driver.List(ctx, q, yield)
	if d.listed != nil {
		d.listed()
	}
	return listed, err
}

// A watch ends if its watch cache is dropped while it begins, for example because the
// store's history was replaced: the objects that it listed may not exist.
func TestWatch_EndsWhenItsHistoryIsReplaced(t *testing.T) {
	t.Parallel()
	driver := &listingDriver{Driver: storetest.NewModel()}
	f := newFixture(t, backend{"model", func(testing.TB) sqlstore.Driver { return driver }, true})
	f.create(t, "ns", "a", "")

	var lists atomic.Int64
	driver.listed = func() {
		if lists.Add(1) == 1 {
			f.feed.Forget(f.records.resource())
		}
	}
	w := f.watchMetadata()
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 {
		if _, err := w.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := lists.Load(); n != 2 {
		t.Errorf("the objects were listed %d times", n)
	}

	c, err := f.cursor(t.Context(), "/pods/", all(withInitialEvents), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	f.feed.Forget(f.records.resource())
	if _, err := c.next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.next(t.Context()); !apierrors.IsResourceExpired(err) {
		t.Errorf("after the initial events: %v", err)
	}
}

// TestWatch_MetadataOfImportedValues: an encrypted value that was imported contains
// protobuf, and its record has no UID. The garbage collector needs the UID and the owners
// of the object.
func TestWatch_MetadataOfImportedValues(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		transformer := gcm(t, "key")
		f := newFixture(t, b, func(cfg *Config) { cfg.Transformer = transformer })

		pod := examplev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "imported", UID: "the-uid", Finalizers: []string{"x/y"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u"}},
		}}
		message, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "example.apiserver.k8s.io/v1", Kind: "Pod"},
			Raw: message}
		raw, err := unknown.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		at := f.records.at("ns", "imported")
		sealed, err := transformer.TransformToStorage(t.Context(), append([]byte("k8s\x00"), raw...),
			value.DefaultContext(at.path))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.store.Commit(t.Context(),
			sqlstore.Write{Op: sqlstore.Create, Key: at.Key, Encoding: "etcd",
				Value: encoding.WrapEncrypted(sealed)}); err != nil {
			t.Fatal(err)
		}

		w := f.watchMetadata()
		defer w.Close()
		events, err := w.Next(t.Context())
		if err != nil || len(events) != 1 {
			t.Fatalf("%d events, %v", len(events), err)
		}
		if got := eventText(events[0]); got != "ADDED ns/imported of ReplicaSet web keeps x/y" ||
			events[0].Object.UID != "the-uid" {
			t.Errorf("it is %q with uid %q", got, events[0].Object.UID)
		}
		if err := f.Delete(t.Context(), "/pods/ns/imported", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
			storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if events, err = w.Next(t.Context()); err != nil || len(events) != 1 || events[0].Object.UID != "the-uid" {
			t.Errorf("its deletion is %v, %v", events, err)
		}
	})
}

// plugin decrypts by a KMS plugin, which is not there while isAway.
type plugin struct {
	value.Transformer
	isAway atomic.Bool
}

func (p *plugin) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	if p.isAway.Load() {
		return nil, false,
			fmt.Errorf("failed to decrypt DEK, error: %w", status.Error(codes.Unavailable, "connection refused"))
	}
	return p.Transformer.TransformFromStorage(ctx, data, at)
}

// TestWatch_MetadataWaitsForTheKMSPlugin: while the plugin is away, no object is shown without its owners.
func TestWatch_MetadataWaitsForTheKMSPlugin(t *testing.T) {
	t.Parallel()
	p := &plugin{Transformer: gcm(t, "key")}
	f := newFixture(t, backends()[0], func(cfg *Config) { cfg.Transformer = p })
	create := func(name string) {
		f.owned(t, "a", name, func(p *example.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u"}}
		})
	}
	w := f.watchMetadata()
	defer w.Close()
	for _, name := range []string{"first", "second"} { // one is listed, the other is a change
		create(name)
		p.isAway.Store(true)
		if events, err := w.Next(t.Context()); err == nil || len(events) > 0 {
			t.Fatalf("without the plugin: %v, %v", events, err)
		}
		p.isAway.Store(false)
		events, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := eventText(events[len(events)-1]); got != "ADDED a/"+name+" of ReplicaSet web" {
			t.Errorf("with the plugin: %s", got)
		}
	}
}
