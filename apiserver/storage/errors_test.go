package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// failing is a driver that fails when the test tells it to.
type failing struct {
	sqlstore.Driver
	write, read error
}

func (f *failing) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	if f.write != nil {
		return nil, f.write
	}
	return f.Driver.Commit(ctx, batch)
}

func (f *failing) Get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	if f.read != nil {
		return sqlstore.Record{}, 0, f.read
	}
	return f.Driver.Get(ctx, key)
}

// An error has a Retry-After only if nothing was written, and never contains the database's
// message.
func TestErrors_RetryOnlyWhatWasNotWritten(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err    error
		code   int32
		reason metav1.StatusReason
		retry  bool
		says   string
	}{
		{fmt.Errorf("%w: dial unix /secret", sqlstore.ErrUnavailable), http.StatusServiceUnavailable,
			metav1.StatusReasonServiceUnavailable, true, "not available"},
		{fmt.Errorf("%w: /secret/byre.db: database or disk is full", sqlstore.ErrDiskFull), http.StatusServiceUnavailable,
			metav1.StatusReasonServiceUnavailable, true, "not available: the disk is full"},
		{fmt.Errorf("%w: cannot execute UPDATE in /secret", sqlstore.ErrReadOnly), http.StatusServiceUnavailable,
			metav1.StatusReasonServiceUnavailable, true, "not available: the database is read-only"},
		{fmt.Errorf("%w: relation \"secret\" does not exist", sqlstore.ErrDatabase), http.StatusInternalServerError,
			metav1.StatusReasonInternalError, false, "the database failed"},
		{fmt.Errorf("%w: /secret/byre.db: malformed", sqlstore.ErrDamaged), http.StatusInternalServerError,
			metav1.StatusReasonInternalError, false, "the database is damaged"},
		{fmt.Errorf("%w: dial unix /secret", sqlstore.ErrUnknown), http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			false, "did not confirm"},
		{fmt.Errorf("reading in /secret: %w", context.DeadlineExceeded), http.StatusGatewayTimeout,
			metav1.StatusReasonTimeout, false, "requested timeout"},
		{errors.New("ERROR: index row of secret size (SQLSTATE 54000)"), http.StatusInternalServerError,
			metav1.StatusReasonInternalError, false, "the database failed"},
	} {
		driver := &failing{Driver: storetest.NewModel()}
		f := newFixture(t, backend{"failing", func(testing.TB) sqlstore.Driver { return driver }, true})
		driver.write, driver.read = test.err, test.err
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
		for name, err := range map[string]error{
			"create": f.Create(t.Context(), "/pods/ns/a", pod, nil, 0),
			"get":    f.Get(t.Context(), "/pods/ns/a", storage.GetOptions{}, &example.Pod{}),
		} {
			var status apierrors.APIStatus
			if !errors.As(err, &status) || status.Status().Code != test.code || status.Status().Reason != test.reason ||
				(status.Status().Details.RetryAfterSeconds > 0) != test.retry || strings.Contains(err.Error(), "secret") ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("%s with %v: %#v", name, test.err, err)
			}
		}
	}
}

// A name that makes a key too long for an index is refused like an invalid name.
func TestCreate_RefusesAKeyThatIsTooLong(t *testing.T) {
	t.Parallel()
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			f := newFixture(t, b)
			name := strings.Repeat("a", sqlstore.MaxKeyBytes)
			pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
			err := f.Create(t.Context(), "/pods/ns/"+name, pod, nil, 0)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.name: Too long") {
				t.Errorf("create: %v", err)
			}
		})
	}
}

// While the database is unavailable, reads at any revision are answered from memory, and a
// watch continues.
func TestReads_AnyRevisionIsServedDuringAnOutage(t *testing.T) {
	t.Parallel()
	driver := &failing{Driver: storetest.NewModel()}
	f := newFixture(t, backend{"failing", func(testing.TB) sqlstore.Driver { return driver }, true})
	f.create(t, "ns", "a", "")
	f.listed(t, "/pods", all())
	w := f.watch(t, all(from(0)))
	driver.write, driver.read = sqlstore.ErrUnavailable, sqlstore.ErrUnavailable
	if items, _ := f.listed(t, "/pods", all(from(0))); len(items) != 1 {
		t.Errorf("%d items", len(items))
	}
	if _, err := f.GetEncoded(t.Context(), "/pods/ns/a", storage.GetOptions{ResourceVersion: "0"},
		f.Stored()); err != nil {
		t.Error(err)
	}
	events(t, w, 1)
}

