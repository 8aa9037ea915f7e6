package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"byre/sqlstore"
	"byre/watch"
)

type kvService struct {
	pb.UnsafeKVServer
	*Server
}

// pageLifetime is for how long the snapshot of a list that was cut off by its limit is kept for the next pages.
const pageLifetime = 5 * time.Minute

// listing is the keys of a span at one revision.
type listing struct {
	server *Server
	span   span
	// revision is that of the keys, and current the store's when they were read.
	revision, current int64
	parts             []part
}

// part has the keys of one resource: a snapshot or, if the resource is not in memory at that revision, the database.
type part struct {
	of       sqlstore.Resource
	snapshot *watch.Snapshot
}

// list opens the keys of a span at a revision; 0 means the current one. It fails with etcd's errors for a revision that
// is compacted or in the future.
func (s *Server) list(ctx context.Context, sp span, revision int64) (*listing, error) {
	current, err := s.feed.Latest(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.checkRevision(ctx, revision, current); err != nil {
		return nil, err
	}
	if revision > 0 {
		return s.listAt(ctx, sp, revision, current)
	}
	resources, err := s.resources(ctx, sp)
	if err != nil {
		return nil, err
	}
	return s.listCurrent(ctx, sp, current, resources)
}

// listAt is list at a revision that is known to exist, also if a client has compacted it.
func (s *Server) listAt(ctx context.Context, sp span, revision, current int64) (*listing, error) {
	resources, err := s.resources(ctx, sp)
	if err != nil {
		return nil, err
	}
	l := &listing{server: s, span: sp, revision: revision, current: current}
	for _, r := range resources {
		p := part{of: r}
		if snapshot, ok := s.feed.SnapshotAt(r, revision); ok {
			p.snapshot = &snapshot
		}
		l.parts = append(l.parts, p)
	}
	return l, nil
}

// listCurrent is list at the current revision, which is not before current.
func (s *Server) listCurrent(
	ctx context.Context, sp span, current int64, resources []sqlstore.Resource,
) (*listing, error) {
	for {
		l := &listing{server: s, span: sp, revision: current, current: current}
		snapshots, err := s.feed.Snapshots(ctx, resources...)
		if err != nil {
			return nil, err
		}
		for i := range snapshots {
			l.parts = append(l.parts, part{resources[i], &snapshots[i]})
			l.revision, l.current = snapshots[i].Revision(), snapshots[i].Revision()
		}
		if len(resources) <= 1 {
			return l, nil
		}
		// A resource may have got its first key before the revision of the snapshots.
		now, err := s.resources(ctx, sp)
		if err != nil {
			return nil, err
		}
		if len(now) == len(resources) {
			return l, nil
		}
		resources = now
	}
}

// checkRevision fails with etcd's errors for a revision that can't be read.
func (s *Server) checkRevision(ctx context.Context, revision, current int64) error {
	if revision <= 0 {
		return nil
	}
	if revision > current {
		return rpctypes.ErrGRPCFutureRev
	}
	compacted := s.compacted.Load()
	if s.isShared {
		var err error
		if compacted, err = s.readCompacted(ctx); err != nil {
			return err
		}
	}
	if revision < compacted {
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

// resources returns the resources that have keys of a span. One that has its first key later than the caller's
// revision may be missing.
func (s *Server) resources(ctx context.Context, sp span) ([]sqlstore.Resource, error) {
	if sp.isEmpty() {
		return nil, nil
	}
	if r, ok := sp.resource(); ok {
		return []sqlstore.Resource{r}, nil
	}
	histories, err := s.store.Histories(ctx)
	if err != nil {
		return nil, err
	}
	var resources []sqlstore.Resource
	for _, h := range histories {
		if hasKeys(h.Resource) && sp.overlaps(h.Resource) {
			resources = append(resources, h.Resource)
		}
	}
	return resources, nil
}

// all yields the keys from a position on in the order of their bytes; the position is the zero value or a record of
// the listing, which is left out.
func (l *listing) all(ctx context.Context, after *watch.Entry, keysOnly bool) iter.Seq2[*watch.Entry, error] {
	if len(l.parts) == 1 {
		return l.ofPart(ctx, &l.parts[0], after, keysOnly)
	}
	return func(yield func(*watch.Entry, error) bool) {
		type keyed struct {
			key   []byte
			entry *watch.Entry
		}
		var all []keyed
		for i := range l.parts {
			for e, err := range l.ofPart(ctx, &l.parts[i], nil, keysOnly) {
				if err != nil {
					yield(nil, err)
					return
				}
				all = append(all, keyed{keyOf(e.Key), e})
			}
		}
		slices.SortFunc(all, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
		var last []byte
		if after != nil {
			last = keyOf(after.Key)
		}
		for _, k := range all {
			if after != nil && bytes.Compare(k.key, last) <= 0 {
				continue
			}
			if !yield(k.entry, nil) {
				return
			}
		}
	}
}

// ofPart is all of one part.
func (l *listing) ofPart(
	ctx context.Context, p *part, after *watch.Entry, keysOnly bool,
) iter.Seq2[*watch.Entry, error] {
	first, end, _ := l.span.names(p.of)
	isBefore := func(name string) bool { return end == "" || name < end }
	return func(yield func(*watch.Entry, error) bool) {
		position := &sqlstore.Position{Name: first}
		if after != nil {
			position.Name = after.Name
		} else if e, err := l.one(ctx, p, first, keysOnly); err != nil || e != nil {
			if !yield(e, err) || err != nil {
				return
			}
		}
		if l.span.isOne {
			return
		}
		if p.snapshot != nil {
			for e := range p.snapshot.All("", position) {
				if !isBefore(e.Name) || !yield(e, nil) {
					return
				}
			}
			return
		}
		q := sqlstore.Query{Range: rangeOf(p.of, ""), At: l.revision, KeysOnly: keysOnly}
		q.After = position
		_, err := l.server.store.List(ctx, q, func(r sqlstore.Record) error {
			if !isBefore(r.Name) || !yield(watch.NewEntry(r), nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(nil, err)
		}
	}
}

// one returns the record with a name; nil if there is none.
func (l *listing) one(ctx context.Context, p *part, name string, keysOnly bool) (e *watch.Entry, err error) {
	if name == "" {
		return nil, nil
	}
	if p.snapshot != nil {
		return p.snapshot.Get("", name), nil
	}
	q := sqlstore.Query{Range: rangeOf(p.of, name), At: l.revision, KeysOnly: keysOnly}
	_, err = l.server.store.List(ctx, q, func(r sqlstore.Record) error {
		e = watch.NewEntry(r)
		return nil
	})
	return e, err
}

func rangeOf(r sqlstore.Resource, name string) sqlstore.Range {
	return sqlstore.Range{Group: r.Group, Resource: r.Resource, Owner: r.Owner, Name: name}
}

// errEnough ends a List whose other records the caller does not need.
var errEnough = errors.New("enough records")

// count returns how many keys there are.
func (l *listing) count(ctx context.Context) (n int64, err error) {
	if n, ok := l.knownCount(); ok {
		return n, nil
	}
	return l.countAfter(ctx, nil)
}

// knownCount is count, if that is known without a look at the keys.
func (l *listing) knownCount() (int64, bool) {
	n := int64(0)
	for _, p := range l.parts {
		_, _, whole := l.span.names(p.of)
		if p.snapshot == nil || !whole {
			return 0, false
		}
		n += int64(p.snapshot.Len())
	}
	return n, true
}

func (l *listing) countAfter(ctx context.Context, after *watch.Entry) (n int64, err error) {
	for _, err := range l.all(ctx, after, true) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// keep keeps the snapshots for further pages.
func (l *listing) keep() {
	for _, p := range l.parts {
		if p.snapshot != nil {
			l.server.feed.Keep(*p.snapshot, pageLifetime)
		}
	}
}

func checkRange(r *pb.RangeRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case pb.RangeRequest_SortOrder_name[int32(r.SortOrder)] == "", pb.RangeRequest_SortTarget_name[int32(r.SortTarget)] == "":
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

// Range implements pb.KVServer.
func (s *kvService) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	return s.answerRange(ctx, r)
}

// answerRange answers a request that was checked. A serializable one is linearizable too.
func (s *Server) answerRange(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	sp := spanOf(r.Key, r.RangeEnd)
	if sp.isOne && r.Revision <= 0 {
		// A snapshot of all keys of the resource would cost the next write a copy of nodes.
		e, revision, err := s.get(ctx, RecordOf(sp.start), true)
		if err != nil {
			return nil, err
		}
		return s.assemble(r, entriesOf(e), int64(len(entriesOf(e))), revision)
	}
	l, err := s.list(ctx, sp, r.Revision)
	if err != nil {
		return nil, err
	}
	return s.answerListing(ctx, l, r)
}

func (s *Server) answerListing(ctx context.Context, l *listing, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if r.CountOnly {
		n, err := l.count(ctx)
		return &pb.RangeResponse{Header: s.header(l.current), Count: n}, err
	}
	// As in etcd, the limit comes before a sort of values in the order NONE.
	limit := int64(0)
	if isKeyOrder(r) && !isFiltered(r) && r.Limit > 0 {
		limit = r.Limit
	}
	var entries []*watch.Entry
	isMore := false
	for e, err := range l.all(ctx, nil, false) {
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
		if isMore = limit > 0 && int64(len(entries)) > limit; isMore {
			break
		}
	}
	count := int64(len(entries))
	if isMore {
		l.keep()
		known, ok := l.knownCount()
		if !ok {
			rest, err := l.countAfter(ctx, entries[len(entries)-1])
			if err != nil {
				return nil, err
			}
			known = count + rest
		}
		count = known
	}
	return s.assemble(r, entries, count, l.current)
}

func entriesOf(e *watch.Entry) []*watch.Entry {
	if e == nil {
		return nil
	}
	return []*watch.Entry{e}
}

// isKeyOrder and isFiltered are what etcd's executor asks of a request: a limit ends the reading of a range in the
// order of keys, but not of one that must be sorted or filtered first.
func isKeyOrder(r *pb.RangeRequest) bool {
	return r.SortOrder == pb.RangeRequest_NONE ||
		r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND
}

func isFiltered(r *pb.RangeRequest) bool {
	return r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
}

// assemble makes the answer of the keys of a range: filters, then the order, then the limit. count is of the range.
func (s *Server) assemble(
	r *pb.RangeRequest, entries []*watch.Entry, count, revision int64,
) (*pb.RangeResponse, error) {
	response := &pb.RangeResponse{Header: s.header(revision), Count: count}
	if r.CountOnly {
		return response, nil
	}
	entries = slices.DeleteFunc(entries, func(e *watch.Entry) bool {
		return r.MaxModRevision != 0 && e.Revision > r.MaxModRevision || e.Revision < r.MinModRevision ||
			r.MaxCreateRevision != 0 && e.Created > r.MaxCreateRevision || e.Created < r.MinCreateRevision
	})
	byValue := r.SortTarget == pb.RangeRequest_VALUE
	kvs := make([]*mvccpb.KeyValue, len(entries))
	for i, e := range entries {
		var err error
		if kvs[i], err = keyValue(e, r.KeysOnly && !byValue); err != nil {
			return nil, err
		}
	}
	if compare := comparisons[r.SortTarget]; r.SortTarget != pb.RangeRequest_KEY || r.SortOrder == pb.RangeRequest_DESCEND {
		slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
			if r.SortOrder == pb.RangeRequest_DESCEND {
				return compare(b, a)
			}
			return compare(a, b)
		})
	}
	if response.More = r.Limit > 0 && int64(len(kvs)) > r.Limit; response.More {
		kvs = kvs[:r.Limit]
	}
	if r.KeysOnly {
		for _, kv := range kvs {
			kv.Value = nil
		}
	}
	response.Kvs = kvs
	return response, nil
}

var comparisons = map[pb.RangeRequest_SortTarget]func(a, b *mvccpb.KeyValue) int{
	pb.RangeRequest_KEY:     func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) },
	pb.RangeRequest_VERSION: func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) },
	pb.RangeRequest_CREATE:  func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) },
	pb.RangeRequest_MOD:     func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) },
	pb.RangeRequest_VALUE:   func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) },
}

