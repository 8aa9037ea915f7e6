package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"byre/sqlstore"
	"byre/watch"
)

type leaseService struct {
	pb.UnsafeLeaseServer
	*Server
}

const (
	// minTTL and maxTTL bound what a lease is granted, in seconds, as etcd's defaults do.
	minTTL = 2
	maxTTL = 9_000_000_000
	// expireInterval is the time between two searches for leases that are over.
	expireInterval = 500 * time.Millisecond
	// revokePage is how many keys of a lease are read at a time.
	revokePage = 1000
)

// The UIDs of leases' records: a put with a lease requires that it lives.
const (
	leaseLives = "lives"
	// leaseEnds is that of one whose keys are being deleted.
	leaseEnds = "ends"
)

// leaseRecord is a lease. Where other servers use the database, each keep-alive writes it.
type leaseRecord struct {
	TTL int64 `json:"ttl"`
	// Renewals makes each renewal a change.
	Renewals int64 `json:"renewals,omitempty"`
}

func leaseKey(id int64) sqlstore.Key {
	return sqlstore.Key{
		Group: leaseRecords.Group, Resource: leaseRecords.Resource, Name: strconv.FormatUint(uint64(id), 16),
	}
}

// lessor counts the time of all leases. A lease has its full TTL from when the lessor first sees it, so that after a
// stop each holder has the time to come back.
type lessor struct {
	*Server
	mu     sync.Mutex
	leases map[int64]*lease
}

// lease is one lease as a lessor knows it. lessor.mu guards it.
type lease struct {
	ttl     time.Duration
	expires time.Time
	// record is the last state of the record.
	record *watch.Entry
}

func newLessor(s *Server) *lessor { return &lessor{Server: s, leases: map[int64]*lease{}} }

