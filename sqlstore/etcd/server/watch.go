package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"byre/sqlstore"
	"byre/watch"
)

type watchService struct {
	pb.UnsafeWatchServer
	*Server
}

const (
	defaultProgressInterval = 10 * time.Minute
	// maxResponseBytes bounds the events of a response, except of one revision without fragments.
	maxResponseBytes = maxRequestBytes + grpcOverheadBytes
	// noWatch is the ID in answers that are of no watch, or of one that was not made.
	noWatch = -1
)

// stream is one call of Watch. Its goroutines take turns: whoever polls a watch, or sends, holds mu. So a response is
// of what all earlier ones left to be sent, and a client that reads slowly holds up its own stream alone.
type stream struct {
	*Server
	pb.Watch_WatchServer

	mu      sync.Mutex
	watches map[int64]*watcher
	// nextID is the first ID that no watch of the stream was given.
	nextID int64
	// sent is the greatest revision of a header that the stream has sent of events.
	sent   int64
	group  sync.WaitGroup
	failed context.CancelCauseFunc
}

// Watch implements pb.WatchServer. A stream ends with its context: a client that has nothing more to ask still gets
// events.
func (s *watchService) Watch(grpcStream pb.Watch_WatchServer) error {
	ctx, cancel := context.WithCancelCause(grpcStream.Context())
	st := &stream{Server: s.Server, Watch_WatchServer: grpcStream, watches: map[int64]*watcher{}, failed: cancel}
	defer st.group.Wait()
	defer cancel(nil)
	st.group.Go(func() { st.notifyProgress(ctx) })
	st.group.Go(func() {
		for {
			request, err := st.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil {
				err = st.handle(ctx, request)
			}
			if err != nil {
				cancel(err)
				return
			}
		}
	})
	<-ctx.Done()
	if grpcStream.Context().Err() != nil {
		return grpcStream.Context().Err()
	}
	return context.Cause(ctx)
}

func (st *stream) handle(ctx context.Context, request *pb.WatchRequest) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch r := request.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		return st.create(ctx, r.CreateRequest)
	case *pb.WatchRequest_CancelRequest:
		w := st.watches[r.CancelRequest.WatchId]
		if w == nil {
			return nil
		}
		st.drop(w)
		return st.Send(&pb.WatchResponse{Header: st.header(st.feed.Revision()), WatchId: w.id, Canceled: true})
	case *pb.WatchRequest_ProgressRequest:
		return st.answerProgress(ctx)
	}
	return nil
}

// watcher is one watch of a stream.
type watcher struct {
	id      int64
	span    span
	request *pb.WatchCreateRequest
	// start is the first revision that the watch is to see.
	start  int64
	events source
	// isQuiet is false if the watch has sent something since the last tick of notifyProgress.
	isQuiet bool
	cancel  context.CancelFunc
}

// source yields the events of a watch. Only one goroutine may use it at a time, except for wait.
type source interface {
	// poll returns the next events, if there are any, and the revision up to which all have been returned.
	poll(context.Context) (events []watch.Event, upTo int64, err error)
	// wait waits until there may be events, after a poll that has returned none.
	wait(context.Context) error
	close()
}

// create makes a watch. The caller holds mu.
func (st *stream) create(ctx context.Context, r *pb.WatchCreateRequest) error {
	refuse := func(id int64, reason string) error {
		return st.Send(&pb.WatchResponse{Header: st.header(st.feed.Revision()), WatchId: id, Created: true, Canceled: true,
			CancelReason: reason})
	}
	if len(r.Key) == 0 {
		r.Key = []byte{0}
	}
	w := &watcher{id: r.WatchId, span: spanOf(r.Key, r.RangeEnd), request: r, start: r.StartRevision}
	switch {
	case w.span.isEmpty():
		return refuse(noWatch, "mvcc: watcher range is empty")
	case r.StartRevision < 0:
		return refuse(noWatch, rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted))
	case w.id != 0 && st.watches[w.id] != nil:
		return refuse(noWatch, "mvcc: duplicate watch ID provided on the WatchStream")
	case w.id == 0:
		for ; st.watches[st.nextID] != nil; st.nextID++ {
		}
		w.id = st.nextID
		st.nextID++
	}
	current, err := st.feed.Latest(ctx)
	if err != nil {
		return err
	}
	if w.start == 0 {
		w.start = current + 1
	}
	if err := st.Send(&pb.WatchResponse{Header: st.header(current), WatchId: w.id, Created: true}); err != nil {
		return err
	}
	err = st.checkRevision(ctx, min(w.start, current), current)
	if errors.Is(err, rpctypes.ErrGRPCCompacted) {
		return st.sendCompacted(w.id, st.compacted.Load())
	}
	if err != nil {
		return err
	}
	if w.events, err = st.open(ctx, w); err != nil {
		return err
	}
	st.watches[w.id] = w
	ctx, w.cancel = context.WithCancel(ctx)
	st.group.Go(func() { st.run(ctx, w) })
	return nil
}

