package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// countingDriver counts the calls of Changes, and can say that its database was restored.
type countingDriver struct {
	*storetest.Model
	reads    atomic.Int64
	restored atomic.Bool
}

func (d *countingDriver) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	d.reads.Add(1)
	return d.Model.Changes(ctx, q)
}

func (d *countingDriver) State(ctx context.Context) (sqlstore.State, error) {
	state, err := d.Model.State(ctx)
	if d.restored.Load() {
		state.Epoch = "restored"
	}
	return state, err
}

// fixture is a Storage over a model, and the feed that it follows.
type fixture struct {
	*testing.T
	driver  *countingDriver
	feed    *watch.Feed
	storage *Storage
	stop    func()

	mu sync.Mutex
	// granted are the users and namespaces that the authorizer allows; a namespace is "" for all.
	granted map[[2]string]bool
	// refused is a resource that it does not allow eve.
	refused string
	asked   int
	writing sync.Mutex
	// elsewhere says that other processes make the changes.
	elsewhere bool
}

// Authorize implements the authorizer.
func (b *fixture) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if who := a.GetUser().GetName(); b.granted[[2]string{who, a.GetNamespace()}] &&
		(who != "eve" || a.GetResource() != b.refused) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (b *fixture) grant(who, namespace string, allowed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.granted[[2]string{who, namespace}] = allowed
}

// newFixture starts a Storage. shared says that other processes may write to the database.
func newFixture(t *testing.T, shared bool) *fixture {
	b := &fixture{T: t, driver: &countingDriver{Model: storetest.NewModel()},
		granted: map[[2]string]bool{{"admin", ""}: true}}
	var driver sqlstore.Driver = b.driver
	if shared {
		driver = storetest.Shared(b.driver)
	}
	b.feed = watch.New(driver, watch.Options{})
	b.storage = New(Config{Log: &changes.Log{Driver: driver, Authorizer: b, Prefix: func(of sqlstore.Resource) string {
		return of.Resource
	}}, Feed: b.feed})
	feeding, stopFeed := context.WithCancel(context.Background())
	running, stop := context.WithCancel(context.Background())
	var feed, storage sync.WaitGroup
	feed.Go(func() { _ = b.feed.Run(feeding) })
	storage.Go(func() { _ = b.storage.Run(running) })
	b.stop = sync.OnceFunc(func() {
		stop()
		storage.Wait()
		stopFeed()
		feed.Wait()
	})
	t.Cleanup(b.stop)
	b.write("", "namespaces", "shop", sqlstore.Create)
	b.write("", "namespaces", "bank", sqlstore.Create)
	return b
}

// write makes a change, and returns its revision.
func (b *fixture) write(namespace, resource, name string, op sqlstore.Op) int64 {
	return b.writeAs(sqlstore.Author{User: "writer", Verb: string(op)}, namespace, resource, name, op)
}

func (b *fixture) writeAs(author sqlstore.Author, namespace, resource, name string, op sqlstore.Op) int64 {
	b.writing.Lock()
	defer b.writing.Unlock()
	key := sqlstore.Key{Namespace: namespace, Resource: resource, Name: name}
	w := sqlstore.Write{Op: op, Key: key, UID: "u", Author: author}
	if op != sqlstore.Create {
		old, _, err := b.driver.Get(b.Context(), key)
		if err != nil {
			b.Error(err)
		}
		w.Replaces = old.Revision
	}
	if op != sqlstore.Delete {
		w.Value = fmt.Appendf(nil, `{"kind":"Thing","metadata":{"name":%q},"data":{"key":"%d"}}`, name, w.Replaces)
	}
	outcomes, err := b.driver.Commit(b.Context(), []sqlstore.Write{w})
	if err != nil || outcomes[0].Err != nil {
		b.Error(err, outcomes)
		return 0
	}
	revision := outcomes[0].Revision
	found, err := b.driver.Model.Changes(b.Context(), sqlstore.ChangesQuery{After: revision - 1, Kept: true, Limit: 1})
	if err != nil {
		b.Error(err)
	}
	if b.elsewhere {
		return revision
	}
	for i := range found { // as the store does
		if old := found[i].Old; old != nil {
			found[i].Old = &sqlstore.Record{Key: old.Key, UID: old.UID, Created: old.Created, Revision: old.Revision}
		}
	}
	b.feed.Publish(found)
	return revision
}

