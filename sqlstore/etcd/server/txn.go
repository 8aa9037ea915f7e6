package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"byre/sqlstore"
	"byre/watch"
)

// checkTxn checks a transaction, both branches, before anything is read. A level takes as many operations off the
// bound of the levels in it as its longest list has.
func checkTxn(r *pb.TxnRequest, bound int) error {
	n := max(len(r.Compare), len(r.Success), len(r.Failure))
	if n > bound {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range branch {
			if err := checkOp(op, bound-n); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, bound int) error {
	switch op := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(op.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(op.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		if len(op.RequestDeleteRange.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
		return nil
	case *pb.RequestOp_RequestTxn:
		return checkTxn(op.RequestTxn, bound)
	}
	return rpctypes.ErrGRPCKeyNotFound
}

// written is what the operations of a branch may write.
type written struct {
	puts    map[string]bool
	deletes []span
}

// checkDuplicates fails if a branch may put a key twice, or put and delete it. Only one of Then and Else of a nested
// transaction runs.
func checkDuplicates(branch []*pb.RequestOp) (written, error) {
	all := written{puts: map[string]bool{}}
	for _, op := range branch {
		if d := op.GetRequestDeleteRange(); d != nil {
			all.deletes = append(all.deletes, spanOf(d.Key, d.RangeEnd))
		}
	}
	var nested []span
	for _, op := range branch {
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			if !all.put(string(op.RequestPut.Key)) {
				return all, rpctypes.ErrGRPCDuplicateKey
			}
		case *pb.RequestOp_RequestTxn:
			either := map[string]bool{}
			for _, branch := range [][]*pb.RequestOp{op.RequestTxn.Success, op.RequestTxn.Failure} {
				inner, err := checkDuplicates(branch)
				if err != nil {
					return all, err
				}
				for key := range inner.puts {
					either[key] = true
				}
				nested = append(nested, inner.deletes...)
			}
			for key := range either {
				if !all.put(key) {
					return all, rpctypes.ErrGRPCDuplicateKey
				}
			}
		}
	}
	for _, op := range branch {
		if p := op.GetRequestPut(); p != nil && containsKey(nested, string(p.Key)) {
			return all, rpctypes.ErrGRPCDuplicateKey
		}
	}
	all.deletes = append(all.deletes, nested...)
	return all, nil
}

// put adds a put; it returns false if the key is put or deleted already.
func (w *written) put(key string) bool {
	if w.puts[key] || containsKey(w.deletes, key) {
		return false
	}
	w.puts[key] = true
	return true
}

func containsKey(spans []span, key string) bool {
	for _, sp := range spans {
		if sp.contains(key) {
			return true
		}
	}
	return false
}

// Txn implements pb.KVServer. A transaction that writes nothing reads one snapshot. One that writes a key, of which all
// comparisons are, is evaluated on that key's record and written with its revision as the precondition; where it has
// changed meanwhile, again.
func (s *kvService) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r, maxTxnOps); err != nil {
		return nil, err
	}
	for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
		if _, err := checkDuplicates(branch); err != nil {
			return nil, err
		}
	}
	if err := checkSize(&pb.InternalRaftRequest{Txn: r}); err != nil {
		return nil, err
	}
	if hasPut(r.Success) || hasPut(r.Failure) {
		if err := s.checkSpace(); err != nil {
			return nil, err
		}
	}
	for isFresh := false; ; isFresh = true {
		t := &txn{server: s.Server, isFresh: isFresh, request: r}
		response, err := t.run(ctx)
		if errors.Is(err, errStale) || isConflict(err) {
			continue
		}
		return response, err
	}
}

func hasPut(branch []*pb.RequestOp) bool {
	for _, op := range branch {
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			return true
		case *pb.RequestOp_RequestTxn:
			if hasPut(op.RequestTxn.Success) || hasPut(op.RequestTxn.Failure) {
				return true
			}
		}
	}
	return false
}

// errStale means that a transaction must be run on a state that is not older than its request.
var errStale = errors.New("the state may be stale")