// follow follows the records of leases until ctx ends.
func (l *lessor) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if err := l.followOnce(ctx); err != nil && ctx.Err() == nil {
			l.logger.Warn("etcd: leases can't be followed, trying again", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (l *lessor) followOnce(ctx context.Context) error {
	subscription, err := l.feed.Subscribe(ctx, watch.Interest{Resource: leaseRecords}, l.feed.Revision())
	if err != nil {
		return err
	}
	defer subscription.Close()
	snapshot, err := l.feed.Snapshot(ctx, leaseRecords)
	if err != nil {
		return err
	}
	subscription.SkipTo(snapshot.Revision())
	l.begin(snapshot)
	for {
		events, _, err := subscription.Next(ctx)
		if errors.Is(err, watch.ErrCompacted) {
			return nil // begin again
		}
		if err != nil {
			return err
		}
		for _, ev := range events {
			l.apply(ev.Key(), ev.New)
		}
	}
}

// begin takes over a snapshot of all leases. Those that have not changed go on.
func (l *lessor) begin(snapshot watch.Snapshot) {
	l.mu.Lock()
	before := l.leases
	l.leases = map[int64]*lease{}
	l.mu.Unlock()
	for e := range snapshot.All("", nil) {
		l.apply(e.Key, e)
		l.mu.Lock()
		if id := leaseID(e.Key); before[id] != nil && before[id].record.Revision == e.Revision {
			l.leases[id] = before[id]
		}
		l.mu.Unlock()
	}
}

func leaseID(k sqlstore.Key) int64 {
	id, _ := strconv.ParseUint(k.Name, 16, 64)
	return int64(id)
}

// apply applies a change of a lease's record; e is nil if it was deleted.
func (l *lessor) apply(key sqlstore.Key, e *watch.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := leaseID(key)
	if e == nil {
		delete(l.leases, id)
		return
	}
	var record leaseRecord
	if err := json.Unmarshal(e.Value(), &record); err != nil {
		l.logger.Error("etcd: the record of a lease can't be read", "lease", id, "err", err)
		return
	}
	// A time.Duration has 292 years.
	ttl := time.Duration(min(record.TTL, 1<<33)) * time.Second
	l.leases[id] = &lease{ttl: ttl, expires: time.Now().Add(ttl), record: e}
}

// find returns a lease that lives, with the time that it has left; nil if there is none.
func (l *lessor) find(ctx context.Context, id int64) (*watch.Entry, leaseRecord, time.Duration, error) {
	var record leaseRecord
	e, err := l.ownRecord(ctx, leaseKey(id), true)
	if err != nil || e == nil || e.UID != leaseLives {
		return nil, record, 0, err
	}
	if err := json.Unmarshal(e.Value(), &record); err != nil {
		return nil, record, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := time.Duration(min(record.TTL, 1<<33)) * time.Second
	if known := l.leases[id]; known != nil && known.record.Revision == e.Revision {
		left = max(time.Until(known.expires), 0)
	}
	return e, record, left, nil
}

// renew gives a lease its full TTL again. If other servers use the database, they learn it from the record.
func (l *lessor) renew(ctx context.Context, id int64) (ttl int64, err error) {
	for {
		e, record, _, err := l.find(ctx, id)
		if err != nil || e == nil {
			return 0, err
		}
		if l.isShared {
			record.Renewals++
			if _, err := l.writeOwn(ctx, e.Key, e, record, leaseLives); isConflict(err) {
				continue
			} else if err != nil {
				return 0, err
			}
		}
		l.mu.Lock()
		if known := l.leases[id]; known != nil {
			known.expires = time.Now().Add(known.ttl)
		}
		l.mu.Unlock()
		return record.TTL, nil
	}
}

// expire revokes leases that are over, until ctx ends, and goes on with revocations that another server, or an
// earlier start, has begun.
func (l *lessor) expire(ctx context.Context) {
	ticker := time.NewTicker(expireInterval)
	defer ticker.Stop()
	isFailing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var err error
		for _, e := range l.due(time.Now()) {
			if _, err = l.revoke(ctx, e); err != nil {
				break
			}
		}
		if err != nil && ctx.Err() == nil && !isFailing {
			l.logger.Warn("etcd: a lease that is over can't be revoked, trying again", "err", err)
		}
		isFailing = err != nil
	}
}

func (l *lessor) due(now time.Time) (due []*watch.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range l.leases {
		if !now.Before(lease.expires) || lease.record.UID == leaseEnds {
			due = append(due, lease.record)
		}
	}
	return due
}

// revoke deletes the keys of a lease, in their order, and the lease. It does nothing if the lease is not in the state
// of the record any more, because it was renewed. revision is that of the last delete of a key, or else 0.
func (l *lessor) revoke(ctx context.Context, e *watch.Entry) (revision int64, err error) {
	id := leaseID(e.Key)
	if e.UID != leaseEnds {
		var record leaseRecord
		if err := json.Unmarshal(e.Value(), &record); err != nil {
			return 0, err
		}
		// From here on no key can be put with the lease.
		change, err := l.writeOwn(ctx, e.Key, e, record, leaseEnds)
		if err != nil {
			if isConflict(err) {
				err = nil
			}
			return 0, err
		}
		e = watch.NewEntry(change.New)
	}
	for {
		keys, err := l.keys(ctx, id, revokePage)
		if err != nil {
			return 0, err
		}
		for _, key := range keys {
			change, err := l.store.Commit(ctx, sqlstore.Write{
				Op: sqlstore.Delete, Key: key.Key, Replaces: key.Revision,
				Author: sqlstore.Author{User: ownUser, Verb: "expire"},
			})
			if err != nil && !isConflict(err) {
				return 0, err
			}
			revision = max(revision, change.Revision)
		}
		if len(keys) == 0 {
			break
		}
	}
	if _, err = l.deleteOwn(ctx, e); isConflict(err) {
		err = nil // another server has done the same
	}
	return revision, err
}

// keys returns records of the keys of a lease, without their values, in the order of the keys.
func (l *lessor) keys(ctx context.Context, id int64, limit int) ([]sqlstore.Record, error) {
	mark := leaseMark(id)
	marked, err := l.store.Expired(ctx, mark.Add(-time.Microsecond), mark, limit)
	if err != nil {
		return nil, err
	}
	marked = slices.DeleteFunc(marked, func(r sqlstore.Record) bool {
		_, lease := parseIdentity(r.UID)
		return lease != id
	})
	slices.SortFunc(marked, func(a, b sqlstore.Record) int { return bytes.Compare(keyOf(a.Key), keyOf(b.Key)) })
	return marked, nil
}

// LeaseGrant implements pb.LeaseServer.
func (s *leaseService) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if r.TTL > maxTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	if err := s.checkSpace(ctx); err != nil {
		return nil, s.answer(err)
	}
	id, ttl := r.ID, max(r.TTL, minTTL)
	for {
		if r.ID == 0 {
			id = rand.Int64N(1<<63-1) + 1
		}
		change, err := s.writeOwn(ctx, leaseKey(id), nil, leaseRecord{TTL: ttl}, leaseLives)
		switch {
		case err == nil:
			return &pb.LeaseGrantResponse{Header: s.header(change.Revision), ID: id, TTL: ttl}, nil
		case !errors.Is(err, sqlstore.ErrExists):
			return nil, s.answer(err)
		case r.ID != 0:
			return nil, rpctypes.ErrGRPCLeaseExist
		}
	}
}

// LeaseRevoke implements pb.LeaseServer. Each key that it deletes has a revision of its own.
func (s *leaseService) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	for {
		e, _, _, err := s.lessor.find(ctx, r.ID)
		if err != nil {
			return nil, s.answer(err)
		}
		if e == nil {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		revision, err := s.lessor.revoke(ctx, e)
		if err != nil {
			return nil, s.answer(err)
		}
		if left, _, _, err := s.lessor.find(ctx, r.ID); err == nil && left != nil {
			continue // it was renewed meanwhile
		}
		return &pb.LeaseRevokeResponse{Header: s.header(cmp.Or(revision, s.feed.Revision()))}, nil
	}
}

// LeaseKeepAlive implements pb.LeaseServer. It answers the TTL 0 for a lease that does not exist: an error would end
// all of the client's leases.
func (s *leaseService) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	ctx := stream.Context()
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		ttl, err := s.lessor.renew(ctx, r.ID)
		if err != nil {
			return s.answer(err)
		}
		if err := stream.Send(&pb.LeaseKeepAliveResponse{
			Header: s.header(s.feed.Revision()), ID: r.ID, TTL: ttl,
		}); err != nil {
			return err
		}
	}
}