func as(ctx context.Context, who, namespace string) context.Context {
	return request.WithNamespace(request.WithUser(ctx, &user.DefaultInfo{Name: who}), namespace)
}

// watch begins a watch of a user, which ends with the test.
func (b *fixture) watch(who, namespace string, options internalversion.ListOptions) apiwatch.Interface {
	b.Helper()
	w, err := b.storage.Watch(as(b.Context(), who, namespace), &options)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.Stop)
	return w
}

func from(revision int64) internalversion.ListOptions {
	return internalversion.ListOptions{ResourceVersion: strconv.FormatInt(revision, 10)}
}

func (b *fixture) last() int64 {
	state, _ := b.driver.State(b.Context())
	return state.Revision
}

// received returns the events of a watch until it is idle, as text: a revision for ADDED. It is for
// tests in a bubble.
func received(w apiwatch.Interface) (all []string) {
	for {
		synctest.Wait()
		select {
		case event, open := <-w.ResultChan():
			if !open {
				return append(all, "closed")
			}
			all = append(all, describe(event))
		default:
			return all
		}
	}
}

func describe(event apiwatch.Event) string {
	switch object := event.Object.(type) {
	case *entry:
		return string(event.Type[:1]) + object.item.Name
	case *Change:
		return strings.TrimSpace(string(event.Type) + " " + object.Annotations[metav1.InitialEventsAnnotationKey])
	case *metav1.Status:
		return fmt.Sprint(object.Code)
	}
	return fmt.Sprintf("%T", event.Object)
}

func (b *fixture) expect(w apiwatch.Interface, want ...string) {
	b.Helper()
	if got := received(w); !slices.Equal(got, want) {
		b.Errorf("the watch has sent %q, want %q", got, want)
	}
}

func added(revision int64) string { return "A" + strconv.FormatInt(revision, 10) }

// Watches from any revision, begun while others write, send what a list has after it.
func TestWatch_SendsWhatAListHas(t *testing.T) {
	t.Parallel()
	b := newFixture(t, false)
	start := b.last()
	const writers, writes = 4, 60
	var writing sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			name := fmt.Sprint("w", i)
			b.write("shop", "configmaps", name, sqlstore.Create)
			for range writes {
				b.write("shop", "configmaps", name, sqlstore.Update)
				b.writeAs(sqlstore.Author{Verb: "update", Subresource: "status"}, "shop", "configmaps", name, sqlstore.Update)
			}
		})
	}
	watches := map[int64]apiwatch.Interface{}
	for i := range int64(40) {
		at := start + 2*i
		if b.last() >= at {
			watches[at] = b.watch("admin", "shop", from(at))
		}
	}
	watches[0] = b.watch("admin", "shop", internalversion.ListOptions{})
	writing.Wait()
	list, err := b.storage.List(as(t.Context(), "admin", "shop"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for at, w := range watches {
		for _, item := range list.(*ChangeList).Items {
			if item.Revision <= at {
				continue
			}
			event, open := <-w.ResultChan()
			got, ok := event.Object.(*entry)
			if !open || !ok {
				t.Fatalf("from %d: %v", at, event)
			}
			want, _ := json.Marshal(item)
			if have, _ := json.Marshal(got.GetObject()); event.Type != apiwatch.Added || !bytes.Equal(have, want) {
				t.Fatalf("from %d: %s %s, want %s", at, event.Type, have, want)
			}
		}
	}
	if len(watches) < 3 || len(list.(*ChangeList).Items) != writers*(writes+1) {
		t.Errorf("%d watches, %d items", len(watches), len(list.(*ChangeList).Items))
	}
}

// readsOf counts the reads of changes while something is done.
func (b *fixture) readsOf(do func()) int64 {
	synctest.Wait()
	before := b.driver.reads.Load()
	do()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	return b.driver.reads.Load() - before
}

// writeBatches makes changes of ten ConfigMaps, five times.
func (b *fixture) writeBatches(op sqlstore.Op) {
	for batch := range 5 {
		for i := range 10 {
			b.write("shop", "configmaps", fmt.Sprint("c", batch, "-", i), op)
		}
		time.Sleep(2 * time.Second)
	}
}

// watchAll starts 200 watches of what comes.
func (b *fixture) watchAll() (all []apiwatch.Interface) {
	b.grant("alice", "shop", true)
	at := b.last()
	for i := range 200 {
		all = append(all, b.watch([]string{"admin", "alice"}[i%2], "shop", from(at)))
	}
	return all
}

// expectAfter expects that watches have sent all changes after a revision.
func (b *fixture) expectAfter(at int64, watches []apiwatch.Interface) {
	b.Helper()
	var want []string
	for revision := at + 1; revision <= b.last(); revision++ {
		want = append(want, added(revision))
	}
	for _, w := range watches {
		b.expect(w, want...)
	}
}

// The changes of this process are not read from the database. Only the values that they replaced are, together, once
// for all watches, and not for a watch that does not select them.
func TestWatch_ReadsReplacedValuesOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		if reads := b.readsOf(func() { b.writeBatches(sqlstore.Create) }); reads != 0 {
			t.Errorf("%d reads although nobody watches", reads)
		}
		none := from(b.last())
		none.FieldSelector = fields.ParseSelectorOrDie("object.name=none")
		other := b.watch("admin", "shop", none)
		if reads := b.readsOf(func() { b.writeBatches(sqlstore.Update) }); reads != 0 {
			t.Errorf("%d reads for a watch that selects none", reads)
		}
		at := b.last()
		watches := b.watchAll()
		if reads := b.readsOf(func() {
			b.writeBatches(sqlstore.Update)
			b.expectAfter(at, watches)
		}); reads < 1 || reads > 10 {
			t.Errorf("%d reads for 5 batches of updates", reads)
		}
		for _, w := range append(watches, other) {
			w.Stop()
		}
		if reads := b.readsOf(func() { b.writeBatches(sqlstore.Delete) }); reads != 0 {
			t.Errorf("%d reads although nobody watches any more", reads)
		}
	})
}

