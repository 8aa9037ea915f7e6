package server_test

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"byre/sqlstore/storetest"
)

func (f fixture) grant(ttl int64) clientv3.LeaseID {
	f.Helper()
	response, err := f.Grant(f.Context(), ttl)
	if err != nil {
		f.Fatal(err)
	}
	return response.ID
}

func TestLease_GrantAttachRevoke(t *testing.T) {
	onEach(t, func(f fixture) {
		for ttl, want := range map[int64]int64{-1: 2, 0: 2, 3: 3, 9_000_000_000: 9_000_000_000} {
			granted, err := f.Grant(f.Context(), ttl)
			if err != nil || granted.TTL != want || granted.Error != "" {
				f.Errorf("TTL %d: %v, %v", ttl, granted, err)
			}
		}
		if _, err := f.Grant(f.Context(), 9_000_000_001); !errors.Is(err, rpctypes.ErrLeaseTTLTooLarge) {
			f.Errorf("too large a TTL: %v", err)
		}
		lease := pb.NewLeaseClient(f.ActiveConnection())
		if _, err := lease.LeaseGrant(f.Context(), &pb.LeaseGrantRequest{ID: -5, TTL: 100}); err != nil {
			f.Error(err)
		}
		_, err := lease.LeaseGrant(f.Context(), &pb.LeaseGrantRequest{ID: -5, TTL: 100})
		if rpctypes.ErrorDesc(err) != "etcdserver: lease already exists" {
			f.Errorf("same ID: %v", err)
		}
		id := f.grant(1000)
		f.put("c", "", clientv3.WithLease(id))
		f.put("/registry/events/a", "", clientv3.WithLease(id))
		f.put("detached", "", clientv3.WithLease(id))
		f.put("detached", "")
		f.put("moved", "", clientv3.WithLease(id))
		f.put("moved", "", clientv3.WithLease(f.grant(1000)))
		f.put("c", "again", clientv3.WithIgnoreLease())
		if kv := f.get("c").Kvs[0]; kv.Lease != int64(id) || kv.Version != 2 {
			f.Errorf("key with a lease: %v", kv)
		}
		left, err := f.TimeToLive(f.Context(), id, clientv3.WithAttachedKeys())
		if err != nil || left.GrantedTTL != 1000 || left.TTL < 990 || len(left.Keys) != 2 {
			f.Errorf("time to live: %v, %v", left, err)
		}
		if _, err := f.Put(f.Context(), "x", "", clientv3.WithLease(77)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			f.Errorf("unknown lease: %v", err)
		}
		if _, err := f.Revoke(f.Context(), id); err != nil {
			f.Fatal(err)
		}
		if len(f.get("c").Kvs)+len(f.get("/registry/events/a").Kvs) != 0 || len(f.get("detached").Kvs)+len(f.get("moved").Kvs) != 2 {
			f.Error("the revocation deleted other keys than the lease's")
		}
		if _, err := f.Revoke(f.Context(), id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			f.Errorf("second revocation: %v", err)
		}
		if left, err := f.TimeToLive(f.Context(), id); err != nil || left.TTL != -1 || left.GrantedTTL != 0 {
			f.Errorf("time to live of a revoked lease: %v, %v", left, err)
		}
		if alive, err := f.KeepAliveOnce(f.Context(), id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			f.Errorf("keep-alive of a revoked lease: %v, %v", alive, err)
		}
	})
}

func TestLease_Expires(t *testing.T) {
	onEach(t, func(f fixture) {
		id := f.grant(2)
		kept := f.grant(1000)
		f.put("a", "", clientv3.WithLease(id))
		f.put("b", "", clientv3.WithLease(kept))
		storetest.Eventually(t, "the key of an expired lease is deleted", func() bool { return len(f.get("a").Kvs) == 0 })
		if len(f.get("b").Kvs) != 1 {
			f.Error("the key of another lease is gone")
		}
		listed, err := f.Leases(f.Context())
		if err != nil || len(listed.Leases) != 1 || listed.Leases[0].ID != kept {
			f.Errorf("leases: %v, %v", listed, err)
		}
	})
}