// LeaseTimeToLive implements pb.LeaseServer.
func (s *leaseService) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	e, record, left, err := s.lessor.find(ctx, r.ID)
	if err != nil {
		return nil, s.answer(err)
	}
	response := &pb.LeaseTimeToLiveResponse{Header: s.header(s.feed.Revision()), ID: r.ID, TTL: -1}
	if e == nil {
		return response, nil
	}
	response.TTL, response.GrantedTTL = int64(left/time.Second), record.TTL
	if r.Keys {
		keys, err := s.lessor.keys(ctx, r.ID, maxKeysOfLease)
		if err != nil {
			return nil, s.answer(err)
		}
		for _, key := range keys {
			response.Keys = append(response.Keys, keyOf(key.Key))
		}
	}
	return response, nil
}

// maxKeysOfLease bounds an answer of LeaseTimeToLive.
const maxKeysOfLease = 100_000

// LeaseLeases implements pb.LeaseServer. The lease that ends soonest is the first.
func (s *leaseService) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if _, err := s.feed.Latest(ctx); err != nil {
		return nil, s.answer(err)
	}
	snapshot, err := s.feed.Snapshot(ctx, leaseRecords)
	if err != nil {
		return nil, s.answer(err)
	}
	type listed struct {
		id   int64
		left time.Duration
	}
	var all []listed
	for e := range snapshot.All("", nil) {
		found, _, left, err := s.lessor.find(ctx, leaseID(e.Key))
		if err != nil {
			return nil, s.answer(err)
		}
		if found != nil {
			all = append(all, listed{leaseID(e.Key), left})
		}
	}
	slices.SortFunc(all, func(a, b listed) int { return cmp.Compare(a.left, b.left) })
	response := &pb.LeaseLeasesResponse{Header: s.header(snapshot.Revision())}
	for _, l := range all {
		response.Leases = append(response.Leases, &pb.LeaseStatus{ID: l.id})
	}
	return response, nil
}
