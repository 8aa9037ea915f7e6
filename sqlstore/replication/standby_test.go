package replication_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

const place = "s3://copies/one"

// standbyS3 serves an S3 with a bucket "copies".
func standbyS3(t *testing.T) {
	t.Helper()
	storetest.ServeS3Here(t, storetest.NewS3(t, "copies"))
}

// host is a machine.
type host struct {
	path string
	// serving receives the database while the host serves it.
	serving chan *sqlite.Driver
	// duration is that of the lease; 0 means 5 s.
	duration time.Duration
	// crashes has the host end without bringing anything to the bucket.
	crashes bool
	// crashed is crashes from a moment on, while what was acknowledged before is in the bucket.
	crashed atomic.Bool
	// fails is an error of the start, if not nil.
	fails error
	// waits has the host acknowledge a commit when the bucket has it.
	waits bool
	// keys are those of the host; empty means those of most hosts.
	keys string
	// following is closed when the host follows, unless it is nil.
	following chan struct{}
	logged    logs
	stop      context.CancelFunc
	ended     chan error
}

// logs is what a host has logged.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

// logs reports whether the host has logged a text.
func (h *host) logs(text string) bool {
	h.logged.mu.Lock()
	defer h.logged.mu.Unlock()
	return strings.Contains(h.logged.text.String(), text)
}

var errCrash, errOtherKeys = errors.New("crash"), errors.New("other keys")