// open returns the events of a watch.
func (st *stream) open(ctx context.Context, w *watcher) (source, error) {
	r, ok := w.span.resource()
	if !ok {
		return &changeReader{Server: st.Server, position: w.start - 1}, nil
	}
	interest := watch.Interest{Resource: r}
	if w.span.isOne {
		interest.Name = RecordOf(w.span.start).Name
	}
	subscription, err := st.feed.Subscribe(ctx, interest, w.start-1)
	return subscribed{subscription}, err
}

// drop ends a watch. The caller holds mu.
func (st *stream) drop(w *watcher) {
	w.cancel()
	w.events.close()
	delete(st.watches, w.id)
}

// sendCompacted tells that a watch ends because of a compaction. The Go client goes by the revision, not by a reason.
func (st *stream) sendCompacted(id, compacted int64) error {
	return st.Send(&pb.WatchResponse{Header: st.header(0), WatchId: id, Canceled: true, CompactRevision: compacted})
}

// run sends the events of a watch until its context ends.
func (st *stream) run(ctx context.Context, w *watcher) {
	for {
		st.mu.Lock()
		if ctx.Err() != nil {
			st.mu.Unlock()
			return
		}
		_, n, err := st.advance(ctx, w)
		st.mu.Unlock()
		if err == nil && n == 0 {
			err = w.events.wait(ctx)
		}
		if err != nil && ctx.Err() == nil {
			st.failed(err)
			return
		}
	}
}

// advance sends the next events of a watch, and returns the revision up to which it has sent all, and how many it has
// read. The caller holds mu.
func (st *stream) advance(ctx context.Context, w *watcher) (upTo int64, n int, err error) {
	events, upTo, err := w.events.poll(ctx)
	if err == nil && len(events) == 0 {
		return upTo, 0, nil
	}
	compacted := st.compacted.Load()
	switch {
	case errors.Is(err, sqlstore.ErrCompacted):
		kept, err := st.store.State(ctx)
		if err != nil {
			return 0, 0, err
		}
		st.drop(w)
		return 0, 0, st.sendCompacted(w.id, max(compacted, kept.Compacted+1))
	case err != nil:
		return 0, 0, err
	case events[0].Revision < compacted:
		st.drop(w)
		return 0, 0, st.sendCompacted(w.id, compacted)
	}
	return upTo, len(events), st.sendEvents(w, events, compacted)
}

// sendEvents sends events, of which a response has some bytes at most.
func (st *stream) sendEvents(w *watcher, events []watch.Event, compacted int64) error {
	var response *pb.WatchResponse
	size := 0
	for _, ev := range events {
		event, err := w.event(ev, compacted)
		if err != nil {
			return err
		}
		if event == nil {
			continue
		}
		length := proto.Size(event)
		if response != nil && size+length > maxResponseBytes {
			if err := st.sendResponse(w, response); err != nil {
				return err
			}
			response = nil
		}
		if response == nil {
			response, size = &pb.WatchResponse{WatchId: w.id}, 0
		}
		response.Events, size = append(response.Events, event), size+length
		response.Header = st.header(ev.Revision)
	}
	if response == nil {
		return nil
	}
	return st.sendResponse(w, response)
}

func (st *stream) sendResponse(w *watcher, response *pb.WatchResponse) error {
	w.isQuiet = false
	st.sent = max(st.sent, response.Header.Revision)
	return st.Send(response)
}

