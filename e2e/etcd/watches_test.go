package etcd

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// watching is a watch of a..z with changes.
func watching(change func(*pb.WatchCreateRequest)) *pb.WatchCreateRequest {
	r := &pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("z")}
	if change != nil {
		change(r)
	}
	return r
}

func from(revision int64) *pb.WatchCreateRequest {
	return watching(func(r *pb.WatchCreateRequest) { r.StartRevision = revision })
}

func startsNow(s *session) {
	s.seed("a", "b")
	w := s.watch()
	w.create("watch", watching(nil))
	s.seed("c")
	w.events("events", 1)

	// 300 puts race the start of a watch: all events above the revision of its first response come, in order.
	var putting sync.WaitGroup
	var first int64
	var revisions []int64
	putting.Go(func() {
		for range 300 {
			s.seed("race")
		}
	})
	w = s.watch()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: watching(nil)}})
	if m := w.next(); m != nil {
		first = m.Header.Revision
	}
	putting.Wait()
	last := s.current()
	for len(revisions) == 0 || revisions[len(revisions)-1] < last {
		m := w.next()
		if m == nil {
			break
		}
		for _, e := range m.Events {
			revisions = append(revisions, e.Kv.ModRevision)
		}
	}
	for revision := first + 1; revision <= last; revision++ {
		if !slices.Contains(revisions, revision) {
			s.note("a missed event", "%d, created at %d", revision-s.base, first-s.base)
			break
		}
	}
	s.note("events are in order", "%v", slices.IsSorted(revisions))
}

func startsInTheFuture(s *session) {
	w := s.watch()
	w.create("watch from +3", from(s.base+3))
	w.progress() // not answered
	// The answer to this request shows that the one before it was handled.
	w.create("another watch", &pb.WatchCreateRequest{Key: []byte("zz")})
	s.seed("a", "b")
	w.progress() // not answered
	w.create("a third watch", &pb.WatchCreateRequest{Key: []byte("zzz")})
	s.seed("c")
	s.seed("d")
	w.events("events", 2)
	w.progress()
	w.note("progress after the start")

	// kube-apiserver's shape: a watch from the revision after a list, and no write since.
	w = s.watch()
	s.rebase()
	w.create("watch from the next revision", from(s.base+1))
	w.progress() // not answered
	w.create("a watch after it", &pb.WatchCreateRequest{Key: []byte("zz")})
	s.seed("zz")
	w.events("event of the other watch", 1)
	w.progress()
	w.note("progress after a write anywhere")
}

func responses(s *session) {
	w := s.watch()
	w.create("first watch", watching(nil))
	w.create("second watch", watching(nil))
	s.seed("a", "b")
	w.events("events of two watches", 4)
	s.rebase()
	w.stop(1)
	w.note("the second ends")
	for _, key := range []string{"c", "d"} { // changes that come while another is sent may share a response
		s.seed(key)
		w.borders("live, "+key, 1)
	}

	big := strings.Repeat("v", 100<<10)
	s.rebase()
	for i := range 100 {
		must(s, s.kv.Put, put(fmt.Sprintf("k%02d", i), big))
	}
	s.responsesOf(w, 100)
	history := s.watch()
	history.create("history, watch", from(s.base+1))
	history.borders("history, 100 of 100 KiB", 100)
	history.cancel()
	fragments := s.watch()
	fragments.create("fragments, watch", with(from(s.base+1), func(r *pb.WatchCreateRequest) { r.Fragment = true }))
	fragments.borders("fragments, 100 of 100 KiB", 100)
	fragments.cancel()

	s.rebase()
	s.fill("n", 2_500, 10)
	history = s.watch()
	history.create("history, watch of 2,500", from(s.base+1))
	history.borders("history, 2,500", 2_500)
	s.rebase()
	if s.txn("one revision of three", txn{then: ops{put("p", "1"), put("q", "1"), put("r", "1")}}) {
		history.borders("one revision of three: responses", 3)
	}
}

