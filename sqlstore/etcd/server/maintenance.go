package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"byre/sqlstore/etcd"
	"byre/watch"
)

// maintenanceService refuses downgrades.
type maintenanceService struct {
	pb.UnimplementedMaintenanceServer
	*Server
}

// defaultQuota is what Status tells where there is no quota: etcd's default.
const defaultQuota = 2 << 30

// checkSpace fails while the alarm is raised. Only its deactivation ends it, as in etcd.
func (s *Server) checkSpace() error {
	if s.isAlarmed.Load() {
		return rpctypes.ErrGRPCNoSpace
	}
	return nil
}

func (s *Server) readAlarm(ctx context.Context) error {
	text, err := s.note(ctx, alarmNote)
	if err == nil {
		s.isAlarmed.Store(text != "")
	}
	return err
}

func (s *Server) raiseAlarm(ctx context.Context) error {
	_, err := s.store.SetNote(ctx, alarmNote, "", pb.AlarmType_NOSPACE.String())
	if err == nil {
		s.isAlarmed.Store(true)
	}
	return err
}

// Alarm implements pb.MaintenanceServer.
func (s *maintenanceService) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if err := s.readAlarm(ctx); err != nil {
		return nil, err
	}
	response := &pb.AlarmResponse{Header: s.header(s.feed.Revision())}
	isAsked := r.Alarm == pb.AlarmType_NOSPACE || r.Alarm == pb.AlarmType_NONE && r.Action == pb.AlarmRequest_GET
	isOurs := r.MemberID == s.cluster.MemberID || r.MemberID == 0 && r.Action == pb.AlarmRequest_GET
	if !isAsked || !isOurs {
		return response, nil
	}
	var err error
	wasAlarmed := s.isAlarmed.Load()
	switch r.Action {
	case pb.AlarmRequest_ACTIVATE:
		err = s.raiseAlarm(ctx)
	case pb.AlarmRequest_DEACTIVATE:
		if _, err = s.store.SetNote(ctx, alarmNote, pb.AlarmType_NOSPACE.String(), ""); err == nil {
			s.isAlarmed.Store(false)
		}
	}
	if err != nil {
		return nil, err
	}
	if wasAlarmed || r.Action == pb.AlarmRequest_ACTIVATE {
		response.Alarms = []*pb.AlarmMember{{MemberID: s.cluster.MemberID, Alarm: pb.AlarmType_NOSPACE}}
	}
	return response, nil
}

// Status implements pb.MaintenanceServer.
func (s *maintenanceService) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	revision, err := s.feed.Latest(ctx)
	if err != nil {
		return nil, err
	}
	size, err := s.store.Size(ctx)
	if err != nil {
		return nil, err
	}
	used, err := s.store.Used(ctx)
	if err != nil {
		return nil, err
	}
	response := &pb.StatusResponse{
		Header: s.header(revision), Version: version, StorageVersion: storageVersion, DbSize: size, DbSizeInUse: used,
		DbSizeQuota: s.options.Quota, Leader: s.cluster.MemberID, RaftIndex: uint64(revision),
		RaftAppliedIndex: uint64(revision), RaftTerm: raftTerm, DowngradeInfo: &pb.DowngradeInfo{},
	}
	if response.DbSizeQuota == 0 {
		response.DbSizeQuota = defaultQuota
	}
	if s.isAlarmed.Load() {
		response.Errors = []string{fmt.Sprintf("memberID:%d  alarm:NOSPACE", s.cluster.MemberID)}
	}
	return response, nil
}

// Defragment implements pb.MaintenanceServer. The databases return space by themselves.
func (s *maintenanceService) Defragment(context.Context, *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	return &pb.DefragmentResponse{}, nil
}

// Hash implements pb.MaintenanceServer.
func (s *maintenanceService) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	hash, l, err := s.hash(ctx, 0)
	if err != nil {
		return nil, err
	}
	return &pb.HashResponse{Header: s.header(l.current), Hash: hash}, nil
}

