package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"byre/sqlstore"
	"byre/watch"
)

// version is that of the etcd whose API this is. Clients decide by it what they may ask.
const (
	version        = "3.7.3"
	storageVersion = "3.7.0"
)

// raftTerm is the same for ever: there is no Raft. Clients take 0 for no leader.
const raftTerm = 2

// Options of a Server.
type Options struct {
	Store *sqlstore.Store
	Feed  *watch.Feed
	// ClientURLs are those of MemberList.
	ClientURLs []string
	// Quota is sqlstore.Options.Quota, for Status.
	Quota int64
	// ProgressInterval is the time between two progress notifications of a watch that asks for them; 0 means 10 minutes.
	ProgressInterval time.Duration
	// Logger logs what no client gets; nil means slog.Default().
	Logger *slog.Logger
}

// Server answers the requests of etcd's clients.
type Server struct {
	options Options
	store   *sqlstore.Store
	feed    *watch.Feed
	logger  *slog.Logger
	// isShared says that other processes write to the database too.
	isShared bool
	cluster  clusterRecord
	lessor   *lessor
	// compacted and isAlarmed are what the notes were when they were last read, which is at least once a tick.
	compacted atomic.Int64
	isAlarmed atomic.Bool
	health    *health.Server
}

// clusterRecord names the cluster and its one member, which all servers of one database are.
type clusterRecord struct {
	ClusterID uint64 `json:"clusterID"`
	MemberID  uint64 `json:"memberID"`
}

// New makes a Server, which does nothing before Start.
func New(options Options) *Server {
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	options.ProgressInterval = cmp.Or(options.ProgressInterval, defaultProgressInterval)
	s := &Server{
		options: options, store: options.Store, feed: options.Feed, logger: options.Logger, health: health.NewServer(),
	}
	_, s.isShared = options.Store.Driver.(sqlstore.Shared)
	s.lessor = newLessor(s)
	return s
}

// Register registers the services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	pb.RegisterKVServer(r, &kvService{Server: s})
	pb.RegisterWatchServer(r, &watchService{Server: s})
	pb.RegisterLeaseServer(r, &leaseService{Server: s})
	pb.RegisterMaintenanceServer(r, &maintenanceService{Server: s})
	pb.RegisterClusterServer(r, &clusterService{Server: s})
	pb.RegisterAuthServer(r, &authService{Server: s})
	healthpb.RegisterHealthServer(r, s.health)
}

// Start reads the record of the cluster, or writes it in a new database, which then is at revision 1: clients read
// revision 0 as "current". It reads the notes. The store and the feed run.
func (s *Server) Start(ctx context.Context) error {
	for {
		record, _, err := s.store.Get(ctx, clusterKey)
		if err == nil {
			err = json.Unmarshal(record.Value, &s.cluster)
		}
		if err == nil || !errors.Is(err, sqlstore.ErrNotFound) {
			return errors.Join(err, s.readNotes(ctx), s.lessor.start(ctx))
		}
		// A range of positive numbers: some clients print them as signed.
		text, err := json.Marshal(clusterRecord{ClusterID: rand.Uint64()>>1 | 1, MemberID: rand.Uint64()>>1 | 1})
		if err != nil {
			return err
		}
		if _, err := s.store.Commit(ctx, sqlstore.Write{
			Op: sqlstore.Create, Key: clusterKey, Encoding: "byre/etcd/1", Value: text,
			Author: sqlstore.Author{User: ownUser, Verb: "create"},
		}); err != nil && !isConflict(err) {
			return err
		}
	}
}

// Run counts the time of leases, and follows the notes of other servers, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	isFailing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		var err error
		if s.isShared {
			err = errors.Join(s.readNotes(ctx), s.lessor.read(ctx))
		}
		if err == nil {
			err = s.lessor.expire(ctx)
		}
		if err != nil && ctx.Err() == nil && !isFailing {
			s.logger.Warn("etcd: leases can't be counted, trying again", "err", err)
		}
		isFailing = err != nil
	}
}

// tick is the time between two searches for leases that are over.
const tick = 500 * time.Millisecond

// The notes, but for those of leases.
const (
	compactedNote = "etcd/compacted"
	alarmNote     = "etcd/alarm"
)

// readNotes reads the notes that other servers may have changed.
func (s *Server) readNotes(ctx context.Context) error {
	if _, err := s.readCompacted(ctx); err != nil {
		return err
	}
	return s.readAlarm(ctx)
}

// note returns the value of a note; "" if there is none.
func (s *Server) note(ctx context.Context, name string) (string, error) {
	notes, err := s.store.Notes(ctx, name)
	return notes[name], err
}

// header returns the header of an answer.
func (s *Server) header(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{
		ClusterId: s.cluster.ClusterID, MemberId: s.cluster.MemberID, Revision: revision, RaftTerm: raftTerm,
	}
}

// get returns the record of a key, nil if there is none, and a revision at which that is so. If isFresh is true, it is
// linearizable; otherwise it may lack the last changes of other processes.
func (s *Server) get(ctx context.Context, key sqlstore.Key, isFresh bool) (*watch.Entry, int64, error) {
	if isFresh {
		if _, err := s.feed.Latest(ctx); err != nil {
			return nil, 0, err
		}
	}
	if e, revision, loaded := s.feed.Lookup(key); loaded {
		return e, revision, nil
	}
	record, revision, err := s.store.Get(ctx, key)
	if errors.Is(err, sqlstore.ErrNotFound) {
		return nil, revision, nil
	}
	return watch.NewEntry(record), revision, err
}

// ownUser writes what the server writes by itself.
const ownUser = "system:byre"

// author returns who asked for a change: the name in the client's certificate, if it has one.
func author(ctx context.Context, verb string) sqlstore.Author {
	a := sqlstore.Author{User: "etcd", Verb: verb}
	if p, ok := peer.FromContext(ctx); ok {
		if tls, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(tls.State.PeerCertificates) > 0 {
			a.User = tls.State.PeerCertificates[0].Subject.CommonName
		}
	}
	return a
}

// isConflict reports whether a write found its key in another state than the writer knew.
func isConflict(err error) bool {
	return errors.Is(err, sqlstore.ErrConflict) || errors.Is(err, sqlstore.ErrExists) ||
		errors.Is(err, sqlstore.ErrNotFound)
}

// errUnsupported refuses what the store can't do as etcd does.
func errUnsupported(what string) error {
	return status.Errorf(codes.Unimplemented, "byre: %s is not supported", what)
}

// answer returns an error in the form and with the texts of etcd: its Go client knows errors by their texts.
func (s *Server) answer(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, sqlstore.ErrCompacted):
		return rpctypes.ErrGRPCCompacted
	case errors.Is(err, sqlstore.ErrFuture):
		return rpctypes.ErrGRPCFutureRev
	case errors.Is(err, sqlstore.ErrQuota), errors.Is(err, sqlstore.ErrDiskFull):
		return rpctypes.ErrGRPCNoSpace
	case errors.Is(err, sqlstore.ErrKeyTooLong):
		return status.Error(codes.InvalidArgument, fmt.Sprintf("byre: a key has at most %d bytes", sqlstore.MaxKeyBytes))
	case errors.Is(err, watch.ErrClosed), errors.Is(err, sqlstore.ErrClosed):
		return rpctypes.ErrGRPCStopped
	case errors.Is(err, sqlstore.ErrUnknown):
		return rpctypes.ErrGRPCTimeout // happened once or not at all
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCDeadlineExceeded
	}
	s.logger.Warn("etcd: request failed", "err", err)
	return status.Error(codes.Unavailable, "etcdserver: "+sqlstore.Public(err))
}