// event returns what etcd sends of an event; nil if the watch does not want it.
func (w *watcher) event(ev watch.Event, compacted int64) (*mvccpb.Event, error) {
	key := ev.Key()
	if ev.Revision < w.start || !hasKeys(key.Of()) {
		return nil, nil
	}
	filter := pb.WatchCreateRequest_NOPUT
	if ev.New == nil {
		filter = pb.WatchCreateRequest_NODELETE
	}
	name := keyOf(key)
	if !w.span.contains(string(name)) || slices.Contains(w.request.Filters, filter) {
		return nil, nil
	}
	event := &mvccpb.Event{Type: mvccpb.Event_PUT}
	var err error
	if ev.New != nil {
		event.Kv, err = keyValue(ev.New, false)
	} else {
		event.Type, event.Kv = mvccpb.Event_DELETE, &mvccpb.KeyValue{Key: name, ModRevision: ev.Revision}
	}
	if err == nil && w.request.PrevKv {
		event.PrevKv, err = previous(ev.Old, ev.Revision, compacted)
	}
	return event, err
}

// answerProgress answers a progress request, unless a watch of the stream has events to send, or waits for its first
// revision: as in etcd the client then asks again. The caller holds mu.
//
// Invariant: every watch of the stream has sent its events up to the revision of the answer. kube-apiserver serves
// lists of that revision from its cache after it.
func (st *stream) answerProgress(ctx context.Context) error {
	if len(st.watches) == 0 {
		return nil
	}
	revision := st.feed.Revision()
	for _, w := range st.watches {
		upTo, n, err := st.advance(ctx, w)
		if err != nil {
			return err
		}
		if n > 0 || st.watches[w.id] == nil || w.request.StartRevision > revision {
			return nil
		}
		revision = min(revision, upTo)
	}
	if revision < st.sent {
		return nil
	}
	return st.Send(&pb.WatchResponse{Header: st.header(revision), WatchId: noWatch})
}

// notifyProgress tells watches that ask for it, and had no event for an interval, how far they are.
func (st *stream) notifyProgress(ctx context.Context) {
	ticker := time.NewTicker(st.options.ProgressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := st.notifyQuiet(ctx); err != nil {
			st.failed(err)
			return
		}
	}
}

func (st *stream) notifyQuiet(ctx context.Context) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, w := range st.watches {
		if !w.request.ProgressNotify {
			continue
		}
		wasQuiet := w.isQuiet
		w.isQuiet = true
		if !wasQuiet {
			continue
		}
		upTo, n, err := st.advance(ctx, w)
		if err == nil && n == 0 && st.watches[w.id] != nil && w.request.StartRevision <= upTo {
			err = st.Send(&pb.WatchResponse{Header: st.header(upTo), WatchId: w.id})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// subscribed is the source of a watch of one resource.
type subscribed struct{ *watch.Subscription }

func (s subscribed) poll(ctx context.Context) ([]watch.Event, int64, error) { return s.Poll(ctx) }

func (s subscribed) wait(ctx context.Context) error {
	select {
	case <-s.Ready():
		return nil
	case <-s.Done():
		return watch.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s subscribed) close() { s.Close() }

// changeReader is the source of a watch of keys of several resources, which may not exist yet. It reads the changes of
// all resources from the store.
type changeReader struct {
	*Server
	// position is the revision up to which poll has returned all events.
	position int64
	// applied is where the feed was at the last poll that returned none. isLost says that the feed has read all state
	// again since.
	applied watch.Position
	isLost  bool
}

// changePage is how many changes, and how many bytes of them, a changeReader reads at a time.
const (
	changePage      = 256
	changePageBytes = 2 << 20
)

func (c *changeReader) poll(ctx context.Context) ([]watch.Event, int64, error) {
	if c.isLost {
		return nil, 0, watch.ErrCompacted
	}
	position, err := c.feed.Position(ctx)
	if err != nil || c.position >= position.Revision {
		c.applied = position
		return nil, position.Revision, err
	}
	changes, err := c.store.Changes(ctx, sqlstore.ChangesQuery{After: c.position, Limit: changePage, Size: changePageBytes})
	if err != nil {
		return nil, 0, err
	}
	var events []watch.Event
	for _, change := range changes {
		if change.Revision > position.Revision {
			break
		}
		ev := watch.Event{Revision: change.Revision}
		if change.Op != sqlstore.Delete {
			ev.New = watch.NewEntry(change.New)
		}
		if change.Old != nil {
			ev.Old = watch.NewEntry(*change.Old)
		}
		events, c.position = append(events, ev), change.Revision
	}
	return events, c.position, nil
}

func (c *changeReader) wait(ctx context.Context) error {
	err := c.feed.AwaitChange(ctx, c.applied)
	if c.isLost = errors.Is(err, watch.ErrCompacted); c.isLost {
		return nil
	}
	return err
}

func (c *changeReader) close() {}