// start runs a standby on a host.
func (h *host) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h.stop, h.serving, h.ended = cancel, make(chan *sqlite.Driver, 1), make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() {
		h.ended <- replication.RunStandby(ctx, replication.StandbyConfig{
			URL: place, Path: h.path, Duration: cmp.Or(h.duration, 5*time.Second),
			Logger:   slog.New(slog.NewTextHandler(&h.logged, nil)),
			SetAside: sqlite.SetAside, Replace: sqlite.Replace,
			Position: func(ctx context.Context, path string, isCopy bool) (p replication.Position, err error) {
				p.Lineage, p.Revision, err = sqlite.ReadPosition(ctx, path, isCopy)
				return p, err
			},
			Accept: func(s replication.LeaseState) error {
				if s.Keys != "" && s.Keys != cmp.Or(h.keys, "keys") {
					return errOtherKeys
				}
				return nil
			},
			Follow: func(ctx context.Context, _ func() replication.StandbyStatus) error {
				if h.following != nil {
					close(h.following)
				}
				<-ctx.Done()
				return nil
			},
			Serve: h.serve, Lost: func(err error) { t.Error(err) },
		})
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func (h *host) serve(ctx context.Context, l *replication.Lease) (complete bool, err error) {
	if h.fails != nil {
		return false, h.fails
	}
	if _, err := migrations.Up(ctx, "sqlite://"+h.path); err != nil {
		return false, err
	}
	r, err := replication.New([]string{place}, bucket.S3{}, slog.New(slog.DiscardHandler))
	if err != nil {
		return false, err
	}
	r.Began, r.Sync = l.SetFolder, h.waits
	options := sqlite.Options{Fence: l.Check, Replication: r, Lineage: l.State().Holder, NewEpoch: l.MayFork()}
	if h.crashes {
		options.Replication = nil
	}
	d, err := sqlite.Open(ctx, h.path, options)
	if err != nil {
		return false, err
	}
	if err := l.Serve(ctx, cmp.Or(h.keys, "keys"), func() (int64, uint64) { return r.Position(time.Minute) }); err != nil {
		return false, errors.Join(err, d.Close())
	}
	var maintaining sync.WaitGroup
	maintaining.Go(func() { _ = d.Maintain(ctx) })
	h.serving <- d
	<-ctx.Done()
	maintaining.Wait()
	_ = d.Close() // it fails if the bucket does not have the last commits, which IsComplete tells
	if h.crashes || h.crashed.Load() {
		return false, errCrash
	}
	return r.IsComplete(), nil
}

// commit writes an object, on the host that serves next.
func (h *host) commit(t *testing.T, name string) {
	t.Helper()
	select {
	case d := <-h.serving:
		outcomes, err := d.Commit(t.Context(), []sqlstore.Write{{Op: sqlstore.Create, Key: keyOf(name), Value: []byte(`{}`)}})
		if err != nil || outcomes[0].Err != nil {
			t.Fatal(err, outcomes)
		}
		h.serving <- d
	case err := <-h.ended:
		t.Fatalf("it does not serve: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("it does not serve")
	}
}

func (h *host) has(t *testing.T, name string) bool {
	t.Helper()
	d := <-h.serving
	defer func() { h.serving <- d }()
	_, _, err := d.Get(t.Context(), keyOf(name))
	if err != nil && !errors.Is(err, sqlstore.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// end stops a host that serves.
func (h *host) end(t *testing.T) {
	t.Helper()
	h.stop()
	if err := <-h.ended; err != nil && !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
}

func keyOf(name string) sqlstore.Key { return sqlstore.Key{Resource: "pods", Name: name} }

// TestRun_GoesOnAtOnceAfterACrash: a server that is started again does not wait for the end of the lease of the
// process before, which held the lock of the same file. One on a copy of the directory, or on another boot of
// the system, can't know that the process has ended, and waits.
func TestRun_GoesOnAtOnceAfterACrash(t *testing.T) {
	standbyS3(t)
	h := &host{path: filepath.Join(t.TempDir(), "byre.db"), duration: time.Hour, crashes: true}
	for _, name := range []string{"first", "second"} {
		h.start(t)
		h.commit(t, name)
		h.end(t)
	}
	copied := &host{path: filepath.Join(t.TempDir(), "byre.db"), duration: time.Hour}
	if err := os.CopyFS(filepath.Dir(copied.path), os.DirFS(filepath.Dir(h.path))); err != nil {
		t.Fatal(err)
	}
	for _, waits := range []*host{copied, {path: h.path, duration: time.Hour}} {
		if waits != copied { // as if the system had been started again
			editLease(t, func(s *replication.LeaseState) { s.Lock = "another" + s.Lock })
		}
		waits.following = make(chan struct{})
		waits.start(t)
		select {
		case <-waits.following:
		case <-waits.serving:
			t.Error("a host that can't know whether the last holder has ended does not wait")
		case <-time.After(time.Minute):
			t.Error("a host does nothing")
		}
		waits.stop()
		<-waits.ended
	}
}

// TestRun_TakesOverAfterARestartOfTheHolder: a holder that is started again goes on in the folder that the lease names,
// so that the standby needs the last commits alone, and takes over with them.
func TestRun_TakesOverAfterARestartOfTheHolder(t *testing.T) {
	standbyS3(t)
	a, b := &host{path: filepath.Join(t.TempDir(), "byre.db")}, &host{path: filepath.Join(t.TempDir(), "byre.db")}
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	a.start(t)
	a.commit(t, "first")
	a.end(t)
	before, _, err := object.Read(t.Context())
	if err != nil || before.Folder == "" {
		t.Fatalf("%+v, %v", before, err)
	}
	a.start(t)
	a.commit(t, "second")
	storetest.EventuallyDone(t, "the lease has a position in the same folder", func(ctx context.Context) (bool, error) {
		s, _, err := object.Read(ctx)
		if s.Folder != before.Folder {
			t.Errorf("the folder is %s, was %s", s.Folder, before.Folder)
		}
		return s.Position.TXID > before.Position.TXID && s.Position.Revision > before.Position.Revision, err
	})
	b.start(t)
	storetest.Eventually(t, "b has a copy", func() bool { return b.logs("has a copy") })
	a.end(t)
	b.commit(t, "by-b")
	if !b.has(t, "first") || !b.has(t, "second") {
		t.Error("b lacks commits")
	}
	b.end(t)
}

// TestRun_WaitsForCommitsThatAreInNoCopy: the second holder ends before it has copied anything. The first one
// does not go on without its commits until it is told to, by the deletion of the lease.
func TestRun_WaitsForCommitsThatAreInNoCopy(t *testing.T) {
	standbyS3(t)
	a, b := &host{path: filepath.Join(t.TempDir(), "byre.db")}, &host{path: filepath.Join(t.TempDir(), "byre.db")}
	a.start(t)
	a.commit(t, "by-a")
	a.end(t)
	b.crashes = true
	b.start(t)
	b.commit(t, "by-b")
	if !b.has(t, "by-a") {
		t.Error("b does not go on from what a has copied")
	}
	b.end(t)

	a.start(t)
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	b.crashes = false
	b.start(t)
	b.commit(t, "by-b-again") // it has its database, and a waits
	if !b.has(t, "by-b") {
		t.Error("b has lost its own commits")
	}
	b.end(t)
	a.commit(t, "by-a-again")
	if !a.has(t, "by-b") || !a.has(t, "by-b-again") {
		t.Error("a does not go on from what b has copied")
	}
	a.end(t)
	a.crashes = true

	// What a has not copied is lost with it: only a deleted lease has a third machine go on.
	a.start(t)
	a.commit(t, "lost")
	a.end(t)
	c := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	c.start(t)
	storetest.EventuallyDone(t, "the lease is seen", func(ctx context.Context) (bool, error) {
		s, exists, err := object.Read(ctx)
		return exists && s.Serving, err
	})
	removeLease(t)
	c.commit(t, "by-c")
	if !c.has(t, "by-b-again") || c.has(t, "lost") {
		t.Error("c does not go on from the last copy")
	}
	c.end(t)
}

// TestRun_AcknowledgesWhatTheNextHolderHas: a host begins another folder, because the files of its replication are
// lost. What it acknowledges is in the folder that the lease names, though the lease can't be written at first.
func TestRun_AcknowledgesWhatTheNextHolderHas(t *testing.T) {
	service := storetest.NewS3(t, "copies")
	var refused atomic.Int32
	storetest.ServeS3Here(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "lease.json") && refused.Add(-1) >= 0 {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		service.ServeHTTP(w, r)
	}))
	// it is renewed each 2 s
	h := &host{path: filepath.Join(t.TempDir(), "byre.db"), duration: 10 * time.Second, waits: true}
	h.start(t)
	h.commit(t, "first")
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the lease names the copy", func(ctx context.Context) (bool, error) {
		s, _, err := object.Read(ctx)
		return s.Folder != "" && s.Position.TXID > 0, err
	})
	refused.Store(2)
	if err := replication.Forget(h.path); err != nil {
		t.Fatal(err)
	}
	h.commit(t, "second")
	s, _, err := object.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := replication.NewFollower(place, bucket.S3{}, filepath.Join(t.TempDir(), "copy.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.CatchUp(t.Context(), s.Folder, true), f.Close()); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	if err := sqlite.ReadSnapshot(t.Context(), f.Path(), func(s sqlstore.Snapshot) error {
		for row, err := range s.Objects {
			if err != nil {
				return err
			}
			names = append(names, row.Name)
		}
		return nil
	}); err != nil || !slices.Equal(names, []string{"first", "second"}) {
		t.Errorf("the copy that the lease names has %q, %v", names, err)
	}
	h.end(t)
}

