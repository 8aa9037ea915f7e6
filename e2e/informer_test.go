package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

const (
	objects = 5000
	writers = 8
	changes = 600 // by each writer
	cuts    = 50
)

// TestInformers_SeeTheSameObjects lists and watches 5,000 objects while 8 writers
// change them, and compares what three clients have seen with the database: an
// informer, a dynamic informer, and a watch whose connection is cut 50 times, which must
// have seen every single change in order.
func TestInformers_SeeTheSameObjects(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openDatabase(t, name)
			testInformers(t, db, startByre(t, db))
		})
	}
}

func testInformers(t *testing.T, db database, s *servers.Server) {
	const ns = "informers"
	c := client(t, s)
	createNamespace(t, c, ns)
	each(t, writers, func(ctx context.Context, w int) error {
		for i := w; i < objects; i += writers {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: objectName(i),
				Labels: map[string]string{"shard": strconv.Itoa(i % 10)}}}
			if _, err := c.CoreV1().ConfigMaps(ns).Create(ctx, object, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})

	ctx, cancel := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	t.Cleanup(func() { cancel(); watchers.Wait() })

	var net cutter
	config := net.through(s.Config(servers.AdminToken))
	typed := informers.NewSharedInformerFactoryWithOptions(clientFor(t, config), 0, informers.WithNamespace(ns))
	typedStore := typed.Core().V1().ConfigMaps().Informer().GetStore()
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	untyped := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, ns, nil)
	untypedStore := untyped.ForResource(schema.GroupVersionResource{Version: "v1",
		Resource: "configmaps"}).Informer().GetStore()
	typed.Start(ctx.Done())
	untyped.Start(ctx.Done())
	typed.WaitForCacheSync(ctx.Done())
	untyped.WaitForCacheSync(ctx.Done())

	list, err := c.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	seen := newFollower(list.ResourceVersion)
	watchers.Go(func() { seen.follow(ctx, s, ns) })

	changeObjects(t, c, ns, &net)

	query := fmt.Sprintf(
		"SELECT name, revision FROM objects WHERE resource = 'configmaps' AND namespace = '%s' ORDER BY name", ns)
	want := map[string]string{}
	for _, row := range mustQuery(t, db, query) {
		name, revision := splitRow(t, row)
		want[name] = revision
	}
	awaitEqual(t, "the informer's cache", want, func() map[string]string { return contents(t, typedStore) })
	awaitEqual(t, "the dynamic informer's cache", want, func() map[string]string { return contents(t, untypedStore) })

	query = fmt.Sprintf(
		"SELECT revision, name FROM changes WHERE resource = 'configmaps' AND namespace = '%s' AND revision > %s ORDER BY revision", ns, list.ResourceVersion)
	history := mustQuery(t, db, query)
	seen.await(t, history)
	if seen.cuts < cuts {
		t.Errorf("the watch was cut %d times only, not %d", seen.cuts, cuts)
	}
}

// changeObjects makes, changes and deletes objects by 8 writers at once, and breaks
// the informers' connections now and then.
func changeObjects(t *testing.T, c kubernetes.Interface, ns string, net *cutter) {
	t.Helper()
	each(t, writers, func(ctx context.Context, w int) error {
		random := rand.New(rand.NewPCG(uint64(w), 7))
		for i := range changes {
			if err := changeObject(ctx, c, ns, random); err != nil {
				return err
			}
			if w == 0 && i%(changes/3) == changes/6 {
				net.cut()
			}
		}
		return nil
	})
}

func changeObject(ctx context.Context, c kubernetes.Interface, ns string, random *rand.Rand) error {
	configMaps := c.CoreV1().ConfigMaps(ns)
	name := objectName(random.IntN(objects + objects/10))
	var err error
	switch random.IntN(4) {
	case 0:
		err = configMaps.Delete(ctx, name, metav1.DeleteOptions{})
	case 1:
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	default:
		var object *corev1.ConfigMap
		if object, err = configMaps.Get(ctx, name, metav1.GetOptions{}); err == nil {
			object.Data = map[string]string{"value": strconv.Itoa(random.Int())}
			_, err = configMaps.Update(ctx, object, metav1.UpdateOptions{})
		}
	}
	// The writers change the same objects concurrently, so that these are expected.
	if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// follower watches again from the last event after each cut, without ever listing.
type follower struct {
	mu   sync.Mutex
	last string   // resourceVersion of the last event
	rows []string // what it saw: revision and name
	cuts int
	err  error
}

func newFollower(after string) *follower { return &follower{last: after} }

func (f *follower) follow(ctx context.Context, s *servers.Server, ns string) {
	var net cutter
	c, err := kubernetes.NewForConfig(net.through(s.Config(servers.AdminToken)))
	for err == nil && ctx.Err() == nil {
		err = f.watchOnce(ctx, c, ns, &net)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// watchOnce watches until the connection breaks, which it breaks itself after a share of
// the changes. It returns an error only where another watch would fail, too.
func (f *follower) watchOnce(ctx context.Context, c kubernetes.Interface, ns string, net *cutter) error {
	w, err := c.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: f.last, AllowWatchBookmarks: true})
	if err != nil {
		if apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
			return err
		}
		return nil // cut while it was asked for
	}
	defer w.Stop()
	// Somewhat less than half of the changes find their object in the state
	// that they need, and each of those is an event.
	until := len(f.rows) + writers*changes/3/cuts
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		object, err := meta.Accessor(event.Object)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.last = object.GetResourceVersion()
		if event.Type != watch.Bookmark {
			f.rows = append(f.rows, f.last+"\t"+object.GetName())
		}
		cut := len(f.rows) >= until && f.cuts < cuts && net.cut() > 0
		if cut {
			f.cuts++
		}
		f.mu.Unlock()
		if cut {
			return nil // the next watch begins after the last event that was handled
		}
	}
	return nil
}

// await waits until the follower has seen exactly these changes.
func (f *follower) await(t *testing.T, want []string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(storetest.Patience)
	for {
		f.mu.Lock()
		rows, err := f.rows, f.err
		f.mu.Unlock()
		for i := range min(len(rows), len(want)) {
			if rows[i] != want[i] {
				t.Fatalf("event %d of the watch is %q, the database has %q", i, rows[i], want[i])
			}
		}
		if err != nil {
			t.Fatalf("the watch could not go on after %d of %d changes: %v", len(rows), len(want), err)
		}
		if len(rows) == len(want) {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("the watch saw %d changes, the database has %d", len(rows), len(want))
		}
	}
}

func objectName(i int) string { return fmt.Sprintf("object-%04d", i) }

func contents(t *testing.T, store cache.Store) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, item := range store.List() {
		object, err := meta.Accessor(item)
		if err != nil {
			t.Fatal(err)
		}
		m[object.GetName()] = object.GetResourceVersion()
	}
	return m
}

func awaitEqual(t *testing.T, what string, want map[string]string, get func() map[string]string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(storetest.Patience)
	for {
		got := get()
		if maps.Equal(got, want) {
			return
		}
		select {
		case <-tick.C:
			continue
		case <-timeout:
		}
		for name, revision := range want {
			if got[name] != revision {
				t.Errorf("%s has %s at %q, the database at %s", what, name, got[name], revision)
				break
			}
		}
		t.Fatalf("%s has %d objects, the database %d", what, len(got), len(want))
	}
}