// firstChunk is how many keys the first message of a RangeStream has at most.
const firstChunk = 10

// RangeStream implements pb.KVServer. Its messages are as large as etcd's: the number of keys doubles while a message
// has less than half of maxRequestBytes, and halves above twice that.
func (s *kvService) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	switch err := checkRange(r); {
	case err != nil:
		return err
	case !isKeyOrder(r):
		return status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	case isFiltered(r):
		return status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
	}
	ctx, send := stream.Context(), func(m *pb.RangeResponse) error {
		return stream.Send(&pb.RangeStreamResponse{RangeResponse: m})
	}
	l, err := s.list(ctx, spanOf(r.Key, r.RangeEnd), r.Revision)
	if err != nil {
		return err
	}
	if r.CountOnly {
		n, err := l.count(ctx)
		if err != nil {
			return err
		}
		return send(&pb.RangeResponse{Header: s.header(l.current), Count: n})
	}
	message := &pb.RangeResponse{}
	var last *watch.Entry
	sent, limit := int64(0), firstChunk
	if r.Limit < 0 {
		limit = math.MaxInt // as in etcd, all keys in one message
	}
	for e, err := range l.all(ctx, nil, false) {
		if err != nil {
			return err
		}
		if message.More = r.Limit > 0 && sent+int64(len(message.Kvs)) == r.Limit; message.More {
			break
		}
		if len(message.Kvs) == limit {
			if err := s.checkRevision(ctx, l.revision, l.current); err != nil {
				return err
			}
			if err := send(message); err != nil {
				return err
			}
			limit = nextChunk(limit, proto.Size(message))
			sent += int64(len(message.Kvs))
			message = &pb.RangeResponse{}
		}
		kv, err := keyValue(e, r.KeysOnly)
		if err != nil {
			return err
		}
		message.Kvs, last = append(message.Kvs, kv), e
	}
	message.Header, message.Count = s.header(l.current), sent+int64(len(message.Kvs))
	if message.More {
		l.keep()
		rest, err := l.countAfter(ctx, last)
		if err != nil {
			return err
		}
		message.Count += rest
	}
	return send(message)
}

func nextChunk(limit, size int) int {
	switch {
	case size < maxRequestBytes/2:
		return limit * 2
	case size > maxRequestBytes*2:
		return max(limit/2, 1)
	}
	return limit
}