// TestRun_KeepsItsDatabaseWhereOthersServe: a host with a database and other keys is started on the place of another
// one: while that takes the lease again and does not serve yet, and when it has ended.
func TestRun_KeepsItsDatabaseWhereOthersServe(t *testing.T) {
	standbyS3(t)
	a := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	a.start(t)
	a.commit(t, "by-a")
	a.end(t)
	b := &host{path: filepath.Join(t.TempDir(), "byre.db"), keys: "others"}
	if _, err := migrations.Up(t.Context(), "sqlite://"+b.path); err != nil {
		t.Fatal(err)
	}
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	candidate, err := replication.NewCandidate(object, time.Minute, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b.start(t)
		select {
		case err = <-b.ended:
		case <-b.serving:
			err = errors.New("it serves")
		}
		if _, statErr := os.Stat(b.path); !errors.Is(err, errOtherKeys) || statErr != nil {
			t.Fatalf("a host with other keys: %v; its database: %v", err, statErr)
		}
		state, _, isFree, err := candidate.Look(t.Context())
		if err != nil || !isFree {
			t.Fatalf("free %v, %v", isFree, err)
		}
		if _, err := candidate.Take(t.Context(), "", state.Position); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRun_LeavesTheLeaseToTheOtherOneWithoutACopy: the second host can't copy anything, because its disk is full or
// because it may not read the files. It leaves the lease to the first one, which is started again, and goes on.
func TestRun_LeavesTheLeaseToTheOtherOneWithoutACopy(t *testing.T) {
	for _, cause := range []string{"disk", "bucket"} {
		t.Run(cause, func(t *testing.T) {
			service := storetest.NewS3(t, "copies")
			var isRefused atomic.Bool
			var reads atomic.Int32
			storetest.ServeS3Here(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, ".ltx") {
					if reads.Add(1); isRefused.Load() {
						w.WriteHeader(http.StatusForbidden)
						return
					}
				}
				service.ServeHTTP(w, r)
			}))
			a := &host{path: filepath.Join(t.TempDir(), "byre.db")}
			b := &host{path: filepath.Join(t.TempDir(), "byre.db"), following: make(chan struct{})}
			a.start(t)
			a.commit(t, "by-a")
			if isRefused.Store(cause == "bucket"); cause == "disk" {
				if err := os.Symlink("/dev/full", b.path+".standby"); err != nil {
					t.Fatal(err)
				}
			}
			b.start(t)
			<-b.following
			a.end(t)
			before := reads.Load()
			storetest.Eventually(t, "b tries to take over", func() bool { return reads.Load() > before+3 })
			a.start(t)
			a.commit(t, "by-a-again")
			if !a.has(t, "by-a") {
				t.Error("a has lost its commits")
			}
			a.end(t)
		})
	}
}