// txn is one attempt to run a transaction.
type txn struct {
	server  *Server
	request *pb.TxnRequest
	// isFresh says that the state is linearizable. Otherwise only a write proves that it was: its precondition holds.
	isFresh bool
	state   txnState
	// path has the result of the comparisons of each transaction in the order in which they are met.
	path []bool
	// write is the one write, and by the operation that asks for it; nil if nothing is written.
	write *sqlstore.Write
	by    *pb.RequestOp
}

func (t *txn) run(ctx context.Context) (*pb.TxnResponse, error) {
	var err error
	if t.state, err = t.read(ctx); err != nil {
		return nil, err
	}
	ops, err := t.choose(ctx, t.request)
	if err != nil {
		return nil, err
	}
	if err := t.plan(ctx, ops); err != nil {
		return nil, err
	}
	before, after := t.state.revision, t.state.revision
	if t.write != nil {
		if err := t.checkIndependent(); err != nil {
			return nil, err
		}
		if after, err = t.server.commit(ctx, *t.write); err != nil {
			return nil, err
		}
		before = after - 1
	} else if !t.isFresh {
		return nil, errStale
	}
	response, _, err := t.respond(ctx, t.request, t.path, &execution{before: before, after: after})
	if err != nil {
		return nil, err
	}
	response.Header = t.server.header(after)
	return response, nil
}

// txnState is what a transaction is evaluated on: the record of one key, or the keys of several spans at one revision.
type txnState struct {
	revision int64
	key      sqlstore.Key
	record   *watch.Entry
	listing  *listing // nil if the transaction names one key only
}

// read reads what the transaction names.
func (t *txn) read(ctx context.Context) (txnState, error) {
	spans := spansOf(t.request, nil)
	isOne := true
	for _, sp := range spans {
		isOne = isOne && sp == spans[0] && sp.isOne
	}
	switch {
	case len(spans) == 0:
		current, err := t.server.feed.Latest(ctx)
		t.isFresh = true
		return txnState{revision: current}, err
	case isOne:
		key := RecordOf(spans[0].start)
		e, revision, err := t.server.get(ctx, key, t.isFresh)
		return txnState{revision: revision, key: key, record: e}, err
	}
	t.isFresh = true
	all := span{start: spans[0].start, end: spans[0].end}
	for _, sp := range spans {
		all.start, all.end = min(all.start, sp.start), max(all.end, sp.end)
		all.isOpen = all.isOpen || sp.isOpen
	}
	l, err := t.server.list(ctx, all, 0)
	if err != nil {
		return txnState{}, err
	}
	return txnState{revision: l.current, listing: l}, nil
}

// spansOf appends the spans that a transaction names.
func spansOf(r *pb.TxnRequest, spans []span) []span {
	for _, c := range r.Compare {
		spans = append(spans, spanOf(c.Key, c.RangeEnd))
	}
	for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range branch {
			switch op := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				if op.RequestRange.Revision <= 0 {
					spans = append(spans, spanOf(op.RequestRange.Key, op.RequestRange.RangeEnd))
				}
			case *pb.RequestOp_RequestPut:
				spans = append(spans, spanOf(op.RequestPut.Key, nil))
			case *pb.RequestOp_RequestDeleteRange:
				spans = append(spans, spanOf(op.RequestDeleteRange.Key, op.RequestDeleteRange.RangeEnd))
			case *pb.RequestOp_RequestTxn:
				spans = spansOf(op.RequestTxn, spans)
			}
		}
	}
	return spans
}

// find returns the keys of a span.
func (t *txn) find(ctx context.Context, sp span) (found []*watch.Entry, err error) {
	if t.state.listing == nil {
		return entriesOf(t.state.record), nil
	}
	l := *t.state.listing
	for i := range l.parts {
		if !sp.overlaps(l.parts[i].of) {
			continue
		}
		part := listing{server: l.server, span: sp, revision: l.revision, parts: l.parts[i : i+1]}
		if r, ok := sp.resource(); ok && r != l.parts[i].of {
			continue
		}
		for e, err := range part.all(ctx, nil, false) {
			if err != nil {
				return nil, err
			}
			found = append(found, e)
		}
	}
	return found, nil
}