func identities(s *session) {
	s.seed("a")
	id := func(n int64) func(*pb.WatchCreateRequest) { return func(r *pb.WatchCreateRequest) { r.WatchId = n } }
	w := s.watch()
	w.create("1", watching(id(1)))
	w.create("-7", watching(id(-7)))
	w.create("-1", watching(id(-1)))
	w.create("1 again", watching(id(1)))
	w.create("next free", watching(nil))
	w.create("next free after a taken one", watching(nil))
	w.create("an empty key", &pb.WatchCreateRequest{WatchId: 20})
	w.create("an empty key and an end", &pb.WatchCreateRequest{WatchId: 21, RangeEnd: []byte("b")})
	w.create("everything", &pb.WatchCreateRequest{WatchId: 22, Key: []byte("\x00"), RangeEnd: []byte("\x00")})
	w.create("a reversed range", &pb.WatchCreateRequest{WatchId: 30, Key: []byte("z"), RangeEnd: []byte("a")})
	w.create("an empty range", &pb.WatchCreateRequest{WatchId: 31, Key: []byte("a"), RangeEnd: []byte("a")})
	w.create("start_revision -1", with(from(-1), id(32)))
	s.seed("b")
	w.events("the stream lives", 6)
}

func progress(s *session) {
	w := s.watch()
	w.progress() // without a watch: not answered
	w.create("watch", watching(nil))
	s.seed("a")
	w.events("no answer without a watch", 1)
	w.progress()
	w.note("progress")
	w.progress()
	w.progress()
	w.note("two more: first")
	w.note("two more: second")
	s.seed("zz")
	w.progress()
	w.note("progress after a write elsewhere")

	s.rebase()
	s.fill("n", 3_000, 10)
	s.responsesOf(w, 3_000)
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: from(s.base + 1)}})
	w.progress()
	var before []string
	for got := 0; got < 3_000; {
		m := w.next()
		if m == nil {
			before = append(before, w.text(m))
			break
		}
		if len(m.Events) == 0 {
			before = append(before, s.text(m))
		}
		got += len(m.Events)
	}
	s.note("messages before a watch has caught up", "%s", strings.Join(before, "\n"))
	s.rebase()
	w.progress()
	w.note("progress after that")
}

func periodicProgress(s *session) {
	s.seed("a")
	w := s.watch()
	notify := func(r *pb.WatchCreateRequest) { r.ProgressNotify = true }
	w.create("watch without", watching(nil))
	w.create("watch", watching(notify))
	w.note("first")
	w.note("second")
	s.seed("zz")
	w.note("after a write elsewhere")
}

func previous(s *session) {
	prev := func(r *pb.WatchCreateRequest) { r.PrevKv = true }
	w := s.watch()
	w.create("watch", watching(prev))
	w.create("watch without", &pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("z")})
	s.seed("a", "a") // +1 +2
	must(s, s.kv.DeleteRange, del("a"))
	s.seed("a") // +4
	w.events("live", 8)
	w = s.watch()
	w.create("history, watch", with(from(s.base+1), prev))
	w.events("history", 4)
	s.seed("b", "b") // +5 +6
	must(s, s.kv.DeleteRange, del("b"))
	must(s, s.kv.DeleteRange, del("a"))
	for _, revision := range []int64{5, 6, 7, 8} {
		s.compact(fmt.Sprintf("compact +%d", revision), s.base+revision)
		w := s.watch()
		w.create(fmt.Sprintf("compacted +%d, watch", revision), with(from(s.base+revision), prev))
		w.events(fmt.Sprintf("compacted +%d", revision), int(8-revision+1))
		w.cancel()
	}
}

func filtered(s *session) {
	filter := func(f ...pb.WatchCreateRequest_FilterType) *pb.WatchCreateRequest {
		return watching(func(r *pb.WatchCreateRequest) { r.Filters, r.PrevKv = f, true })
	}
	w := s.watch()
	w.create("NOPUT", filter(pb.WatchCreateRequest_NOPUT))
	w.create("NODELETE", filter(pb.WatchCreateRequest_NODELETE))
	w.create("both", filter(pb.WatchCreateRequest_NOPUT, pb.WatchCreateRequest_NODELETE))
	w.create("unknown", filter(9))
	s.seed("a", "a")
	must(s, s.kv.DeleteRange, del("a"))
	w.events("events", 6)
	w.progress()
	w.note("progress")
	w.create("history, NOPUT", with(filter(pb.WatchCreateRequest_NOPUT),
		func(r *pb.WatchCreateRequest) { r.StartRevision = s.base + 1 }))
	w.events("history", 1)
}