// TestRun_GoesOnWithWhatItStoppedBefore: the stop of the first host can't copy its last commit. The second one does not
// go on without it.
func TestRun_GoesOnWithWhatItStoppedBefore(t *testing.T) {
	service := storetest.NewS3(t, "copies")
	var isRefused atomic.Bool
	storetest.ServeS3Here(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isRefused.Load() && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, ".ltx") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		service.ServeHTTP(w, r)
	}))
	a := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	a.start(t)
	a.commit(t, "first")
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the first commit is copied", func(ctx context.Context) (bool, error) {
		s, _, err := object.Read(ctx)
		return s.Folder != "" && s.Position.TXID > 0, err
	})
	isRefused.Store(true)
	a.commit(t, "last")
	a.end(t)
	isRefused.Store(false)
	if s, _, err := object.Read(t.Context()); err != nil || !s.Released || s.Position.TXID != 0 {
		t.Errorf("the lease of a host that has stopped with a commit that is in no copy: %+v, %v", s, err)
	}
	b := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	b.start(t)
	a.start(t)
	a.commit(t, "again")
	if !a.has(t, "last") {
		t.Error("the last commit before the stop is lost")
	}
	a.end(t)
}

// TestRun_TakesNothingForItsOwnAfterALostRace: a host that is started again loses the lease to the other one at the
// last moment. It gets the lease later, but not the answer: it has not got the commits of the other one in its
// database.
func TestRun_TakesNothingForItsOwnAfterALostRace(t *testing.T) {
	service := storetest.NewS3(t, "copies")
	var takes atomic.Int32 // the last two of so many writes of the lease are disturbed
	raced, goOn := make(chan struct{}), make(chan struct{})
	storetest.ServeS3Here(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "lease.json") {
			switch takes.Add(-1) {
			case 1:
				close(raced)
				<-goOn
			case 0:
				service.ServeHTTP(discarded{}, r)
				w.WriteHeader(http.StatusBadGateway)
				return
			}
		}
		service.ServeHTTP(w, r)
	}))
	a := &host{path: filepath.Join(t.TempDir(), "byre.db"), duration: time.Minute}
	b := &host{path: filepath.Join(t.TempDir(), "byre.db"), duration: time.Minute}
	a.start(t)
	a.commit(t, "by-a")
	a.end(t)
	takes.Store(2)
	a.start(t)
	<-raced
	takes.Store(0)
	b.start(t)
	b.commit(t, "by-b")
	b.end(t)
	takes.Store(1)
	close(goOn)
	a.commit(t, "by-a-again")
	if !a.has(t, "by-b") {
		t.Error("a serves a database that lacks what b has committed")
	}
	a.end(t)
}

