package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// watchStream is a raw call of Watch.
type watchStream struct {
	fixture
	pb.Watch_WatchClient
}

func (f fixture) watch() watchStream {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), time.Minute)
	f.Cleanup(cancel)
	stream, err := pb.NewWatchClient(f.ActiveConnection()).Watch(metadata.AppendToOutgoingContext(ctx, "hasleader", "true"))
	if err != nil {
		f.Fatal(err)
	}
	return watchStream{f, stream}
}

func (w watchStream) create(r *pb.WatchCreateRequest) {
	w.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

func (w watchStream) progress() {
	w.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (w watchStream) send(r *pb.WatchRequest) {
	w.Helper()
	if err := w.Send(r); err != nil {
		w.Fatal(err)
	}
}

func (w watchStream) next() *pb.WatchResponse {
	w.Helper()
	response, err := w.Recv()
	if err != nil {
		w.Fatal(err)
	}
	return response
}

// events returns n events, each as its key with + or -.
func (w watchStream) events(n int) string {
	w.Helper()
	var all []string
	for len(all) < n {
		for _, ev := range w.next().Events {
			sign := "+"
			if ev.Type == mvccpb.Event_DELETE {
				sign = "-"
			}
			all = append(all, sign+string(ev.Kv.Key))
		}
	}
	return strings.Join(all, " ")
}

func prefixRange(prefix string) (key, end []byte) {
	return []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix))
}

func TestWatch_LiveAndPast(t *testing.T) {
	onEach(t, func(f fixture) {
		key, end := prefixRange("/registry/pods/")
		f.put("/registry/pods/x", "0")
		live := f.watch()
		live.create(&pb.WatchCreateRequest{Key: key, RangeEnd: end, PrevKv: true})
		if r := live.next(); !r.Created || r.Header.Revision != 2 || len(r.Events) != 0 {
			f.Errorf("created: %v", r)
		}
		first := f.put("/registry/pods/a", "1")
		f.put("/registry/nodes/a", "1")
		f.put("/registry/pods/a", "2")
		if _, err := f.Delete(f.Context(), "/registry/pods/a"); err != nil {
			f.Fatal(err)
		}
		check := func(w watchStream) {
			f.Helper()
			var events []*mvccpb.Event
			for len(events) < 3 {
				r := w.next()
				if r.Header.Revision < first || r.Canceled {
					f.Fatalf("response: %v", r)
				}
				events = append(events, r.Events...)
			}
			put, update, deleted := events[0], events[1], events[2]
			if put.PrevKv != nil || put.Kv.Version != 1 || put.Kv.ModRevision != first {
				f.Errorf("create: %v", put)
			}
			if string(update.PrevKv.GetValue()) != "1" || update.Kv.Version != 2 || update.Kv.CreateRevision != first {
				f.Errorf("update: %v", update)
			}
			if deleted.Type != mvccpb.Event_DELETE || string(deleted.PrevKv.GetValue()) != "2" || deleted.PrevKv.Version != 2 ||
				deleted.Kv.Version != 0 || deleted.Kv.CreateRevision != 0 || deleted.Kv.ModRevision != first+3 {
				f.Errorf("delete: %v", deleted)
			}
		}
		check(live)
		past := f.watch()
		past.create(&pb.WatchCreateRequest{Key: key, RangeEnd: end, PrevKv: true, StartRevision: first})
		past.next()
		check(past)
	})
}

func TestWatch_SeveralResources(t *testing.T) {
	onEach(t, func(f fixture) {
		w := f.watch()
		w.create(&pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}})
		w.next()
		f.put("/registry/pods/a", "")
		f.put("key", "")
		f.put("/registry/new.example.com/things/a", "")
		if _, err := f.Delete(f.Context(), "key"); err != nil {
			f.Fatal(err)
		}
		if got := w.events(4); got != "+/registry/pods/a +key +/registry/new.example.com/things/a -key" {
			f.Error(got)
		}
		w.progress()
		if r := w.next(); r.WatchId != -1 || r.Header.Revision != 5 {
			f.Errorf("progress: %v", r)
		}
	})
}

func TestWatch_OneKeyAndFilters(t *testing.T) {
	onEach(t, func(f fixture) {
		w := f.watch()
		w.create(&pb.WatchCreateRequest{Key: []byte("a")})
		noPut := []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
		w.create(&pb.WatchCreateRequest{Key: []byte("a"), Filters: noPut})
		if first, second := w.next(), w.next(); first.WatchId != 0 || second.WatchId != 1 {
			f.Errorf("IDs %d and %d", first.WatchId, second.WatchId)
		}
		f.put("aa", "")
		f.put("a", "")
		f.put("b", "")
		if _, err := f.Delete(f.Context(), "a"); err != nil {
			f.Fatal(err)
		}
		puts, deletes := 0, map[int64]int{}
		for puts+deletes[0]+deletes[1] < 3 {
			r := w.next()
			for _, ev := range r.Events {
				if string(ev.Kv.Key) != "a" {
					f.Errorf("event of %s", ev.Kv.Key)
				}
				if ev.Type == mvccpb.Event_DELETE {
					deletes[r.WatchId]++
				} else if puts++; r.WatchId != 0 {
					f.Error("a put passed the filter")
				}
			}
		}
	})
}

