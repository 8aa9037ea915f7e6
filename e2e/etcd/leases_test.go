package etcd

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func stops(s *session) {
	s.seed("a")
	w := s.watch()
	w.create("watch", watching(nil))
	keepAlive, err := s.lease.LeaseKeepAlive(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := keepAlive.Send(&pb.LeaseKeepAliveRequest{ID: 1}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := keepAlive.Recv(); err != nil {
		s.t.Fatal(err)
	}
	var writers sync.WaitGroup
	var mu sync.Mutex
	acknowledged, failures := map[string]bool{}, map[codes.Code]bool{}
	started := make(chan struct{})
	begin := sync.OnceFunc(func() { close(started) })
	for i := range 8 {
		writers.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("w%d-%05d", i, n)
				_, err := s.kv.Put(s.t.Context(), put(key, "v"))
				mu.Lock()
				if err == nil {
					acknowledged[key] = true
				} else {
					failures[status.Code(err)] = true
				}
				mu.Unlock()
				if err != nil {
					return
				}
				if n == 20 {
					begin()
				}
			}
		})
	}
	<-started
	stopping := time.Now()
	stopped := s.etcd.Stop()
	s.note("ends within 10 s", "%v", time.Since(stopping) < 10*time.Second)
	var exit *exec.ExitError
	end := fmt.Sprint(stopped)
	if errors.As(stopped, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
		end = "SIGTERM"
	}
	s.note("how it ends", "%s", end)
	writers.Wait()
	s.note("codes of failed puts", "%v", failures)
	for w.next() != nil {
	}
	s.note("end of the watch", "%v", status.Code(w.err))
	_, err = keepAlive.Recv()
	s.note("end of the keep-alive", "%v", status.Code(err))
	s.restart()
	response := must(s, s.kv.Range, get("w", "x"))
	lost := len(acknowledged)
	for _, kv := range response.Kvs {
		if acknowledged[string(kv.Key)] {
			lost--
		}
	}
	s.note("acknowledged puts that are lost", "%d", lost)
	s.note("the revision is of the last put", "%v", response.Header.Revision-s.base == int64(len(response.Kvs))+1)
}

func newStore(s *session) {
	s.base = 0
	s.get("an empty store", get("a"))
	s.compact("compact 0", 0)
	s.compact("compact 0 again", 0)
	s.compact("compact -1", -1)
	s.compact("compact 1", 1)
	s.put("the first put", put("a", "1"))
}

func grants(s *session) {
	grant := func(question string, id, ttl int64) {
		_, _ = ask(s, question, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: id, TTL: ttl})
	}
	for i, ttl := range []int64{0, -1, 1, 2, 3, 9_000_000_000, 9_000_000_001} {
		grant(fmt.Sprintf("TTL %d", ttl), int64(3500+i), ttl)
	}
	grant("an id that is there", 3505, 60)
	grant("a negative id", -3500, 60)
	_, _ = ask(s, "revoke", s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: 3505})
	grant("an id after its revoke", 3505, 60)
	response, err := s.lease.LeaseGrant(s.t.Context(), &pb.LeaseGrantRequest{TTL: 60})
	s.note("id 0", "%v, id above 0: %v, TTL %d", err, response.GetID() > 0, response.GetTTL())
	s.note("revision", "%s", s.revision(s.current()))
}

func unknownLeases(s *session) {
	stream, err := s.lease.LeaseKeepAlive(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	keepAlive := func(question string, id int64) {
		s.t.Helper()
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil {
			s.t.Fatal(err)
		}
		if m, err := stream.Recv(); err != nil {
			s.note(question, "%s", errorText(err))
		} else {
			s.note(question, "%s", s.text(m))
		}
	}
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3601, TTL: 600})
	for _, key := range []string{"c", "a", "b"} {
		must(s, s.kv.Put, with(put(key, "v"), func(r *pb.PutRequest) { r.Lease = 3601 }))
	}
	keepAlive("keep alive an unknown one", 3699)
	keepAlive("keep alive 0", 0)
	keepAlive("keep alive a known one", 3601)
	_, _ = ask(s, "time to live of an unknown one", s.lease.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: 3699,
		Keys: true})
	_, _ = ask(s, "time to live of 0", s.lease.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{})
	for _, keys := range []bool{false, true} {
		response := must(s, s.lease.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: 3601, Keys: keys})
		slices.SortFunc(response.Keys, slices.Compare)
		s.note(fmt.Sprintf("time to live, keys %v", keys), "%d, nearly that: %v, %q", response.GrantedTTL,
			response.TTL > 500 && response.TTL <= 600, response.Keys)
	}
	if err := stream.CloseSend(); err != nil {
		s.t.Fatal(err)
	}
	_, err = stream.Recv()
	s.note("half-close of a keep-alive stream", "%s", errorText(err))
}

