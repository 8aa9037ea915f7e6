package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"

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
	health   *health.Server
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
// revision 0 as "current". It needs the store and the feed to run.
func (s *Server) Start(ctx context.Context) error {
	key := serverRecord("cluster")
	for {
		e, err := s.ownRecord(ctx, key, true)
		if err != nil {
			return err
		}
		if e != nil {
			return json.Unmarshal(e.Value(), &s.cluster)
		}
		// A range of positive numbers: some clients print them as signed.
		made := clusterRecord{ClusterID: rand.Uint64()>>1 | 1, MemberID: rand.Uint64()>>1 | 1}
		if _, err := s.writeOwn(ctx, key, nil, made, ""); err != nil && !isConflict(err) {
			return err
		}
	}
}

// Run counts the time of leases until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var services sync.WaitGroup
	services.Go(func() { s.lessor.follow(ctx) })
	services.Go(func() { s.lessor.expire(ctx) })
	services.Wait()
	return nil
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

// ownRecord is get of a record of serverRecords or leaseRecords, which are then in memory.
func (s *Server) ownRecord(ctx context.Context, key sqlstore.Key, isFresh bool) (*watch.Entry, error) {
	if !s.feed.IsLoaded(key.Of()) {
		if _, err := s.feed.Snapshot(ctx, key.Of()); err != nil {
			return nil, err
		}
	}
	e, _, err := s.get(ctx, key, isFresh)
	return e, err
}

// writeOwn writes what old, unless it is nil, is the state before of.
func (s *Server) writeOwn(
	ctx context.Context, key sqlstore.Key, old *watch.Entry, value any, uid string,
) (sqlstore.Change, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return sqlstore.Change{}, err
	}
	w := sqlstore.Write{
		Op: sqlstore.Create, Key: key, UID: uid, Encoding: encodingOwn, Value: text,
		Author: sqlstore.Author{User: ownUser, Verb: "create"},
	}
	if old != nil {
		w.Op, w.Replaces, w.Author.Verb = sqlstore.Update, old.Revision, "update"
	}
	return s.store.Commit(ctx, w)
}

func (s *Server) deleteOwn(ctx context.Context, old *watch.Entry) (sqlstore.Change, error) {
	return s.store.Commit(ctx, sqlstore.Write{
		Op: sqlstore.Delete, Key: old.Key, Replaces: old.Revision,
		Author: sqlstore.Author{User: ownUser, Verb: "delete"},
	})
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
	return errors.Is(err, sqlstore.ErrConflict) || errors.Is(err, sqlstore.ErrExists) || errors.Is(err, sqlstore.ErrNotFound)
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
	case errors.Is(err, sqlstore.ErrRequired):
		return rpctypes.ErrGRPCLeaseNotFound
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