// However many watch, the changes of other processes are read once by the feed, and once for all watches.
func TestWatch_ReadsTheDatabaseOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, true)
		b.elsewhere = true
		time.Sleep(2 * time.Second)
		at := b.last()
		watches := b.watchAll()
		if reads := b.readsOf(func() {
			b.writeBatches(sqlstore.Create)
			b.expectAfter(at, watches)
		}); reads < 10 || reads > 20 {
			t.Errorf("%d reads for 5 batches", reads)
		}
		// Those of this process come between them.
		at = b.last()
		for i := range 10 {
			b.elsewhere = i%3 > 0
			b.write("shop", "configmaps", fmt.Sprint("mixed-", i), sqlstore.Create)
		}
		time.Sleep(5 * time.Second)
		b.expectAfter(at, watches)
	})
}

// The authorizer is asked again after changes.AnswersHold, not for each change.
func TestWatch_EndsToShowWhatIsRevoked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		b.grant("alice", "shop", true)
		w := b.watch("alice", "shop", from(b.last()))
		b.write("bank", "configmaps", "a", sqlstore.Create)
		first := b.write("shop", "configmaps", "a", sqlstore.Create)
		b.expect(w, added(first))
		asked := b.asked
		time.Sleep(changes.AnswersHold / 2)
		b.expect(w)
		b.grant("alice", "shop", false)
		second := b.write("shop", "configmaps", "a", sqlstore.Update)
		b.expect(w, added(second))
		if b.asked != asked {
			t.Errorf("the authorizer was asked %d times for a second change", b.asked-asked)
		}
		time.Sleep(changes.AnswersHold / 2)
		b.write("shop", "configmaps", "a", sqlstore.Update)
		time.Sleep(changes.AnswersHold)
		b.write("shop", "configmaps", "a", sqlstore.Update)
		time.Sleep(changes.AnswersHold)
		b.expect(w)
		b.grant("alice", "shop", true)
		third := b.write("shop", "configmaps", "a", sqlstore.Update)
		b.expect(w, added(third))
	})
}

// What is known of a namespace does not hold for one that is created again: neither for those who
// had rights in the first, nor for those who have rights in the second.
func TestWatch_ANamespaceThatIsCreatedAgainInheritsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		start := b.last()
		b.grant("alice", "shop", true)
		alice, admin := b.watch("alice", "shop", from(start)), b.watch("admin", "shop", from(start))
		first := b.write("shop", "secrets", "a", sqlstore.Create)
		b.expect(alice, added(first))
		removed := b.write("shop", "secrets", "a", sqlstore.Delete)
		b.write("", "namespaces", "shop", sqlstore.Delete)
		b.grant("alice", "shop", false)
		b.write("", "namespaces", "shop", sqlstore.Create)
		b.grant("bob", "shop", true)
		second := b.write("shop", "secrets", "a", sqlstore.Create)
		bob := b.watch("bob", "shop", from(start))
		time.Sleep(time.Second)
		b.expect(alice)
		b.expect(bob, added(second))
		b.expect(b.watch("bob", "shop", internalversion.ListOptions{}), added(second))
		b.expect(admin, added(first), added(removed), added(second))
	})
}