// HashKV implements pb.MaintenanceServer. The hash is of the keys at the revision, and not that of etcd.
func (s *maintenanceService) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	hash, l, err := s.hash(ctx, r.Revision)
	if err != nil {
		return nil, err
	}
	return &pb.HashKVResponse{
		Header: s.header(l.current), Hash: hash, HashRevision: l.revision, CompactRevision: s.compacted.Load(),
	}, nil
}

// everything is the span of all keys.
var everything = span{start: "\x00", isOpen: true}

func (s *Server) hash(ctx context.Context, revision int64) (uint32, *listing, error) {
	l, err := s.list(ctx, everything, revision)
	if err != nil {
		return 0, nil, err
	}
	hash := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for e, err := range l.all(ctx, nil, false) {
		if err != nil {
			return 0, nil, err
		}
		_, _ = hash.Write(keyOf(e.Key))
		_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(e.Revision)))
		_, _ = hash.Write(e.Value())
	}
	return hash.Sum32(), l, nil
}

// snapshotChunk is how many bytes of a snapshot a message has.
const snapshotChunk = 32 << 10

// Snapshot implements pb.MaintenanceServer: the keys that exist now, without their history.
func (s *maintenanceService) Snapshot(_ *pb.SnapshotRequest, stream pb.Maintenance_SnapshotServer) (err error) {
	directory, err := os.MkdirTemp("", "byre-etcd-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	path := directory + "/snapshot"
	if err := s.writeSnapshot(stream.Context(), path); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	for left := info.Size(); left > 0; {
		chunk := make([]byte, min(left, snapshotChunk))
		n, err := file.Read(chunk)
		if err != nil {
			return err
		}
		left -= int64(n)
		m := &pb.SnapshotResponse{RemainingBytes: uint64(left), Blob: chunk[:n], Version: storageVersion}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) writeSnapshot(ctx context.Context, path string) error {
	l, err := s.list(ctx, everything, 0)
	if err != nil {
		return err
	}
	var entries []*watch.Entry
	for e, err := range l.all(ctx, nil, false) {
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b *watch.Entry) int { return int(a.Revision - b.Revision) })
	w, err := etcd.Create(path)
	if err != nil {
		return err
	}
	defer w.Close()
	for _, e := range entries {
		kv, err := keyValue(e, false)
		if err != nil {
			return err
		}
		var ttl time.Duration
		if kv.Lease != 0 {
			held, err := s.lessor.find(ctx, kv.Lease)
			if err != nil {
				return err
			}
			if held != nil {
				ttl = time.Until(held.expires)
			}
		}
		if err := w.Put(etcd.KeyValue{
			Key: string(kv.Key), Value: kv.Value, Created: kv.CreateRevision, Revision: kv.ModRevision, TTL: ttl,
		}); err != nil {
			return err
		}
	}
	return w.Finish(ctx, l.revision)
}

// MoveLeader implements pb.MaintenanceServer.
func (s *maintenanceService) MoveLeader(context.Context, *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	return nil, rpctypes.ErrGRPCBadLeaderTransferee
}

// clusterService refuses changes of the members.
type clusterService struct {
	pb.UnimplementedClusterServer
	*Server
}

// MemberList implements pb.ClusterServer. The servers of one database are one member.
func (s *clusterService) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	return &pb.MemberListResponse{Header: s.header(0), Members: []*pb.Member{{
		ID: s.cluster.MemberID, Name: "byre", ClientURLs: s.options.ClientURLs,
	}}}, nil
}

// MemberPromote implements pb.ClusterServer.
func (s *clusterService) MemberPromote(context.Context, *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	return nil, rpctypes.ErrGRPCMemberNotLearner
}

// authService refuses etcd's users and roles: clients are known by their certificates.
type authService struct {
	pb.UnimplementedAuthServer
	*Server
}

// AuthStatus implements pb.AuthServer.
func (s *authService) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return &pb.AuthStatusResponse{Header: s.header(s.feed.Revision()), AuthRevision: 1}, nil
}

// Authenticate implements pb.AuthServer.
func (s *authService) Authenticate(context.Context, *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	return nil, rpctypes.ErrGRPCAuthNotEnabled
}

// AuthEnable implements pb.AuthServer.
func (s *authService) AuthEnable(context.Context, *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return nil, status.Error(codes.Unimplemented, "byre: users and roles are not supported: use client certificates")
}