func cancellations(s *session) {
	w := s.watch()
	seven := func(r *pb.WatchCreateRequest) { r.WatchId = 7 }
	w.create("watch", watching(seven))
	w.create("another", &pb.WatchCreateRequest{Key: []byte("zz")})
	s.seed("a")
	w.events("event", 1)
	w.stop(7)
	w.note("cancel")
	w.stop(7)  // not answered
	w.stop(77) // not answered
	w.send(&pb.WatchRequest{})
	w.create("the id again", watching(seven))
	s.seed("b", "zz")
	w.events("events", 2)
	if err := w.CloseSend(); err != nil {
		s.t.Fatal(err)
	}
	s.seed("c", "zz")
	w.events("after the client's half-close", 2)
}

func expiry(s *session) {
	w := s.watch()
	w.create("watch", watching(func(r *pb.WatchCreateRequest) { r.PrevKv = true }))
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3201, TTL: 2})
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3202, TTL: 2})
	for _, key := range []string{"c", "a", "b"} {
		must(s, s.kv.Put, with(put(key, "v"), func(r *pb.PutRequest) { r.Lease = 3201 }))
	}
	must(s, s.kv.Put, with(put("single", "v"), func(r *pb.PutRequest) { r.Lease = 3202 }))
	begin := time.Now()
	s.responsesOf(w, 4)
	deleted, single := map[int64][]string{}, ""
	var order []string
	for n := 0; n < 4; {
		m := w.next()
		if m == nil {
			s.note("an expiry", "%s", w.text(m))
			return
		}
		for _, e := range m.Events {
			n++
			if key := string(e.Kv.Key); key == "single" {
				single = fmt.Sprintf("%v lease %d before: %s", e.Type, e.GetPrevKv().GetLease(), e.GetPrevKv().GetValue())
			} else {
				order = append(order, key)
				deleted[e.Kv.ModRevision] = append(deleted[e.Kv.ModRevision], key)
			}
		}
	}
	took := time.Since(begin)
	s.note("within 1.5 and 8 s", "%v", took > 1500*time.Millisecond && took < 8*time.Second)
	s.note("order of three keys", "%v", order)
	s.note("revisions of three keys", "%d", len(deleted))
	s.note("one key", "%s", single)
	s.note("keys left", "%d", must(s, s.kv.Range, get("a", "z")).Count)
	_, _ = ask(s, "the lease", s.lease.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: 3201})
}

// responsesOf reads n events that are of no interest.
func (s *session) responsesOf(w *watchStream, n int) {
	s.t.Helper()
	if all := w.responses(n); slices.Contains(all, nil) {
		s.t.Fatalf("fewer than %d events", n)
	}
}

func slowReader(s *session) {
	const events = 50_000
	slow := s.watchUnread(s.client)
	slow.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: watching(nil)}})
	same := s.watch() // another stream of the same connection
	same.create("same connection", watching(nil))
	other := s.watchUnread(dial(s.t, s.etcd, grpc.WithStaticStreamWindowSize(1<<20)))
	go other.read()
	other.create("other connection", watching(nil))
	s.rebase()
	s.fill("k", events, 1<<10)
	for name, w := range map[string]*watchStream{"same connection": same, "other connection": other} {
		s.note(name+": all events", "%s", inOrder(w, s.base, events))
	}
	must(s, s.kv.Compact, &pb.CompactionRequest{Revision: s.base + 10})
	go slow.read()
	if m := slow.next(); m != nil {
		s.note("created", "%v", m.Created)
	}
	text := inOrder(slow, s.base, events)
	if slow.s.patience == patience && strings.Contains(text, "compacted") {
		text = "all, in order" // It was not yet read: etcd may cancel the watch too.
	}
	s.note("the slow one", "%s", text)
}

// inOrder reads n events, which must have the revisions after base.
func inOrder(w *watchStream, base int64, n int) string {
	for got := 0; got < n; {
		m := w.next()
		switch {
		case m == nil:
			return fmt.Sprintf("%d, then %s", got, w.text(m))
		case m.Canceled:
			return fmt.Sprintf("compacted after %d", got)
		}
		for _, e := range m.Events {
			got++
			if e.Kv.ModRevision != base+int64(got) {
				return fmt.Sprintf("event %d has revision %+d", got, e.Kv.ModRevision-base)
			}
		}
	}
	return "all, in order"
}