// An answer of the authorizer is about names. It does not count if the namespace was created again
// before it came.
func TestRights_AnAnswerIsNotForALaterNamespace(t *testing.T) {
	t.Parallel()
	b := newFixture(t, false)
	b.write("shop", "secrets", "a", sqlstore.Create)
	found, err := b.driver.Changes(t.Context(), sqlstore.ChangesQuery{After: b.last() - 1, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	created := changes.NewCreations(b.driver)
	if _, err := created.Of(t.Context(), changes.NamespaceKey("shop")); err != nil {
		t.Fatal(err)
	}
	b.write("", "namespaces", "shop", sqlstore.Delete)
	b.write("", "namespaces", "shop", sqlstore.Create)
	b.grant("bob", "shop", true)
	rights, err := b.storage.config.RightsOf(as(t.Context(), "bob", "shop"))
	if err != nil {
		t.Fatal(err)
	}
	if sees, err := rights.Sees(t.Context(), &found[0], created); sees || err != nil {
		t.Errorf("bob sees a change of the namespace before: %v, %v", sees, err)
	}
}

func TestWatch_SelectsAsAListDoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		options := from(b.last())
		all := b.watch("admin", "", options)
		options.FieldSelector = fields.ParseSelectorOrDie("object.resource=pods")
		pods := b.watch("admin", "", options)
		options.FieldSelector = fields.ParseSelectorOrDie("subresource=status")
		status := b.watch("admin", "", options)
		cluster := b.watch("admin", "default", from(b.last()))
		settings := b.write("shop", "configmaps", "a", sqlstore.Create)
		pod := b.write("shop", "pods", "a", sqlstore.Create)
		b.writeAs(sqlstore.Author{Verb: "update", Subresource: "status"}, "shop", "pods", "a", sqlstore.Update)
		namespace := b.write("", "namespaces", "new", sqlstore.Create)
		time.Sleep(time.Second)
		b.expect(all, added(settings), added(pod), added(namespace))
		b.expect(pods, added(pod))
		b.expect(status, added(namespace-1))
		b.expect(cluster, added(namespace))
	})
}

// A watch begins after the moment since, and a list ends at until.
func TestWatch_BeginsAfterAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		first := b.write("shop", "configmaps", "a", sqlstore.Create)
		time.Sleep(time.Second)
		second := b.write("shop", "configmaps", "b", sqlstore.Create)
		after := func(selector string) apiwatch.Interface {
			return b.watch("admin", "shop", internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(selector)})
		}
		watches := []apiwatch.Interface{after(fmt.Sprint("since=", first)),
			after("since=" + time.Now().Add(-time.Millisecond).UTC().Format(time.RFC3339Nano))}
		time.Sleep(time.Second)
		for _, w := range watches {
			b.expect(w, added(second))
		}
		b.expect(after(fmt.Sprint("until=", first)), "400", "closed")
		b.expect(after(fmt.Sprint("since!=", first)), "400", "closed")
		b.expect(after("order=newest"), "400", "closed")
	})
}

// Who sees only what a namespace has had since it was created is told so for a moment before: what is
// missing would look as if it had not been there.
func TestList_ReachesBackToTheNamespace(t *testing.T) {
	t.Parallel()
	b := newFixture(t, false)
	before := b.last()
	b.write("", "namespaces", "shop", sqlstore.Delete)
	created := b.write("", "namespaces", "shop", sqlstore.Create)
	b.write("shop", "configmaps", "a", sqlstore.Create)
	b.grant("bob", "shop", true)
	for who, want := range map[string]string{
		"admin": "",
		"bob":   fmt.Sprintf("the namespace shop was created after %d: the earliest moment is revision %d", before, created),
	} {
		list := func(revision int64) error {
			_, err := b.storage.List(as(t.Context(), who, "shop"),
				&internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(fmt.Sprint("since=", revision))})
			return err
		}
		if err := list(before); fmt.Sprint(err) != cmp.Or(want, "<nil>") || want != "" && !apierrors.IsResourceExpired(err) {
			t.Errorf("%s: %v", who, err)
		}
		if err := list(created); err != nil {
			t.Errorf("%s: %v", who, err)
		}
	}
}