func attached(s *session) {
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3701, TTL: 600})
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3702, TTL: 600})
	leased := func(key string, id int64) *pb.PutRequest {
		return with(put(key, "v"), func(r *pb.PutRequest) { r.Lease = id })
	}
	keysOf := func(question string, id int64) {
		response := must(s, s.lease.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
		slices.SortFunc(response.Keys, slices.Compare)
		s.note(question, "%q", response.Keys)
	}
	s.put("unknown", leased("a", 3799))
	s.put("negative", leased("a", -3799))
	s.txn("unknown in a transaction", txn{then: ops{leased("a", 3799)}})
	s.txn("unknown in a transaction after a put", txn{then: ops{put("b", "v"), leased("a", 3799)}})
	s.get("the put before it is not done", get("b"))
	s.rebase()
	s.put("attach", leased("a", 3701))
	s.put("attach another key", leased("b", 3701))
	s.get("attached", get("a"))
	keysOf("keys", 3701)
	s.put("attach to another", leased("a", 3702))
	keysOf("keys of the first", 3701)
	keysOf("keys of the other", 3702)
	s.txn("attach in a transaction", txn{when: mod("c", "=", 0), then: ops{leased("c", 3702)}})
	keysOf("keys after the transaction", 3702)
	s.put("put without a lease", put("a", "v"))
	s.get("detached", get("a"))
	keysOf("keys after a put without", 3702)
	s.del("delete", del("b"))
	keysOf("keys after a delete", 3701)
	s.put("put again without", put("b", "v"))
	_, _ = ask(s, "revoke the left one", s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: 3701})
	s.get("the moved keys stay", get("a", "c"))
}

func revokes(s *session) {
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3801, TTL: 100})
	for _, key := range []string{"c", "a", "b"} {
		must(s, s.kv.Put, with(put(key, "v"), func(r *pb.PutRequest) { r.Lease = 3801 }))
	}
	w := s.watch()
	w.create("watch", watching(func(r *pb.WatchCreateRequest) { r.PrevKv = true }))
	_, _ = ask(s, "revoke with three keys", s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: 3801})
	w.events("events of three keys", 3)
	s.get("keys after it", get("a", "z"))
	s.rebase()
	for i, ttl := range []int64{100, 300, 200} {
		must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3851 + int64(i), TTL: ttl})
	}
	must(s, s.kv.Put, with(put("k", "v"), func(r *pb.PutRequest) { r.Lease = 3852 }))
	_, _ = ask(s, "leases", s.lease.LeaseLeases, &pb.LeaseLeasesRequest{})
	_, _ = ask(s, "revoke with one key", s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: 3852})
	w.events("events of one key", 2)
	_, _ = ask(s, "revoke without keys", s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: 3851})
	_, _ = ask(s, "revoke an unknown one", s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: 3899})
	_, _ = ask(s, "revoke 0", s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{})
	_, _ = ask(s, "leases left", s.lease.LeaseLeases, &pb.LeaseLeasesRequest{})
}

func leasesAfterRestart(s *session) {
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 3901, TTL: 60})
	must(s, s.kv.Put, with(put("k", "v"), func(r *pb.PutRequest) { r.Lease = 3901 }))
	// Some of the time to live must have gone.
	for deadline := time.Now().Add(time.Minute); must(s, s.lease.LeaseTimeToLive,
		&pb.LeaseTimeToLiveRequest{ID: 3901}).TTL > 55 && time.Now().Before(deadline); {
		time.Sleep(200 * time.Millisecond)
	}
	s.restart()
	response := must(s, s.lease.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: 3901, Keys: true})
	s.note("renewed in full", "%v, of %d, keys %q", response.TTL >= 58, response.GrantedTTL, response.Keys)
	s.get("the key", get("k"))
}