// discarded is a response that is lost.
type discarded struct{}

func (discarded) Header() http.Header            { return http.Header{} }
func (discarded) Write(text []byte) (int, error) { return len(text), nil }
func (discarded) WriteHeader(int)                {}

// TestRun_FoundsNoClusterInABucketThatWasEmptied: the standby has a copy, and leaves the place to the host with the
// data.
func TestRun_FoundsNoClusterInABucketThatWasEmptied(t *testing.T) {
	var service atomic.Pointer[http.Handler]
	first := storetest.NewS3(t, "copies")
	service.Store(&first)
	storetest.ServeS3Here(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*service.Load()).ServeHTTP(w, r)
	}))
	a, b := &host{path: filepath.Join(t.TempDir(), "byre.db")}, &host{path: filepath.Join(t.TempDir(), "byre.db")}
	a.start(t)
	a.commit(t, "by-a")
	b.start(t)
	storetest.Eventually(t, "b has a copy", func() bool { return b.logs("has a copy") })
	a.crashes = true
	a.stop()
	if err := <-a.ended; err == nil {
		t.Fatal("it has not crashed")
	}
	empty := storetest.NewS3(t, "copies")
	service.Store(&empty)
	storetest.Eventually(t, "b says that it waits", func() bool {
		if len(b.serving) > 0 {
			t.Fatal("it serves an empty database")
		}
		return b.logs("the bucket was emptied")
	})
	a.crashes = false
	a.start(t)
	a.commit(t, "by-a-again")
	if !a.has(t, "by-a") {
		t.Error("the data are lost")
	}
	a.end(t)
}