// choose evaluates the comparisons of a transaction and of those nested in what runs, all on the state before any
// write, and returns the operations that run, without the nested transactions.
func (t *txn) choose(ctx context.Context, r *pb.TxnRequest) (ops []*pb.RequestOp, err error) {
	holds := true
	for _, c := range r.Compare {
		if holds, err = t.compare(ctx, c); err != nil {
			return nil, err
		} else if !holds {
			break
		}
	}
	t.path = append(t.path, holds)
	for _, op := range branchOf(r, holds) {
		if nested := op.GetRequestTxn(); nested != nil {
			inner, err := t.choose(ctx, nested)
			if err != nil {
				return nil, err
			}
			ops = append(ops, inner...)
			continue
		}
		ops = append(ops, op)
	}
	return ops, nil
}

func branchOf(r *pb.TxnRequest, holds bool) []*pb.RequestOp {
	if holds {
		return r.Success
	}
	return r.Failure
}

// compare evaluates a comparison: of each key of its range, or else of a key that does not exist, whose value is
// neither equal nor unequal to any other.
func (t *txn) compare(ctx context.Context, c *pb.Compare) (bool, error) {
	found, err := t.find(ctx, spanOf(c.Key, c.RangeEnd))
	if err != nil {
		return false, err
	}
	if len(found) == 0 {
		return c.Target != pb.Compare_VALUE && compareRecord(c, &watch.Entry{}, nil), nil
	}
	for _, e := range found {
		var value []byte
		if c.Target == pb.Compare_VALUE {
			if value, err = ValueOf(e.Encoding, e.Value()); err != nil {
				return false, err
			}
		}
		if !compareRecord(c, e, value) {
			return false, nil
		}
	}
	return true, nil
}

func compareRecord(c *pb.Compare, e *watch.Entry, value []byte) bool {
	recordVersion, lease := parseIdentity(e.UID)
	result := 0
	switch c.Target {
	case pb.Compare_VALUE:
		result = bytes.Compare(value, c.GetValue())
	case pb.Compare_CREATE:
		result = cmp.Compare(e.Created, c.GetCreateRevision())
	case pb.Compare_MOD:
		result = cmp.Compare(e.Revision, c.GetModRevision())
	case pb.Compare_VERSION:
		result = cmp.Compare(recordVersion, c.GetVersion())
	case pb.Compare_LEASE:
		result = cmp.Compare(lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return result == 0
	case pb.Compare_NOT_EQUAL:
		return result != 0
	case pb.Compare_GREATER:
		return result > 0
	case pb.Compare_LESS:
		return result < 0
	}
	return true
}

// plan checks the operations that run, and makes the one write.
func (t *txn) plan(ctx context.Context, ops []*pb.RequestOp) error {
	for _, op := range ops {
		var w sqlstore.Write
		switch request := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			if err := t.server.checkRevision(ctx, request.RequestRange.Revision, t.state.revision); err != nil {
				if !t.isFresh {
					err = errStale
				}
				return err
			}
			continue
		case *pb.RequestOp_RequestPut:
			found, err := t.find(ctx, spanOf(request.RequestPut.Key, nil))
			if err != nil {
				return err
			}
			var old *watch.Entry
			if len(found) > 0 {
				old = found[0]
			}
			if w, err = putWrite(ctx, RecordOf(string(request.RequestPut.Key)), old, request.RequestPut); err != nil {
				if !t.isFresh {
					err = errStale
				}
				return err
			}
		case *pb.RequestOp_RequestDeleteRange:
			found, err := t.find(ctx, spanOf(request.RequestDeleteRange.Key, request.RequestDeleteRange.RangeEnd))
			switch {
			case err != nil:
				return err
			case len(found) == 0:
				continue
			case len(found) > 1:
				return errSeveralKeys
			}
			w = deleteWrite(ctx, found[0])
		}
		switch {
		case t.write == nil:
			t.write, t.by = &w, op
		case w.Key != t.write.Key || w.Op != sqlstore.Delete: // an overlapping delete finds nothing any more
			return errSeveralKeys
		}
	}
	return nil
}

