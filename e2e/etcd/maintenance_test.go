package etcd

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func maintenance(s *session) {
	s.seed("a", "b")
	s.compact("compact", s.base+1)
	m := s.maintenance
	_, _ = ask(s, "status", m.Status, &pb.StatusRequest{})
	_, _ = ask(s, "defragment", m.Defragment, &pb.DefragmentRequest{})
	_, _ = ask(s, "hash", m.Hash, &pb.HashRequest{})
	_, _ = ask(s, "hash of the current revision", m.HashKV, &pb.HashKVRequest{})
	_, _ = ask(s, "hash of a future revision", m.HashKV, &pb.HashKVRequest{Revision: s.base + 100})
	_, _ = ask(s, "alarms", m.Alarm, &pb.AlarmRequest{})
	_, _ = ask(s, "downgrade, validate 3.6", m.Downgrade, &pb.DowngradeRequest{Version: "3.6.0"})
	_, _ = ask(s, "move the leader", m.MoveLeader, &pb.MoveLeaderRequest{TargetID: 1})
	members := must(s, s.cluster.MemberList, &pb.MemberListRequest{Linearizable: true})
	s.note("members", "%s %d: a name: %v, %d client URLs, learner %v", s.text(members.Header), len(members.Members),
		members.Members[0].Name != "", len(members.Members[0].ClientURLs), members.Members[0].IsLearner)
	_, _ = ask(s, "auth status", s.auth.AuthStatus, &pb.AuthStatusRequest{})
	_, _ = ask(s, "authenticate", s.auth.Authenticate, &pb.AuthenticateRequest{Name: "root", Password: "x"})
	s.note("unknown method", "%s", errorText(s.conn.Invoke(s.t.Context(), "/etcdserverpb.KV/Nothing", &pb.PutRequest{},
		&pb.PutResponse{})))
	s.note("unknown service", "%s", errorText(s.conn.Invoke(s.t.Context(), "/nothing.Nothing/Nothing", &pb.PutRequest{},
		&pb.PutResponse{})))
	_, _ = ask(s, "health", grpc_health_v1.NewHealthClient(s.conn).Check, &grpc_health_v1.HealthCheckRequest{})
}

func snapshot(s *session) {
	s.seed("a", "b")
	stream, err := s.maintenance.Snapshot(s.t.Context(), &pb.SnapshotRequest{})
	var all bytes.Buffer
	var last *pb.SnapshotResponse
	for err == nil {
		var m *pb.SnapshotResponse
		if m, err = stream.Recv(); err == nil {
			last = m
			all.Write(m.Blob)
		}
	}
	if !errors.Is(err, io.EOF) || all.Len() < sha256.Size {
		s.note("snapshot", "%d bytes, %s", all.Len(), errorText(err))
		return
	}
	content, sum := all.Bytes()[:all.Len()-sha256.Size], all.Bytes()[all.Len()-sha256.Size:]
	want := sha256.Sum256(content)
	s.note("snapshot", "remaining %d, version %q, ends with its sum: %v, whole pages: %v", last.RemainingBytes,
		last.Version,
		bytes.Equal(sum, want[:]), len(content)%4096 == 0)
}

func quota(s *session) {
	big := strings.Repeat("v", 1<<20)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = s.kv.Put(s.t.Context(), put(fmt.Sprintf("k%02d", i), big))
	}
	s.note("a put above the quota", "%s", errorText(err))
	s.rebase()
	s.put("a small put", put("a", "1"))
	s.txn("a put in Then", txn{then: ops{put("a", "1")}})
	s.txn("a put in an Else that would not run", txn{when: version("a", "=", 0), otherwise: ops{put("a", "1")}})
	_, _ = ask(s, "grant", s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 4201, TTL: 60})
	s.txn("only a range", txn{then: ops{get("a")}})
	s.txn("only a delete", txn{then: ops{del("k00")}})
	s.del("delete", del("k01"))
	s.get("range", get("a"))
	alarms, _ := ask(s, "alarms", s.maintenance.Alarm, &pb.AlarmRequest{})
	_, _ = ask(s, "alarms of CORRUPT", s.maintenance.Alarm, &pb.AlarmRequest{Alarm: pb.AlarmType_CORRUPT})
	status := must(s, s.maintenance.Status, &pb.StatusRequest{})
	for _, e := range status.Errors {
		var id uint64
		var alarm string
		_, err := fmt.Sscanf(e, "memberID:%d  alarm:%s", &id, &alarm)
		s.note("status", "%s %v, its own: %v", alarm, err, id == status.Header.MemberId)
	}
	s.clear()
	s.rebase()
	s.compact("compact", s.base)
	_, _ = ask(s, "defragment", s.maintenance.Defragment, &pb.DefragmentRequest{})
	s.put("a put after a defragmentation", put("a", "1"))
	if alarms != nil && len(alarms.Alarms) == 1 {
		disarm := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: alarms.Alarms[0].MemberID,
			Alarm: pb.AlarmType_NOSPACE}
		_, _ = ask(s, "deactivate", s.maintenance.Alarm, disarm)
		_, _ = ask(s, "deactivate again", s.maintenance.Alarm, disarm)
	}
	s.put("a put after that", put("a", "1"))
}
