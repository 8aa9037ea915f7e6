package replication_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"byre/sqlstore/storetest"
)

// liar is a bucket that does not keep what S3 promises.
type liar struct {
	service http.Handler
	// staleLists has it answer a listing with what it has answered the one before. refuses has it answer 412 for every second
	// conditional write that it has made.
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
			text := bytes.Replace(answer.Body.Bytes(), []byte(`"durationMilliseconds":5000`), []byte(`"durationMilliseconds":   5`), 1)
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

// TestRun_LosesNothingToABucketThatLies has a bucket list what was there before, and refuse what it has written. The second
// host has everything that was acknowledged when the machine of the first one is lost.
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