// TestRun_WaitsForWhoHadALeaseThatWasDeleted: a server that is started meanwhile knows no holder, but there are copies.
func TestRun_WaitsForWhoHadALeaseThatWasDeleted(t *testing.T) {
	standbyS3(t)
	a := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	a.start(t)
	a.commit(t, "by-a")
	a.end(t)
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	candidate, err := replication.NewCandidate(object, 5*time.Second, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, isFree, err := candidate.Look(t.Context()); err != nil || !isFree {
		t.Fatalf("free %v, %v", isFree, err)
	}
	held, err := candidate.Take(t.Context(), "", replication.Position{})
	if err != nil {
		t.Fatal(err)
	}
	removeLease(t)
	a.start(t)
	a.commit(t, "by-a-again")
	if held.Check() == nil {
		t.Error("two servers have a lease")
	}
	a.end(t)
}

// TestRun_ServesWhatWasRestored puts another database on the host that has served last, which goes on with it.
func TestRun_ServesWhatWasRestored(t *testing.T) {
	standbyS3(t)
	a := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	b := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	a.start(t)
	a.commit(t, "by-a")
	a.end(t)
	if err := os.Remove(a.path); err != nil {
		t.Fatal(err)
	}
	other := &host{path: filepath.Join(t.TempDir(), "byre.db")}
	if _, err := migrations.Up(t.Context(), "sqlite://"+other.path); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.ReadSnapshot(t.Context(), other.path, func(s sqlstore.Snapshot) error {
		return sqlite.Load(t.Context(), a.path, s)
	}); err != nil {
		t.Fatal(err)
	}
	a.start(t)
	a.commit(t, "restored")
	if a.has(t, "by-a") {
		t.Error("a goes on from the bucket")
	}
	b.start(t)
	a.end(t)
	b.commit(t, "by-b")
	if b.has(t, "by-a") || !b.has(t, "restored") {
		t.Error("b does not go on from what was restored")
	}
	b.end(t)
}

// editLease changes the lease.
func editLease(t *testing.T, change func(*replication.LeaseState)) {
	t.Helper()
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	s, exists, err := object.Read(t.Context())
	if err != nil || !exists {
		t.Fatal(exists, err)
	}
	change(&s)
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	_, err = copies(t).Put(t.Context(), "one/lease.json", bytes.NewReader(text))
	if err != nil && !errors.Is(err, bucket.ErrChanged) { // a liar has written it
		t.Fatal(err)
	}
}

func removeLease(t *testing.T) {
	t.Helper()
	if err := (bucket.Directory{Name: "s3://copies/one"}).Remove(t.Context(), "lease.json"); err != nil {
		t.Fatal(err)
	}
}

// TestRun_WaitsForTheFirstHolder: the first machine has the data, of a server without a standby, and ends before it
// serves. The second one has nothing to go on from, and leaves the lease to the first one.
func TestRun_WaitsForTheFirstHolder(t *testing.T) {
	standbyS3(t)
	a, b := newHost(t), newHost(t)
	if _, err := migrations.Up(t.Context(), "sqlite://"+a.path); err != nil {
		t.Fatal(err)
	}
	d, err := sqlite.Open(t.Context(), a.path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if outcomes, err := d.Commit(t.Context(),
		[]sqlstore.Write{{Op: sqlstore.Create, Key: keyOf("old"), Value: []byte(`{}`)}}); err != nil ||
		outcomes[0].Err != nil {
		t.Fatal(err, outcomes)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	a.fails = errors.New("the port is in use")
	a.start(t)
	if err := <-a.ended; !errors.Is(err, a.fails) {
		t.Fatal(err)
	}
	b.start(t)
	storetest.Eventually(t, "b waits", func() bool { return b.logs("does not serve, and has commits") })
	a.fails = nil
	a.start(t)
	a.commit(t, "by-a")
	if !a.has(t, "old") {
		t.Error("a has lost its data")
	}
	a.end(t)
	b.commit(t, "by-b")
	if !b.has(t, "by-a") || !b.has(t, "old") {
		t.Error("b does not go on from what a has copied")
	}
	b.end(t)
}

// TestRun_RefusesADatabaseThatItCantRead: it takes no lease for it.
func TestRun_RefusesADatabaseThatItCantRead(t *testing.T) {
	standbyS3(t)
	h := newHost(t)
	if err := os.WriteFile(h.path, []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start(t)
	if err := <-h.ended; !errors.Is(err, migrations.ErrForeign) ||
		!strings.Contains(err.Error(), "move the database away") {
		t.Error(err)
	}
}

// liar is a bucket that does not keep what S3 promises.
type liar struct {
	service http.Handler
	// staleLists has it answer a listing with what it has answered the one before. refuses has it answer 412 for every
	// second conditional write that it has made.
	staleLists, refuses bool

	// mu guards the fields below. olderLease has it return the lease as it is at the next request, from its next
	// renewal on, while it is set.
	mu         sync.Mutex
	olderLease bool
	lease      *httptest.ResponseRecorder
	lists      map[string]*httptest.ResponseRecorder
	// writes counts the writes of the lease, leaseWrites is their number at the time of lease.
	writes, leaseWrites int
	// conflicts counts the conditional writes that found another object.
	conflicts int
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := httptest.NewRecorder()
	l.service.ServeHTTP(answer, r)
	isLease := strings.HasSuffix(r.URL.Path, "lease.json")
	switch {
	case isLease && r.Method == http.MethodPut:
		if answer.Code == http.StatusPreconditionFailed {
			l.conflicts++
		} else if l.writes++; l.refuses && l.writes%2 == 0 {
			answer = httptest.NewRecorder()
			answer.WriteHeader(http.StatusPreconditionFailed)
		}
	case isLease && r.Method == http.MethodGet && l.olderLease:
		if l.lease == nil {
			// As one of 5 ms, so that the test does not wait for its end.
			text := bytes.Replace(answer.Body.Bytes(), []byte(`"durationMilliseconds":5000`),
				[]byte(`"durationMilliseconds":   5`), 1)
			l.lease, l.leaseWrites = httptest.NewRecorder(), l.writes
			maps.Copy(l.lease.Header(), answer.Header())
			l.lease.Header().Del("Content-Length")
			_, _ = l.lease.Write(text)
		}
		if l.writes > l.leaseWrites {
			answer = l.lease
		}
	case r.URL.Query().Has("list-type") && l.staleLists:
		if before := l.lists[r.URL.RawQuery]; before != nil {
			answer, l.lists[r.URL.RawQuery] = before, answer
		} else {
			l.lists[r.URL.RawQuery] = answer
		}
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// TestRun_LosesNothingToABucketThatLies has a bucket list what was there before, and refuse what it has written. The
// second host has everything that was acknowledged when the machine of the first one is lost.
func TestRun_LosesNothingToABucketThatLies(t *testing.T) {
	for _, lies := range [][]string{{"stale lists"}, {"refused writes"}, {"stale lists", "refused writes"}} {
		t.Run(strings.Join(lies, " and "), func(t *testing.T) {
			l := &liar{
				service: storetest.NewS3(t, "copies"), lists: map[string]*httptest.ResponseRecorder{},
				staleLists: slices.Contains(lies, "stale lists"), refuses: slices.Contains(lies, "refused writes"),
			}
			storetest.ServeS3Here(t, l)
			a, b := newHost(t), newHost(t)
			a.waits, b.waits = true, true
			a.start(t)
			a.commit(t, "first")
			b.start(t)
			storetest.Eventually(t, "b has a copy", func() bool { return b.logs("has a copy") })
			for i := range 12 {
				a.commit(t, fmt.Sprint("acknowledged-", i))
			}
			a.crash(t)
			b.commit(t, "by-b")
			for i := range 12 {
				if !b.has(t, fmt.Sprint("acknowledged-", i)) {
					t.Errorf("acknowledged-%d is lost", i)
				}
			}
			b.end(t)
			a.crashed.Store(false)
			a.start(t)
			a.commit(t, "by-a")
			if !a.has(t, "by-b") {
				t.Error("a does not go on from what b has served")
			}
		})
	}
}

// TestRun_DoesNotServeByAnOlderLease has a bucket return the lease as it was, so that the holder seems not to renew it.
func TestRun_DoesNotServeByAnOlderLease(t *testing.T) {
	l := &liar{service: storetest.NewS3(t, "copies")}
	storetest.ServeS3Here(t, l)
	a, b := newHost(t), newHost(t)
	a.start(t)
	a.commit(t, "first")
	b.start(t)
	storetest.Eventually(t, "b has a copy", func() bool { return b.logs("has a copy") })
	l.mu.Lock()
	l.olderLease = true
	l.mu.Unlock()
	storetest.Eventually(t, "b has tried to take the lease", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.conflicts > 0
	})
	a.commit(t, "second")
	if len(b.serving) > 0 {
		t.Error("two hosts serve")
	}
}
