package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"byre/sqlstore"
	"byre/watch"
)

const (
	// maxRequestBytes is etcd's --max-request-bytes, which bounds the entry of a write in its Raft log.
	maxRequestBytes = 1_572_864
	// grpcOverheadBytes is what a message of gRPC may have beside.
	grpcOverheadBytes = 512 << 10
	// maxTxnOps is etcd's --max-txn-ops.
	maxTxnOps = 128
)

// checkSize fails if the entry of a write would be too large for etcd's Raft log.
func checkSize(r *pb.InternalRaftRequest) error {
	r.Header = &pb.RequestHeader{ID: 1 << 63} // IDs of etcd have the member's in the upper bits
	if proto.Size(r) > maxRequestBytes {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) > 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

// Put implements pb.KVServer.
func (s *kvService) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	if err := checkSize(&pb.InternalRaftRequest{Put: r}); err != nil {
		return nil, err
	}
	if err := s.checkSpace(); err != nil {
		return nil, err
	}
	key := RecordOf(string(r.Key))
	for isFresh := false; ; isFresh = true {
		old, _, err := s.get(ctx, key, isFresh)
		if err != nil {
			return nil, err
		}
		w, err := putWrite(ctx, key, old, r)
		if err == nil {
			var revision int64
			if revision, err = s.commit(ctx, w); err == nil {
				return s.putResponse(r, old, revision)
			}
		}
		if !isConflict(err) && (isFresh || !errors.Is(err, rpctypes.ErrGRPCKeyNotFound)) {
			return nil, err
		}
	}
}

// putWrite returns the write of a put that replaces the record old, which is nil if there is none.
func putWrite(ctx context.Context, key sqlstore.Key, old *watch.Entry, r *pb.PutRequest) (sqlstore.Write, error) {
	w := sqlstore.Write{Op: sqlstore.Create, Key: key, Grows: true, Author: author(ctx, "create")}
	version, lease := int64(0), r.Lease
	if old != nil {
		w.Op, w.Replaces, w.Author.Verb = sqlstore.Update, old.Revision, "update"
		var held int64
		if version, held = parseIdentity(old.UID); r.IgnoreLease {
			lease = held
		}
	} else if r.IgnoreValue || r.IgnoreLease {
		return w, rpctypes.ErrGRPCKeyNotFound
	}
	if r.IgnoreValue {
		w.Encoding, w.Value = old.Encoding, old.Value()
	} else {
		w.Encoding, w.Value = encodeValue(r.Value)
	}
	w.UID, w.Expires = identity(version+1, lease), leaseMark(lease)
	return w, nil
}

func (s *Server) putResponse(r *pb.PutRequest, old *watch.Entry, revision int64) (*pb.PutResponse, error) {
	response := &pb.PutResponse{Header: s.header(revision)}
	var err error
	if r.PrevKv && old != nil {
		response.PrevKv, err = keyValue(old, false)
	}
	return response, err
}

// commit commits a write and returns its revision. The lease of a key must live.
func (s *Server) commit(ctx context.Context, w sqlstore.Write) (int64, error) {
	_, lease := parseIdentity(w.UID)
	if w.Op == sqlstore.Delete {
		lease = 0
	}
	if lease != 0 {
		if l, err := s.lessor.find(ctx, lease); err != nil || l == nil {
			return 0, cmp.Or(err, rpctypes.ErrGRPCLeaseNotFound)
		}
	}
	change, err := s.store.Commit(ctx, w)
	if errors.Is(err, sqlstore.ErrQuota) {
		return 0, errors.Join(err, s.raiseAlarm(ctx))
	}
	if lease != 0 && err == nil {
		if err := s.lessor.checkAttached(ctx, change.New, lease); err != nil { // the key is written, or deleted again
			return 0, fmt.Errorf("%w: %s", sqlstore.ErrUnknown, err.Error())
		}
	}
	return change.Revision, err
}

// DeleteRange implements pb.KVServer.
func (s *kvService) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if len(r.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	for {
		old, revision, err := s.matched(ctx, spanOf(r.Key, r.RangeEnd))
		switch {
		case err != nil:
			return nil, err
		case len(old) > 1:
			return nil, errSeveralKeys
		case len(old) == 1:
			if revision, err = s.commit(ctx, deleteWrite(ctx, old[0])); isConflict(err) {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		return s.deleteResponse(r, old, revision)
	}
}

// matched returns the keys of a span, two at most.
func (s *Server) matched(ctx context.Context, sp span) ([]*watch.Entry, int64, error) {
	if sp.isOne {
		e, revision, err := s.get(ctx, RecordOf(sp.start), true)
		return entriesOf(e), revision, err
	}
	l, err := s.list(ctx, sp, 0)
	if err != nil {
		return nil, 0, err
	}
	var found []*watch.Entry
	for e, err := range l.all(ctx, nil, false) {
		if err != nil {
			return nil, 0, err
		}
		if found = append(found, e); len(found) == 2 {
			break
		}
	}
	return found, l.current, nil
}

// errSeveralKeys refuses what would need one revision for several keys.
var errSeveralKeys = errUnsupported("to write more than one key in one request")

func deleteWrite(ctx context.Context, old *watch.Entry) sqlstore.Write {
	return sqlstore.Write{Op: sqlstore.Delete, Key: old.Key, Replaces: old.Revision, Author: author(ctx, "delete")}
}

func (s *Server) deleteResponse(
	r *pb.DeleteRangeRequest, old []*watch.Entry, revision int64,
) (*pb.DeleteRangeResponse, error) {
	response := &pb.DeleteRangeResponse{Header: s.header(revision), Deleted: int64(len(old))}
	if !r.PrevKv {
		return response, nil
	}
	for _, e := range old {
		kv, err := keyValue(e, false)
		if err != nil {
			return nil, err
		}
		response.PrevKvs = append(response.PrevKvs, kv)
	}
	return response, nil
}

// neverCompacted is the compacted revision of a store that no client has compacted.
const neverCompacted = -1

// readCompacted returns the revision that a client has compacted last.
func (s *Server) readCompacted(ctx context.Context) (revision int64, err error) {
	text, err := s.note(ctx, compactedNote)
	if err != nil {
		return 0, err
	}
	revision = neverCompacted
	if text != "" {
		if revision, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, err
		}
	}
	s.compacted.Store(revision)
	return revision, nil
}

// Compact implements pb.KVServer. It deletes nothing: what is deleted is decided by the store's retention.
func (s *kvService) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	for {
		current, err := s.feed.Latest(ctx)
		if err != nil {
			return nil, err
		}
		compacted, err := s.readCompacted(ctx)
		switch {
		case err != nil:
			return nil, err
		case r.Revision <= compacted:
			return nil, rpctypes.ErrGRPCCompacted
		case r.Revision > current:
			return nil, rpctypes.ErrGRPCFutureRev
		}
		old := ""
		if compacted != neverCompacted {
			old = strconv.FormatInt(compacted, 10)
		}
		done, err := s.store.SetNote(ctx, compactedNote, old, strconv.FormatInt(r.Revision, 10))
		if err != nil {
			return nil, err
		}
		if done {
			s.compacted.Store(r.Revision)
			return &pb.CompactionResponse{Header: s.header(current)}, nil
		}
	}
}

// previous returns the state that a watch event replaced, as prev_kv; nil if etcd would have forgotten it, because the
// revision before that of the event is compacted.
func previous(e *watch.Entry, revision, compacted int64) (*mvccpb.KeyValue, error) {
	if e == nil || revision-1 < compacted {
		return nil, nil
	}
	return keyValue(e, false)
}
