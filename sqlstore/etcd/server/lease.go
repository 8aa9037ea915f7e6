package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"byre/sqlstore"
)

type leaseService struct {
	pb.UnsafeLeaseServer
	*Server
}

const (
	// minTTL and maxTTL bound what a lease is granted, in seconds, as etcd's defaults do.
	minTTL = 2
	maxTTL = 9_000_000_000
	// revokePage is how many keys of a lease are read at a time.
	revokePage = 1000
)

// leaseNotes is the prefix of the notes of leases. The rest of the name is the ID.
const leaseNotes = "etcd/leases/"

func leaseNote(id int64) string { return leaseNotes + strconv.FormatUint(uint64(id), 16) }

// leaseValue is the value of a lease's note. Where other servers use the database, each keep-alive writes it.
type leaseValue struct {
	TTL int64 `json:"ttl"`
	// Renewals makes each renewal another value.
	Renewals int64 `json:"renewals,omitempty"`
	// Ends is true while the keys are being deleted: no key can get the lease any more.
	Ends bool `json:"ends,omitempty"`
}

// lease is one lease as a lessor knows it. It is immutable.
type lease struct {
	leaseValue
	id      int64
	expires time.Time
}

// note returns the value of the lease's note; that of nil is none.
func (l *lease) note() string {
	if l == nil {
		return ""
	}
	text, _ := json.Marshal(l.leaseValue) // numbers and a bool: never an error
	return string(text)
}

func newLease(id int64, value leaseValue) *lease {
	// A time.Duration has 292 years.
	ttl := time.Duration(min(value.TTL, 1<<33)) * time.Second
	return &lease{leaseValue: value, id: id, expires: time.Now().Add(ttl)}
}

// lessor counts the time of all leases. A lease has its full TTL from when the lessor first sees it, so that after a
// stop each holder has the time to come back.
//
// Invariant: no key stays that has a lease that does not live. Whoever puts one looks for the lease after the commit
// again, and a revocation marks the lease before it looks for keys: one of both finds the key.
type lessor struct {
	*Server
	mu     sync.Mutex
	leases map[int64]*lease
}

func newLessor(s *Server) *lessor { return &lessor{Server: s, leases: map[int64]*lease{}} }

// start reads the leases, and deletes the keys whose lease a crash has left without an end.
func (l *lessor) start(ctx context.Context) error {
	if err := l.read(ctx); err != nil {
		return err
	}
	for after := firstMark.Add(-time.Microsecond); ; {
		marked, err := l.store.Expired(ctx, after, lastMark, revokePage)
		if err != nil {
			return err
		}
		for _, r := range marked {
			after = r.Expires
			_, id := parseIdentity(r.UID)
			if l.known(id) != nil {
				continue
			}
			if held, err := l.find(ctx, id); err != nil || held != nil { // granted since the notes were read
				if err != nil {
					return err
				}
				continue
			}
			l.logger.Info("etcd: deleting a key whose lease does not exist", "key", string(keyOf(r.Key)))
			if _, err := l.deleteKey(ctx, r); err != nil {
				return err
			}
		}
		if len(marked) < revokePage {
			return nil
		}
	}
}

// read reads the notes of all leases. The time of one that has not changed goes on.
func (l *lessor) read(ctx context.Context) error {
	notes, err := l.store.Notes(ctx, leaseNotes)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.leases
	l.leases = make(map[int64]*lease, len(notes))
	for name, text := range notes {
		id, err := strconv.ParseUint(strings.TrimPrefix(name, leaseNotes), 16, 64)
		var value leaseValue
		if err = cmp.Or(err, json.Unmarshal([]byte(text), &value)); err != nil {
			return fmt.Errorf("note %s: %w", name, err)
		}
		l.leases[int64(id)] = newer(before[int64(id)], newLease(int64(id), value))
	}
	return nil
}

// newer returns what is known of a lease whose note says now: the time goes on if the note is as before.
func newer(known, now *lease) *lease {
	if known != nil && known.leaseValue == now.leaseValue {
		return known
	}
	return now
}

// set changes a lease in the notes and in memory; a nil one is none. It returns false if the note is not as old any
// more.
func (l *lessor) set(ctx context.Context, id int64, old, now *lease) (bool, error) {
	done, err := l.store.SetNote(ctx, leaseNote(id), old.note(), now.note())
	if done {
		l.remember(id, now)
	}
	return done, err
}

func (l *lessor) remember(id int64, now *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now == nil {
		delete(l.leases, id)
		return
	}
	l.leases[id] = now
}

// known returns a lease as it is in memory; nil if there is none.
func (l *lessor) known(id int64) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leases[id]
}

// find returns a lease that lives; nil if there is none. It is linearizable.
func (l *lessor) find(ctx context.Context, id int64) (*lease, error) {
	found := l.known(id)
	if l.isShared {
		text, err := l.note(ctx, leaseNote(id))
		if err != nil {
			return nil, err
		}
		if text == "" {
			return nil, nil
		}
		var value leaseValue
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			return nil, err
		}
		found = newer(found, newLease(id, value))
		l.remember(id, found)
	}
	if found == nil || found.Ends {
		return nil, nil
	}
	return found, nil
}

// checkAttached deletes a key that was just put if its lease has ended meanwhile.
func (l *lessor) checkAttached(ctx context.Context, put sqlstore.Record, id int64) error {
	if held, err := l.find(ctx, id); err != nil || held != nil {
		return err
	}
	_, err := l.deleteKey(ctx, put)
	return err
}

