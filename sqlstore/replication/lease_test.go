package replication_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/storetest"
)

const duration = 10 * time.Second

// leaseBucket is an S3 with an object. around, unless nil, is called for each request with what serves it.
func leaseBucket(t *testing.T, around func(http.Handler, http.ResponseWriter, *http.Request)) *replication.LeaseObject {
	t.Helper()
	service := storetest.NewS3(t, "copies")
	server, _ := storetest.ServeS3(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if around != nil {
			around(service, w, r)
		} else {
			service.ServeHTTP(w, r)
		}
	}))
	client, err := minio.New(server.Listener.Addr().String(), &minio.Options{
		Creds: credentials.NewStaticV4(storetest.S3AccessKey, storetest.S3SecretKey, ""), Secure: true,
		Region:    storetest.S3Region,
		Transport: server.Client().Transport, MaxRetries: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	return replication.NewLeaseObject(bucket.NewClient(client, "copies", "clusters/one"))
}

// manualClock is a clock that a test sets.
type manualClock struct{ now atomic.Int64 }

func (c *manualClock) read() time.Duration { return time.Duration(c.now.Load()) }

func (c *manualClock) advance(d time.Duration) { c.now.Add(int64(d)) }

// candidate is one on a machine that has been up for a while.
func candidate(t *testing.T, o *replication.LeaseObject, up time.Duration) (*replication.Candidate, *manualClock) {
	t.Helper()
	clock := &manualClock{}
	clock.advance(up)
	c, err := replication.NewCandidate(o, duration, "", clock.read)
	if err != nil {
		t.Fatal(err)
	}
	return c, clock
}

func look(t *testing.T, c *replication.Candidate) (isFree bool) {
	t.Helper()
	_, _, isFree, err := c.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return isFree
}

func take(t *testing.T, c *replication.Candidate) *replication.Lease {
	t.Helper()
	if !look(t, c) {
		t.Fatal("the lease is not free")
	}
	l, err := c.Take(t.Context(), "", replication.Position{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestCandidate_OneOfTwoTakesTheLease(t *testing.T) {
	t.Parallel()
	o := leaseBucket(t, nil)
	a, _ := candidate(t, o, 0)
	b, _ := candidate(t, o, 0)
	if !look(t, a) || !look(t, b) {
		t.Fatal("a lease that nobody ever had is not free")
	}
	if _, err := a.Take(t.Context(), "f", replication.Position{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(t.Context(), "", replication.Position{}); !errors.Is(err, replication.ErrLeaseTaken) {
		t.Errorf("the second one: %v", err)
	}
	if look(t, b) {
		t.Error("the lease of another one is free")
	}
	if s, exists, err := o.Read(t.Context()); err != nil || !exists || s.Holder != a.Holder() || s.Generation != 1 ||
		s.Folder != "f" {
		t.Errorf("%+v, %v, %v", s, exists, err)
	}
}

// TestCandidate_WaitsUntilTheHoldersLeaseIsInvalid has clocks that differ by years.
func TestCandidate_WaitsUntilTheHoldersLeaseIsInvalid(t *testing.T) {
	t.Parallel()
	o := leaseBucket(t, nil)
	a, clockA := candidate(t, o, 100_000*time.Hour)
	b, clockB := candidate(t, o, 0)
	held := take(t, a)
	pass := func(d time.Duration) { clockA.advance(d); clockB.advance(d) }
	if look(t, b) {
		t.Fatal("free at once")
	}
	pass(duration*3/5 - 1)
	if err := held.Check(); err != nil {
		t.Fatal(err)
	}
	if err := held.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	pass(duration*3/5 - 1)
	if err := held.Check(); err != nil || look(t, b) {
		t.Fatalf("after a renewal: %v", err)
	}
	if err := held.Renew(t.Context()); err != nil || look(t, b) {
		t.Fatal(err)
	}
	pass(duration*3/5 - 1)
	clockB.advance(duration * 3 / 20) // it runs by a quarter faster than the other one
	if look(t, b) {
		t.Fatal("free while the holder's lease is valid")
	}
	pass(1)
	if err := held.Check(); !errors.Is(err, replication.ErrLeaseLost) || look(t, b) {
		t.Fatalf("3/5 after the last renewal: %v, or free for another one", err)
	}
	pass(duration * 4 / 5)
	got := take(t, b)
	if err := held.Renew(t.Context()); !errors.Is(err, replication.ErrLeaseLost) {
		t.Errorf("a renewal by the old holder: %v", err)
	}
	if err := got.Renew(t.Context()); err != nil || got.Check() != nil || got.State().Generation != 2 {
		t.Errorf("the new holder: %v, %+v", err, got.State())
	}
}

// TestLease_IsInvalidAfterItsProcessWasStopped: what was on its way when the process was stopped does not
// make the lease valid again.
func TestLease_IsInvalidAfterItsProcessWasStopped(t *testing.T) {
	t.Parallel()
	var clock *manualClock
	var stops atomic.Bool
	o := leaseBucket(t, func(service http.Handler, w http.ResponseWriter, r *http.Request) {
		service.ServeHTTP(w, r)
		if stops.Load() {
			clock.advance(time.Minute)
		}
	})
	a, clockA := candidate(t, o, time.Hour)
	clock = clockA
	held := take(t, a)
	stops.Store(true)
	if err := held.Renew(t.Context()); !errors.Is(err, replication.ErrLeaseLost) {
		t.Errorf("Renew: %v", err)
	}
	if err := held.Check(); !errors.Is(err, replication.ErrLeaseLost) {
		t.Errorf("Check: %v", err)
	}
	if err := held.Run(t.Context(), slog.New(slog.DiscardHandler)); !errors.Is(err, replication.ErrLeaseLost) {
		t.Errorf("Run: %v", err)
	}
}

// TestLease_StaysInvalidWhenARenewalIsAnsweredLate: the answer comes after the end of the lease, though the renewal was
// sent before and would extend it. Whoever has asked meanwhile was told that the lease is lost.
func TestLease_StaysInvalidWhenARenewalIsAnsweredLate(t *testing.T) {
	t.Parallel()
	for _, isAsked := range []bool{true, false} {
		var clock *manualClock
		var held *replication.Lease
		var isLate atomic.Bool
		o := leaseBucket(t, func(service http.Handler, w http.ResponseWriter, r *http.Request) {
			service.ServeHTTP(w, r)
			if !isLate.Load() {
				return
			}
			clock.advance(duration / 5)
			if isAsked && !errors.Is(held.Check(), replication.ErrLeaseLost) {
				t.Error("it is valid before the answer")
			}
		})
		var c *replication.Candidate
		c, clock = candidate(t, o, time.Hour)
		held = take(t, c)
		clock.advance(duration / 2)
		isLate.Store(true)
		if err := held.Renew(t.Context()); !errors.Is(err, replication.ErrLeaseLost) {
			t.Errorf("Renew: %v", err)
		}
		if err := held.Check(); !errors.Is(err, replication.ErrLeaseLost) {
			t.Errorf("Check after the answer: %v", err)
		}
	}
}

// TestLease_TellsWhetherALostAnswerWasAWrite has a service that writes and answers with an error.
func TestLease_TellsWhetherALostAnswerWasAWrite(t *testing.T) {
	t.Parallel()
	var lost atomic.Int32
	o := leaseBucket(t, func(service http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && lost.Add(-1) >= 0 {
			service.ServeHTTP(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		service.ServeHTTP(w, r)
	})
	a, _ := candidate(t, o, 0)
	lost.Store(1)
	if !look(t, a) {
		t.Fatal("not free")
	}
	if _, err := a.Take(t.Context(), "", replication.Position{}); !errors.Is(err, replication.ErrLeaseTaken) {
		t.Fatal(err) // minio-go tries again, and finds the object there
	}
	held := take(t, a) // its own
	lost.Store(1)
	if err := held.Renew(t.Context()); err != nil || held.Check() != nil {
		t.Errorf("%v, %v", err, held.Check())
	}
}

// TestLease_EndsWhileTheBucketIsAway waits in real time.
func TestLease_EndsWhileTheBucketIsAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	o := leaseBucket(t, func(service http.Handler, w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		service.ServeHTTP(w, r)
	})
	c, err := replication.NewCandidate(o, 2*time.Second, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	held := take(t, c)
	ended := make(chan error, 1)
	go func() { ended <- held.Run(t.Context(), slog.New(slog.DiscardHandler)) }()
	storetest.Eventually(t, "it is renewed", func() bool { return held.State().Renewals >= 2 })
	away.Store(true)
	if err := <-ended; !errors.Is(err, replication.ErrLeaseLost) || held.Check() == nil {
		t.Errorf("%v, %v", err, held.Check())
	}
}

func TestLease_IsHandedOver(t *testing.T) {
	t.Parallel()
	o := leaseBucket(t, nil)
	a, _ := candidate(t, o, 0)
	b, clockB := candidate(t, o, 0)
	c, _ := candidate(t, o, 0)
	if _, err := o.RequestHandOver(t.Context(), c.Holder()); !errors.Is(err, replication.ErrLeaseNobody) {
		t.Errorf("without a holder: %v", err)
	}
	held := take(t, a)
	var revision int64
	if err := held.Serve(t.Context(), "keys", func() (int64, uint64) { return revision, 3 }); err != nil {
		t.Fatal(err)
	}
	revision = 12
	if err := held.SetFolder(t.Context(), "copy"); err != nil {
		t.Fatal(err)
	}
	want := replication.Position{Lineage: a.Holder(), Revision: 12, TXID: 3}
	if s := held.State(); !s.Serving || s.Keys != "keys" || s.Folder != "copy" || s.Position != want {
		t.Errorf("it serves: %+v", s)
	}
	if _, err := o.RequestHandOver(t.Context(), c.Holder()); err != nil {
		t.Fatal(err)
	}
	revision = 13
	if err := held.Renew(t.Context()); err != nil || held.State().Position.Revision != 13 {
		t.Fatal(err, held.State())
	}
	<-held.HandOver()
	if err := held.Release(t.Context(), true); err != nil || held.Check() == nil {
		t.Errorf("released: %v, and still valid", err)
	}
	if look(t, b) {
		t.Error("free for another one")
	}
	clockB.advance(duration)
	if !look(t, b) {
		t.Error("not free if the standby does not take it")
	}
	if s := take(t, c).State(); s.Folder != "copy" || s.HandOverTo != "" || s.Serving || s.Released {
		t.Errorf("the next holder: %+v", s)
	}
}

// TestLease_IsNotHandedOverWithoutTheLastCommits: who has them goes on with them.
func TestLease_IsNotHandedOverWithoutTheLastCommits(t *testing.T) {
	t.Parallel()
	o := leaseBucket(t, nil)
	a, _ := candidate(t, o, 0)
	b, _ := candidate(t, o, 0)
	held := take(t, a)
	if _, err := o.RequestHandOver(t.Context(), "standby"); err != nil {
		t.Fatal(err)
	}
	if err := held.Renew(t.Context()); err != nil || look(t, b) {
		t.Fatal(err, "or free")
	}
	if err := held.Release(t.Context(), false); err != nil || !look(t, b) {
		t.Errorf("%v, or not free", err)
	}
}

func TestState_IsReachedBy(t *testing.T) {
	t.Parallel()
	s := replication.LeaseState{Holder: "b", Position: replication.Position{Lineage: "a", Revision: 10, TXID: 5}}
	for p, want := range map[replication.Position]bool{
		{Lineage: "a", Revision: 10}:          true,  // the database of the last holder that served
		{Lineage: "a", Revision: 11, TXID: 5}: true,  // a copy
		{Lineage: "b", Revision: 10}:          true,  // the holder has ended before it served
		{Lineage: "a", Revision: 9}:           false, // it was rolled back
		{Lineage: "a", Revision: 10, TXID: 4}: false, // the tail is missing
		{Lineage: "c", Revision: 99}:          false,
		{}:                                    false,
	} {
		if got := s.IsReachedBy(p); got != want {
			t.Errorf("%+v: %v", p, got)
		}
	}
	if s = (replication.LeaseState{Holder: "b"}); !s.IsReachedBy(replication.Position{}) ||
		!s.IsReachedBy(replication.Position{Lineage: "c", Revision: 1}) {
		t.Error("nobody has served, and one can't found the cluster")
	}
}

// TestCandidate_GoesOnAtOnceWithTheSameLock: the process before has ended.
func TestCandidate_GoesOnAtOnceWithTheSameLock(t *testing.T) {
	t.Parallel()
	o := leaseBucket(t, nil)
	named := func(lock string) *replication.Candidate {
		c, err := replication.NewCandidate(o, duration, lock, new(manualClock).read)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if held := take(t, named("boot/1/2")); held.MayFork() {
		t.Error("the first one may fork")
	} else if err := held.Serve(t.Context(), "", func() (int64, uint64) { return 1, 1 }); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"", "boot/2/2", "another/1/2"} {
		if look(t, named(other)) {
			t.Errorf("free for %q", other)
		}
	}
	if take(t, named("boot/1/2")).MayFork() {
		t.Error("the same lock may fork")
	}
	if !take(t, named("boot/1/2")).MayFork() {
		t.Error("whether the one before the last, which has not served, was the same is not known")
	}
}

// TestCandidate_WaitsAfterTheObjectIsDeleted: its holder has not noticed yet, and serves.
func TestCandidate_WaitsAfterTheObjectIsDeleted(t *testing.T) {
	t.Parallel()
	o := leaseBucket(t, nil)
	a, _ := candidate(t, o, time.Hour)
	b, clockB := candidate(t, o, 0)
	held := take(t, a)
	if look(t, b) {
		t.Fatal("free at once")
	}
	if err := o.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if look(t, b) && held.Check() == nil {
		t.Error("free while the holder's lease is valid")
	}
	if err := held.Renew(t.Context()); !errors.Is(err, replication.ErrLeaseLost) || held.Check() == nil {
		t.Errorf("a renewal: %v, %v", err, held.Check())
	}
	clockB.advance(duration * 4 / 5)
	if s := take(t, b).State(); s.Generation != 1 || s.Folder != "" {
		t.Errorf("the next holder: %+v", s)
	}
}

func TestObject_ProbeRefusesAServiceThatIgnoresConditions(t *testing.T) {
	t.Parallel()
	for _, ignored := range []string{"", "If-Match", "If-None-Match"} {
		o := leaseBucket(t, func(service http.Handler, w http.ResponseWriter, r *http.Request) {
			r.Header.Del(ignored)
			service.ServeHTTP(w, r)
		})
		if err := o.Probe(t.Context()); errors.Is(err, replication.ErrUnconditional) != (ignored != "") || ignored == "" &&
			err != nil {
			t.Errorf("without %q: %v", ignored, err)
		}
	}
}

// TestLease_NeverBelongsToTwo plays three machines, whose clocks have other speeds, which stop and go on
// at any time, with a network that loses requests and answers.
func TestLease_NeverBelongsToTwo(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex // requests come one at a time, but minio-go may leave one behind
	o := leaseBucket(t, func(service http.Handler, w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		fate := random.IntN(20)
		mu.Unlock()
		switch {
		case fate == 0:
			w.WriteHeader(http.StatusForbidden)
		case fate == 1:
			service.ServeHTTP(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusForbidden)
		default:
			service.ServeHTTP(w, r)
		}
	})
	type machine struct {
		candidate *replication.Candidate
		clock     *manualClock
		speed     float64
		held      *replication.Lease
		stopped   bool
	}
	var machines []*machine
	for i, speed := range []float64{0.9, 1, 1.1} {
		c, clock := candidate(t, o, time.Duration(i)*time.Hour)
		machines = append(machines, &machine{c, clock, speed, nil, false})
	}
	taken := 0
	for step := range 3000 {
		mu.Lock()
		passed, n, act := time.Duration(random.Int64N(int64(duration/4))), random.IntN(len(machines)), random.IntN(12)
		mu.Unlock()
		for _, m := range machines {
			m.clock.advance(time.Duration(float64(passed) * m.speed))
		}
		m := machines[n]
		switch {
		case act == 0:
			m.stopped = !m.stopped
		case m.stopped:
		case m.held != nil && m.held.Check() != nil: // it ends, and starts again
			m.held = nil
		case m.held != nil:
			_ = m.held.Renew(t.Context())
		default:
			if _, _, isFree, err := m.candidate.Look(t.Context()); err == nil && isFree {
				if l, err := m.candidate.Take(context.WithoutCancel(t.Context()), "", replication.Position{}); err == nil {
					m.held = l
					taken++
				}
			}
		}
		var valid []string
		for i, m := range machines {
			if m.held != nil && m.held.Check() == nil {
				valid = append(valid, fmt.Sprint(i))
			}
		}
		if len(valid) > 1 {
			t.Fatalf("step %d: %v have it", step, valid)
		}
	}
	if taken < 20 {
		t.Errorf("taken %d times: the play shows nothing", taken)
	}
}