func TestWatch_Refused(t *testing.T) {
	onEach(t, func(f fixture) {
		w := f.watch()
		w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 7})
		w.next()
		for name, c := range map[string]struct {
			request *pb.WatchCreateRequest
			reason  string
		}{
			"duplicate": {&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 7}, "mvcc: duplicate watch ID provided on the WatchStream"},
			"empty":     {&pb.WatchCreateRequest{Key: []byte("d"), RangeEnd: []byte("a")}, "mvcc: watcher range is empty"},
			"negative":  {&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1}, "etcdserver: mvcc: required revision has been compacted"},
		} {
			w.create(c.request)
			if r := w.next(); r.WatchId != -1 || !r.Created || !r.Canceled || r.CancelReason != c.reason || r.CompactRevision != 0 {
				f.Errorf("%s: %v", name, r)
			}
		}
		cancel := &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 7}}
		w.send(&pb.WatchRequest{RequestUnion: cancel})
		if r := w.next(); !r.Canceled || r.WatchId != 7 || r.CancelReason != "" || r.CompactRevision != 0 {
			f.Errorf("cancel: %v", r)
		}
		// The stream goes on when the client has nothing more to say.
		w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 7})
		w.next()
		if err := w.CloseSend(); err != nil {
			f.Fatal(err)
		}
		f.put("a", "")
		if got := w.events(1); got != "+a" {
			f.Error(got)
		}
	})
}

func TestWatch_Compacted(t *testing.T) {
	onEach(t, func(f fixture) {
		f.put("a", "1")
		f.put("a", "2")
		at := f.put("a", "3")
		f.put("a", "4")
		if _, err := f.Compact(f.Context(), at); err != nil {
			f.Fatal(err)
		}
		w := f.watch()
		w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: at - 1})
		if r := w.next(); !r.Created || r.Canceled || r.Header.Revision < at {
			f.Errorf("created: %v", r)
		}
		if r := w.next(); r.Created || !r.Canceled || r.CompactRevision != at || r.CancelReason != "" ||
			r.Header.GetRevision() != 0 {
			f.Errorf("compacted: %v", r)
		}
		w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: at, PrevKv: true})
		w.next()
		var events []*mvccpb.Event
		for len(events) < 2 {
			events = append(events, w.next().Events...)
		}
		if events[0].Kv.ModRevision != at || events[0].PrevKv != nil || string(events[1].PrevKv.GetValue()) != "3" {
			f.Errorf("events: %v", events)
		}
	})
}

// A progress answer comes after all events up to its revision, and not at all while the watch has not begun.
func TestWatch_Progress(t *testing.T) {
	onEach(t, func(f fixture) {
		f.put("other", "")
		current := f.get("a").Header.Revision
		w := f.watch()
		w.progress() // without a watch: no answer
		key, end := prefixRange("/registry/pods/")
		w.create(&pb.WatchCreateRequest{Key: key, RangeEnd: end, StartRevision: current + 1})
		w.next()
		w.progress() // the watch has not begun: no answer
		last := f.put("other", "")
		w.progress()
		if r := w.next(); r.WatchId != -1 || r.Header.Revision != last || len(r.Events) != 0 {
			f.Errorf("progress: %v", r)
		}
		seen := last
		for i := range 200 {
			revision := f.put(fmt.Sprintf("/registry/pods/%d", i%7), "v")
			w.progress()
			for answered := false; seen < revision && !answered; {
				r := w.next()
				if r.WatchId == -1 {
					if answered = true; r.Header.Revision > seen {
						f.Fatalf("progress to %d after the event of %d", r.Header.Revision, seen)
					}
				}
				for _, ev := range r.Events {
					if ev.Kv.ModRevision <= seen {
						f.Fatalf("event of %d after %d", ev.Kv.ModRevision, seen)
					}
					seen = ev.Kv.ModRevision
				}
			}
		}
	})
}

// A reader that is far behind gets every event, from the store, and holds up nobody.
func TestWatch_SlowReader(t *testing.T) {
	onEach(t, func(f fixture) {
		key, end := prefixRange("/registry/pods/")
		slow := f.watch()
		slow.create(&pb.WatchCreateRequest{Key: key, RangeEnd: end})
		slow.next()
		value := strings.Repeat("x", 100_000)
		const n = 150 // more than the windows of HTTP/2 and the ring take
		for i := range n {
			f.put(fmt.Sprintf("/registry/pods/%d", i%3), value)
		}
		for revision := int64(2); revision < 2+n; {
			for _, ev := range slow.next().Events {
				if ev.Kv.ModRevision != revision || len(ev.Kv.Value) != len(value) {
					f.Fatalf("event of revision %d, want %d", ev.Kv.ModRevision, revision)
				}
				revision++
			}
		}
	})
}