// So is who does not see what a custom resource was before its definition was created again.
func TestList_ReachesBackToTheDefinition(t *testing.T) {
	t.Parallel()
	b := newFixture(t, false)
	commit := func(op sqlstore.Op, key sqlstore.Key, replaces int64) int64 {
		outcomes, err := b.driver.Commit(b.Context(),
			[]sqlstore.Write{{Op: op, Key: key, UID: "u", Replaces: replaces, Value: []byte(`{}`)}})
		if err != nil || outcomes[0].Err != nil {
			t.Fatal(err, outcomes)
		}
		return outcomes[0].Revision
	}
	gear := sqlstore.Key{Owner: sqlstore.Custom, Group: "example.com", Resource: "gears", Namespace: "shop", Name: "g"}
	definition := sqlstore.Key{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions",
		Name: "gears.example.com"}
	before := b.last()
	first := commit(sqlstore.Create, definition, 0)
	b.grant("bob", "shop", true)
	selector := ""
	list := func(who string, revision int64) error {
		_, err := b.storage.List(as(t.Context(), who, "shop"), &internalversion.ListOptions{
			FieldSelector: fields.ParseSelectorOrDie(fmt.Sprintf("%ssince=%d", selector, revision)),
		})
		return err
	}
	made := commit(sqlstore.Create, gear, 0)
	if err := list("bob", before); err != nil {
		t.Errorf("there was no other definition: %v", err)
	}
	commit(sqlstore.Delete, gear, made)
	commit(sqlstore.Delete, definition, first)
	created := commit(sqlstore.Create, definition, 0)
	want := fmt.Sprintf("the definition of gears.example.com was created after %d: the earliest moment is revision %d",
		made, created)
	b.refused = "gears"
	b.grant("eve", "shop", true)
	for _, selector = range []string{"", "object.group=example.com,",
		"object.group=example.com,object.resource=gears,object.name=g,", "object.resource=gears,object.name=never,"} {
		if err := list("bob", made); !apierrors.IsResourceExpired(err) || err.Error() != want {
			t.Errorf("%s: %v, want %s", selector, err, want)
		}
		if err := errors.Join(list("bob", created), list("bob", created-1), list("admin", made),
			list("eve", made)); err != nil {
			t.Errorf("%s: %v", selector, err)
		}
	}
}

// What retention has deleted is an error for a watch that selects it, and only for that.
func TestWatch_ExpiresByTheSelectedResource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		start := b.last()
		for range 3 {
			b.write("shop", "pods", "p"+strconv.FormatInt(b.last(), 10), sqlstore.Create)
		}
		kept := b.write("shop", "configmaps", "a", sqlstore.Create)
		pods := sqlstore.Resource{Resource: "pods"}
		if _, _, err := b.driver.DeleteHistory(t.Context(),
			sqlstore.Deletion{Of: pods, UpTo: start + 2, Limit: 100}); err != nil {
			t.Fatal(err)
		}
		b.expect(b.watch("admin", "shop", from(start)), "410", "closed")
		b.expect(b.watch("admin", "shop", from(start+2)), added(start+3), added(kept))
		options := from(start)
		options.FieldSelector = fields.ParseSelectorOrDie("object.resource=configmaps")
		b.expect(b.watch("admin", "shop", options), added(kept))
		b.expect(b.watch("admin", "shop", internalversion.ListOptions{ResourceVersion: "0"}), added(start+3), added(kept))
		b.expect(b.watch("admin", "shop", from(kept+1)), "504", "closed")
		if _, err := b.storage.Watch(as(t.Context(), "admin", "shop"),
			&internalversion.ListOptions{ResourceVersion: "x"}); !apierrors.IsBadRequest(err) {
			t.Errorf("an invalid revision: %v", err)
		}
	})
}