func TestReads_WaitForAFutureRevision(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b, func(cfg *Config) { cfg.FutureTimeout = 20 * time.Millisecond })
		f.create(t, "ns", "a", "")
		for _, future := range []string{fmt.Sprint(f.feed.Revision() + 1), "9223372036854775808", "18446744073709551615"} {
			_, get := f.GetEncoded(t.Context(), "/pods/ns/a", storage.GetOptions{ResourceVersion: future}, f.Stored())
			at := func(o *storage.ListOptions) { o.ResourceVersion = future }
			exact := func(o *storage.ListOptions) { o.ResourceVersionMatch = metav1.ResourceVersionMatchExact }
			_, list := f.ListEncoded(t.Context(), "/pods", all(at), f.Stored())
			_, listExact := f.ListEncoded(t.Context(), "/pods", all(at, exact), f.Stored())
			_, watch := f.watch(t, all(withInitialEvents, at)).Next(t.Context())
			for name, err := range map[string]error{"get": get, "list": list, "exact list": listExact, "watch": watch} {
				if !storage.IsTooLargeResourceVersion(err) {
					t.Errorf("%s at %s: %v", name, future, err)
				}
			}
		}
		// A read waits for a revision that arrives in time.
		g := newFixture(t, b)
		reading := &waitedFor{Context: t.Context(), began: make(chan struct{})}
		go func() {
			<-reading.began
			g.increase(context.Background(), t)
		}()
		if _, err := g.ListEncoded(reading, "/pods", all(from(g.feed.Revision()+1)), g.Stored()); err != nil {
			t.Error(err)
		}
	})
}

// waitedFor is a context that closes began when its Done is first called.
type waitedFor struct {
	context.Context
	once  sync.Once
	began chan struct{}
}

func (c *waitedFor) Done() <-chan struct{} {
	c.once.Do(func() { close(c.began) })
	return c.Context.Done()
}

func TestReads_RefuseBadRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	for name, opts := range map[string]storage.ListOptions{
		"resourceVersion":       all(func(o *storage.ListOptions) { o.ResourceVersion = "x" }),
		"continue":              all(func(o *storage.ListOptions) { o.Predicate.Continue = "?" }),
		"continue with a NUL":   all(func(o *storage.ListOptions) { o.Predicate.Continue = token(t, "ns/a\x00b\x00") }),
		"continue and revision": all(from(1), func(o *storage.ListOptions) { o.Predicate.Continue = token(t, "ns/a\x00") }),
	} {
		if _, err := f.ListEncoded(t.Context(), "/pods", opts, f.Stored()); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.WatchEncoded(t.Context(), "/pods", all(func(o *storage.ListOptions) {
		o.ResourceVersion = "x"
	}), f.Stored()); err == nil {
		t.Error("a watch from x began")
	}
}

func token(t *testing.T, start string) string {
	token, err := storage.EncodeContinue("/pods/"+start, "/pods/", 1)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A continue token whose key does not end in NUL names the first object of its page.
// Upstream's tokens end in NUL and name the last object of the page before.
func TestContinue_InclusiveTokenNamesTheFirstObject(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b)
		for _, name := range []string{"a", "ab", "abc", "b"} {
			f.create(t, "ns", name, "")
		}
		at := f.feed.Revision()
		f.label(t, "ns", "b", "x", "1") // so that the page is at an older revision
		for want, start := range map[int]string{2: "ns/abc", 3: "ns/ab", 1: "ns/abc\x00"} {
			continued, err := storage.EncodeContinue("/pods/"+start, "/pods/", at)
			if err != nil {
				t.Fatal(err)
			}
			if items, _ := f.listed(t, "/pods", all(func(o *storage.ListOptions) {
				o.Predicate.Continue = continued
			})); len(items) != want {
				t.Errorf("from %q: %v", start, items)
			}
		}
	})
}

// Two writers update one object: the one that loses retries with the state that the other
// wrote.
func TestGuaranteedUpdate_RetriesAfterAConflict(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		const writers, updates = 4, 25
		f := newFixture(t, b)
		f.create(t, "ns", "a", "")
		done := make(chan error)
		for range writers {
			go func() {
				var err error
				for range updates {
					err = errors.Join(err, f.GuaranteedUpdate(context.Background(), "/pods/ns/a", &example.Pod{}, false, nil,
						storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
							in.(*example.Pod).Generation++
							return in, nil
						}), nil))
				}
				done <- err
			}()
		}
		for range writers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		var pod example.Pod
		if err := f.Get(t.Context(), "/pods/ns/a", storage.GetOptions{}, &pod); err != nil ||
			pod.Generation != writers*updates {
			t.Errorf("%d of %d updates are there (%v)", pod.Generation, writers*updates, err)
		}
	})
}