// deleteKey deletes a key, unless it has changed, and returns the revision of the delete.
func (l *lessor) deleteKey(ctx context.Context, r sqlstore.Record) (int64, error) {
	change, err := l.store.Commit(ctx, sqlstore.Write{
		Op: sqlstore.Delete, Key: r.Key, Replaces: r.Revision, Author: sqlstore.Author{User: ownUser, Verb: "expire"},
	})
	if isConflict(err) {
		return 0, nil
	}
	return change.Revision, err
}

// renew gives a lease its full TTL again, and returns that; 0 if the lease does not live. If other servers use the
// database, they learn it from the note.
func (l *lessor) renew(ctx context.Context, id int64) (ttl int64, err error) {
	for {
		held, err := l.find(ctx, id)
		if err != nil || held == nil {
			return 0, err
		}
		value := held.leaseValue
		if !l.isShared {
			l.remember(id, newLease(id, value))
			return value.TTL, nil
		}
		value.Renewals++
		if done, err := l.set(ctx, id, held, newLease(id, value)); done || err != nil {
			return value.TTL, err
		}
	}
}

// expire revokes the leases that are over, and goes on with revocations that another server, or an earlier start, has
// begun.
func (l *lessor) expire(ctx context.Context) error {
	now := time.Now()
	var due []*lease
	l.mu.Lock()
	for _, held := range l.leases {
		if !now.Before(held.expires) || held.Ends {
			due = append(due, held)
		}
	}
	l.mu.Unlock()
	for _, held := range due {
		if _, err := l.revoke(ctx, held); err != nil {
			return err
		}
	}
	return nil
}

// revoke deletes the keys of a lease, in their order, and the lease. It does nothing if the lease was renewed since
// held was read. revision is that of the last delete of a key, or else 0.
func (l *lessor) revoke(ctx context.Context, held *lease) (revision int64, err error) {
	if !held.Ends {
		if l.known(held.id) != held {
			return 0, nil
		}
		value := held.leaseValue
		value.Ends = true
		ends := newLease(held.id, value)
		if done, err := l.set(ctx, held.id, held, ends); !done || err != nil {
			return 0, err
		}
		held = ends
	}
	for {
		keys, err := l.keys(ctx, held.id, revokePage)
		if err != nil {
			return 0, err
		}
		for _, key := range keys {
			deleted, err := l.deleteKey(ctx, key)
			if err != nil {
				return 0, err
			}
			revision = max(revision, deleted)
		}
		if len(keys) == 0 {
			break
		}
	}
	_, err = l.set(ctx, held.id, held, nil) // another server may have done it
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
	if err := s.checkSpace(); err != nil {
		return nil, err
	}
	id, ttl := r.ID, max(r.TTL, minTTL)
	for {
		if r.ID == 0 {
			id = rand.Int64N(1<<63-1) + 1
		}
		done, err := s.lessor.set(ctx, id, nil, newLease(id, leaseValue{TTL: ttl}))
		switch {
		case err != nil:
			return nil, err
		case done:
			return &pb.LeaseGrantResponse{Header: s.header(s.feed.Revision()), ID: id, TTL: ttl}, nil
		case r.ID != 0:
			return nil, rpctypes.ErrGRPCLeaseExist
		}
	}
}

// LeaseRevoke implements pb.LeaseServer. Each key that it deletes has a revision of its own.
func (s *leaseService) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	isFound := false
	for {
		held, err := s.lessor.find(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		if held == nil && !isFound {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		revision := int64(0)
		if held != nil {
			isFound = true
			if revision, err = s.lessor.revoke(ctx, held); err != nil {
				return nil, err
			}
			if revision == 0 {
				continue // it had no keys, or was renewed meanwhile
			}
		}
		return &pb.LeaseRevokeResponse{Header: s.header(cmp.Or(revision, s.feed.Revision()))}, nil
	}
}

// LeaseKeepAlive implements pb.LeaseServer. It answers the TTL 0 for a lease that does not exist: an error would end
// all of the client's leases.
func (s *leaseService) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		ttl, err := s.lessor.renew(stream.Context(), r.ID)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.LeaseKeepAliveResponse{
			Header: s.header(s.feed.Revision()), ID: r.ID, TTL: ttl,
		}); err != nil {
			return err
		}
	}
}

// maxKeysOfLease bounds an answer of LeaseTimeToLive.
const maxKeysOfLease = 100_000

// LeaseTimeToLive implements pb.LeaseServer.
func (s *leaseService) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	held, err := s.lessor.find(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	response := &pb.LeaseTimeToLiveResponse{Header: s.header(s.feed.Revision()), ID: r.ID, TTL: -1}
	if held == nil {
		return response, nil
	}
	response.GrantedTTL, response.TTL = held.TTL, int64(max(time.Until(held.expires), 0)/time.Second)
	if r.Keys {
		keys, err := s.lessor.keys(ctx, r.ID, maxKeysOfLease)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			response.Keys = append(response.Keys, keyOf(key.Key))
		}
	}
	return response, nil
}

// LeaseLeases implements pb.LeaseServer. The lease that ends soonest is the first.
func (s *leaseService) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if s.isShared {
		if err := s.lessor.read(ctx); err != nil {
			return nil, err
		}
	}
	s.lessor.mu.Lock()
	all := slices.Collect(maps.Values(s.lessor.leases))
	s.lessor.mu.Unlock()
	slices.SortFunc(all, func(a, b *lease) int { return a.expires.Compare(b.expires) })
	response := &pb.LeaseLeasesResponse{Header: s.header(s.feed.Revision())}
	for _, held := range all {
		if !held.Ends {
			response.Leases = append(response.Leases, &pb.LeaseStatus{ID: held.id})
		}
	}
	return response, nil
}