// A watch whose client does not read goes on where it stopped, from the database.
func TestWatch_ASlowClientMissesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		at := b.last()
		slow, expired := b.watch("admin", "shop", from(at)), b.watch("admin", "shop", from(at))
		for range 2 * windowChanges {
			b.write("shop", "pods", "p"+strconv.FormatInt(b.last(), 10), sqlstore.Create)
		}
		time.Sleep(10 * time.Second)
		b.storage.tail.mu.Lock()
		kept := len(b.storage.tail.window.entries)
		b.storage.tail.mu.Unlock()
		if kept != windowChanges {
			t.Errorf("the window has %d changes", kept)
		}
		got := received(slow)
		for i := range got {
			if got[i] != added(at+1+int64(i)) {
				t.Fatalf("event %d is %s", i, got[i])
			}
		}
		if len(got) != 2*windowChanges {
			t.Errorf("%d events", len(got))
		}
		if _, _, err := b.driver.DeleteHistory(t.Context(),
			sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: at + windowChanges,
				Limit: 4 * windowChanges}); err != nil {
			t.Fatal(err)
		}
		if got := received(expired); len(got) < 2 || got[len(got)-2] != "410" {
			t.Errorf("a watch whose changes are deleted has sent %d events, the last %q", len(got), got[max(len(got)-2, 0):])
		}
	})
}

// Retention may delete what the tail has not read yet. Only watches that select it end.
func TestWatch_GoesOnAfterACompaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, true)
		b.elsewhere = true
		time.Sleep(2 * time.Second)
		options := from(b.last())
		all := b.watch("admin", "shop", options)
		options.FieldSelector = fields.ParseSelectorOrDie("object.resource=configmaps")
		settings := b.watch("admin", "shop", options)
		write := func(resource string, op sqlstore.Op) int64 {
			revision := b.write("shop", resource, "a", op)
			if err := b.feed.WaitFor(t.Context(), revision); err != nil {
				t.Fatal(err)
			}
			return revision
		}
		first := write("configmaps", sqlstore.Create)
		synctest.Wait()
		// The tail pauses now, and the feed does not.
		deleted := write("pods", sqlstore.Create)
		second := write("configmaps", sqlstore.Update)
		if _, _, err := b.driver.DeleteHistory(t.Context(),
			sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: deleted, Limit: 10}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		third := b.write("shop", "configmaps", "a", sqlstore.Update)
		time.Sleep(time.Second)
		b.expect(settings, added(first), added(second), added(third))
		b.expect(all, added(first), "410", "closed")
	})
}

func TestWatch_ExpiresWithTheEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, true)
		time.Sleep(2 * time.Second)
		w := b.watch("admin", "shop", from(b.last()))
		b.expect(w)
		b.driver.restored.Store(true)
		time.Sleep(2 * time.Second)
		b.expect(w, "410", "closed")
		again := b.watch("admin", "shop", from(b.last()))
		first := b.write("shop", "configmaps", "a", sqlstore.Create)
		time.Sleep(2 * time.Second)
		b.expect(again, added(first))
	})
}

// Bookmarks are those of every resource: one ends the initial events, and others come each minute.
func TestWatch_SendsBookmarks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		first := b.write("shop", "configmaps", "a", sqlstore.Create)
		yes, no := true, false
		initial := b.watch("admin", "shop",
			internalversion.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true,
				ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
		now := b.watch("admin", "shop", internalversion.ListOptions{SendInitialEvents: &no, AllowWatchBookmarks: true})
		b.expect(initial, added(first), "BOOKMARK true")
		b.expect(now)
		b.write("bank", "configmaps", "a", sqlstore.Create)
		time.Sleep(61 * time.Second)
		b.expect(initial, "BOOKMARK")
		b.expect(now, "BOOKMARK")
	})
}

// The end of Run ends the watches without an error, and waits for them.
func TestWatch_EndsWithRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, false)
		idle := b.watch("admin", "shop", from(b.last()))
		b.expect(idle)
		b.stop()
		b.expect(idle, "closed")
		if _, err := b.storage.Watch(as(t.Context(), "admin", "shop"), nil); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("a watch after the end: %v", err)
		}
	})
}

// An item is encoded once for all watches in one format.
func TestEntry_EncodesOnce(t *testing.T) {
	t.Parallel()
	e := &entry{item: &Change{Revision: 7}}
	encodings := map[runtime.Identifier]int{}
	for range 3 {
		for _, id := range []runtime.Identifier{"a", "b"} {
			var out strings.Builder
			if err := e.CacheEncode(id, func(object runtime.Object, w io.Writer) error {
				encodings[id]++
				_, err := fmt.Fprint(w, id, object.(*Change).Revision)
				return err
			}, &out); err != nil || out.String() != string(id)+"7" {
				t.Errorf("%q, %v", out.String(), err)
			}
		}
	}
	if !maps.Equal(encodings, map[runtime.Identifier]int{"a": 1, "b": 1}) {
		t.Error(encodings)
	}
}