// A list names the objects that can't be read, and why it ended before its last object.
func TestList_NamesCorruptObjects(t *testing.T) {
	corrupt := func(n int) []error {
		all := make([]error, n)
		for i := range all {
			all[i] = &encoding.CorruptError{IsEncrypted: true, Revision: int64(i), Err: errors.New("bits flipped")}
		}
		return all
	}
	other := errors.New("the context has ended")
	for _, test := range []struct {
		name   string
		isOff  bool
		errs   []error
		read   int
		types  string
		status string
	}{
		{name: "all are named", errs: corrupt(3), read: 3, types: "UnexpectedServerResponse*3",
			status: "failed to read one or more pods from the storage: " + storage.NewCorruptObjError("/pods/0",
				corrupt(1)[0]).Error() + " (and 2 more)"},
		{name: "another error ends the list", errs: append(corrupt(1), other, corrupt(1)[0]), read: 2,
			types: "UnexpectedServerResponse*2"},
		{name: "another error alone is returned", errs: []error{other}, read: 1, status: other.Error()},
		{name: "too many", errs: corrupt(200), read: 100, types: "UnexpectedServerResponse*100 FieldValueTooMany*1"},
		{name: "without the feature gate the first is returned", isOff: true, errs: corrupt(2), read: 1,
			status: `unable to transform key "/pods/0": bits flipped`},
	} {
		t.Run(test.name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
				features.AllowUnsafeMalformedObjectDeletion, !test.isOff)
			s := &Store{cfg: Config{GroupResource: schema.GroupResource{Resource: "pods"}}}
			var c corruptObjects
			read := 0
			for i, err := range test.errs {
				if read++; !c.add(err, fmt.Sprintf("/pods/%d", i)) {
					break
				}
			}
			err := c.err(s.cfg.GroupResource)
			types := map[metav1.CauseType]int{}
			if status := apierrors.APIStatus(nil); errors.As(err, &status) {
				for _, cause := range status.Status().Details.Causes {
					types[cause.Type]++
				}
			}
			for field := range strings.FieldsSeq(test.types) {
				name, count, _ := strings.Cut(field, "*")
				if got := fmt.Sprint(types[metav1.CauseType(name)]); got != count {
					t.Errorf("%s causes %s, want %s", got, name, count)
				}
			}
			if read != test.read || test.status != "" && err.Error() != test.status {
				t.Errorf("ended after %d of %d objects with %q", read, len(test.errs), err)
			}
		})
	}
}

// ahead is how far the next epoch of a restartable begins beyond the last revision.
const ahead = 1_000

// restartable is a driver whose database begins a new epoch when the test tells it to.
type restartable struct {
	sqlstore.Driver
	isNext atomic.Bool
}

func (r *restartable) State(ctx context.Context) (sqlstore.State, error) {
	state, err := r.Driver.State(ctx)
	if r.isNext.Load() {
		state.Revision += ahead
		state.Compacted, state.Epoch = state.Revision, "next"
	}
	return state, err
}

func (r *restartable) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	listed, err := r.Driver.List(ctx, q, yield)
	if r.isNext.Load() {
		listed.Revision += ahead
	}
	return listed, err
}

// A client may learn a revision of a new epoch from one server, and ask another one for it that
// has not seen the epoch yet. The read waits for the epoch, and is answered.
func TestReads_WaitForARevisionOfANewEpoch(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(context.Context, *fixture, storage.ListOptions) error{
		"get": func(ctx context.Context, f *fixture, o storage.ListOptions) error {
			_, err := f.GetEncoded(ctx, "/pods/ns/a", storage.GetOptions{ResourceVersion: o.ResourceVersion}, f.Stored())
			return err
		},
		"list": func(ctx context.Context, f *fixture, o storage.ListOptions) error {
			_, err := f.ListEncoded(ctx, "/pods", o, f.Stored())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := &restartable{Driver: storetest.NewModel()}
			f := newFixture(t, backend{"restartable", func(testing.TB) sqlstore.Driver { return driver }, false})
			f.create(t, "ns", "a", "")
			f.listed(t, "/pods", all())
			reading := &waitedFor{Context: t.Context(), began: make(chan struct{})}
			go func() {
				<-reading.began
				driver.isNext.Store(true)
			}()
			if err := read(reading, f, all(from(f.feed.Revision()+ahead))); err != nil {
				t.Error(err)
			}
		})
	}
}