// checkIndependent fails if what is written depends on other keys than the one that is: its precondition does not
// cover them.
func (t *txn) checkIndependent() error {
	for _, sp := range t.dependencies(t.request, nil) {
		if !sp.isOne || RecordOf(sp.start) != t.write.Key {
			return errUnsupported("a transaction that writes a key and compares, or deletes by, others")
		}
	}
	return nil
}

// dependencies appends the spans whose keys decide what a transaction writes.
func (t *txn) dependencies(r *pb.TxnRequest, spans []span) []span {
	for _, c := range r.Compare {
		spans = append(spans, spanOf(c.Key, c.RangeEnd))
	}
	for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range branch {
			if d := op.GetRequestDeleteRange(); d != nil && len(d.RangeEnd) > 0 {
				spans = append(spans, spanOf(d.Key, d.RangeEnd))
			}
			if nested := op.GetRequestTxn(); nested != nil {
				spans = t.dependencies(nested, spans)
			}
		}
	}
	return spans
}

// execution is where the answers of a transaction are: its reads before the write show the revision before, those
// after it the revision after.
type execution struct {
	before, after int64
	isWritten     bool
}

func (x *execution) revision() int64 {
	if x.isWritten {
		return x.after
	}
	return x.before
}

// respond returns the answer of a transaction whose write is done, and the rest of the path after it.
func (t *txn) respond(
	ctx context.Context, r *pb.TxnRequest, path []bool, x *execution,
) (*pb.TxnResponse, []bool, error) {
	response := &pb.TxnResponse{Succeeded: path[0], Header: &pb.ResponseHeader{}}
	branch := branchOf(r, path[0])
	path = path[1:]
	for _, op := range branch {
		answer := &pb.ResponseOp{}
		switch request := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			got, err := t.respondRange(ctx, request.RequestRange, x.revision())
			if err != nil {
				return nil, nil, err
			}
			answer.Response = &pb.ResponseOp_ResponseRange{ResponseRange: got}
		case *pb.RequestOp_RequestPut:
			found, err := t.find(ctx, spanOf(request.RequestPut.Key, nil))
			if err != nil {
				return nil, nil, err
			}
			put := &pb.PutResponse{}
			x.isWritten = true
			if len(found) > 0 {
				put, err = t.server.putResponse(request.RequestPut, found[0], x.after)
			}
			if err != nil {
				return nil, nil, err
			}
			put.Header = &pb.ResponseHeader{Revision: x.after}
			answer.Response = &pb.ResponseOp_ResponsePut{ResponsePut: put}
		case *pb.RequestOp_RequestDeleteRange:
			deleted := &pb.DeleteRangeResponse{}
			if op == t.by {
				found, err := t.find(ctx, spanOf(request.RequestDeleteRange.Key, request.RequestDeleteRange.RangeEnd))
				if err != nil {
					return nil, nil, err
				}
				if deleted, err = t.server.deleteResponse(request.RequestDeleteRange, found, 0); err != nil {
					return nil, nil, err
				}
				x.isWritten = true
			}
			deleted.Header = &pb.ResponseHeader{Revision: x.revision()}
			answer.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: deleted}
		case *pb.RequestOp_RequestTxn:
			nested, rest, err := t.respond(ctx, request.RequestTxn, path, x)
			if err != nil {
				return nil, nil, err
			}
			path = rest
			answer.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: nested}
		}
		response.Responses = append(response.Responses, answer)
	}
	return response, path, nil
}

// respondRange answers a range in a transaction at a revision of the transaction, which may be compacted by now.
func (t *txn) respondRange(
	ctx context.Context, r *pb.RangeRequest, revision int64,
) (response *pb.RangeResponse, err error) {
	sp := spanOf(r.Key, r.RangeEnd)
	switch {
	case r.Revision > 0:
		response, err = t.server.answerRange(ctx, r)
	case t.write == nil && t.state.listing == nil:
		found := entriesOf(t.state.record)
		response, err = t.server.assemble(r, found, int64(len(found)), revision)
	default:
		var l *listing
		if l, err = t.server.listAt(ctx, sp, revision, revision); err == nil {
			response, err = t.server.answerListing(ctx, l, r)
		}
	}
	if err != nil {
		return nil, err
	}
	response.Header = &pb.ResponseHeader{Revision: revision}
	return response, nil
}
