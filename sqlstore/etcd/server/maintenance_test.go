package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/etcd"
	"byre/sqlstore/etcd/server"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
	"byre/watch"
)

func TestMaintenance_StatusAndMembers(t *testing.T) {
	onEach(t, func(f fixture) {
		f.put("a", "")
		got, err := f.Status(f.Context(), f.url)
		if err != nil {
			f.Fatal(err)
		}
		if got.Version != "3.7.3" || got.StorageVersion != "3.7.0" || got.DbSize == 0 || got.DbSizeInUse == 0 ||
			got.DbSizeQuota != 2147483648 || got.Leader != got.Header.MemberId || got.RaftTerm == 0 || got.IsLearner ||
			got.RaftIndex == 0 || len(got.Errors) != 0 || got.DowngradeInfo == nil {
			f.Errorf("status: %v", got)
		}
		members, err := f.MemberList(f.Context())
		if err != nil || len(members.Members) != 1 || members.Members[0].ID != got.Leader ||
			members.Members[0].ClientURLs[0] != f.url || members.Header.Revision != 0 {
			f.Errorf("members: %v, %v", members, err)
		}
		if hash, err := f.HashKV(f.Context(), f.url, 0); err != nil || hash.HashRevision != 2 || hash.Hash == 0 {
			f.Errorf("hash: %v, %v", hash, err)
		}
		if _, err := f.Defragment(f.Context(), f.url); err != nil {
			f.Error(err)
		}
		if auth, err := f.AuthStatus(f.Context()); err != nil || auth.Enabled || auth.AuthRevision != 1 {
			f.Errorf("auth: %v, %v", auth, err)
		}
		if _, err := f.Authenticate(f.Context(), "root", "x"); !errors.Is(err, rpctypes.ErrAuthNotEnabled) {
			f.Errorf("authenticate: %v", err)
		}
		if _, err := f.AuthEnable(f.Context()); status.Code(err) != codes.Unimplemented {
			f.Errorf("enabling auth: %v", err)
		}
		health, err := healthpb.NewHealthClient(f.ActiveConnection()).Check(f.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
			f.Errorf("health: %v, %v", health, err)
		}
	})
}

func TestMaintenance_Snapshot(t *testing.T) {
	onEach(t, func(f fixture) {
		f.put("/registry/pods/a", "k8s\x00\xff")
		f.put("other", "2")
		reader, err := f.Snapshot(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		data, err := io.ReadAll(reader)
		path := filepath.Join(f.TempDir(), "snapshot.db")
		if err := errors.Join(err, reader.Close(), os.WriteFile(path, data, 0o600)); err != nil {
			f.Fatal(err)
		}
		snapshot, err := etcd.Open(f.Context(), path, etcd.Options{})
		if err != nil {
			f.Fatal(err)
		}
		defer snapshot.Close()
		values := map[string]string{}
		err = snapshot.Each(f.Context(), func(kv etcd.KeyValue) error {
			values[kv.Key] = string(kv.Value)
			return nil
		})
		if err != nil || values["/registry/pods/a"] != "k8s\x00\xff" || values["other"] != "2" || len(values) != 2 {
			f.Errorf("snapshot: %v, %v", values, err)
		}
	})
}

// The alarm stays until it is disarmed; deletes and reads go on meanwhile.
func TestMaintenance_NoSpace(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			driver := kind.Open(t)
			t.Cleanup(func() { _ = driver.Close() })
			f := serve(t, driver, sqlstore.Options{})
			id := f.grant(1000)
			f.put("a", "")
			members, err := f.MemberList(f.Context())
			if err != nil {
				f.Fatal(err)
			}
			member := members.Members[0].ID
			maintenance := pb.NewMaintenanceClient(f.ActiveConnection())
			alarm := func(action pb.AlarmRequest_AlarmAction) []*pb.AlarmMember {
				f.Helper()
				request := &pb.AlarmRequest{Action: action, MemberID: member, Alarm: pb.AlarmType_NOSPACE}
				r, err := maintenance.Alarm(f.Context(), request)
				if err != nil {
					f.Fatal(err)
				}
				return r.Alarms
			}
			alarm(pb.AlarmRequest_ACTIVATE)
			if _, err := f.Put(f.Context(), "b", ""); !errors.Is(err, rpctypes.ErrNoSpace) {
				f.Errorf("put: %v", err)
			}
			if _, err := f.Txn(f.Context()).Else(clientv3.OpPut("b", "")).Commit(); !errors.Is(err, rpctypes.ErrNoSpace) {
				f.Errorf("put in a branch that does not run: %v", err)
			}
			if _, err := f.Grant(f.Context(), 10); !errors.Is(err, rpctypes.ErrNoSpace) {
				f.Errorf("grant: %v", err)
			}
			if _, err := f.Delete(f.Context(), "a"); err != nil {
				f.Error(err)
			}
			if _, err := f.Revoke(f.Context(), id); err != nil {
				f.Error(err)
			}
			if got, err := f.Status(f.Context(), f.url); err != nil || len(got.Errors) != 1 ||
				!strings.HasSuffix(got.Errors[0], "  alarm:NOSPACE") {
				f.Errorf("status: %v, %v", got, err)
			}
			if listed, err := f.AlarmList(f.Context()); err != nil || len(listed.Alarms) != 1 {
				f.Errorf("alarms: %v, %v", listed, err)
			}
			if gone := alarm(pb.AlarmRequest_DEACTIVATE); len(gone) != 1 {
				f.Errorf("disarmed: %v", gone)
			}
			if gone := alarm(pb.AlarmRequest_DEACTIVATE); len(gone) != 0 {
				f.Errorf("disarmed again: %v", gone)
			}
			f.put("b", "")
		})
	}
}

// The store's quota raises the alarm.
func TestMaintenance_QuotaRaisesTheAlarm(t *testing.T) {
	driver := dbtest.SQLite(t)
	t.Cleanup(func() { _ = driver.Close() })
	f := serve(t, driver, sqlstore.Options{Quota: 1, QuotaInterval: time.Millisecond})
	storetest.Eventually(t, "the quota is noticed", func() bool {
		_, err := f.Put(f.Context(), "a", "")
		return errors.Is(err, rpctypes.ErrNoSpace)
	})
	if listed, err := f.AlarmList(f.Context()); err != nil || len(listed.Alarms) != 1 {
		t.Errorf("alarms: %v, %v", listed, err)
	}
}

// Two servers of one database share leases, compactions and alarms.
func TestServer_Replicas(t *testing.T) {
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	replica := func() fixture {
		driver := dbtest.Connect(t, dsn)
		t.Cleanup(func() { _ = driver.Close() })
		return serve(t, driver, sqlstore.Options{})
	}
	f, g := replica(), replica()
	key, end := prefixRange("/registry/pods/")
	w := g.watch()
	w.create(&pb.WatchCreateRequest{Key: key, RangeEnd: end, PrevKv: true})
	w.next()
	id := f.grant(1000)
	g.put("/registry/pods/a", "1", clientv3.WithLease(id))
	at := f.put("/registry/pods/a", "2", clientv3.WithLease(id))
	if _, err := g.KeepAliveOnce(g.Context(), id); err != nil {
		t.Error(err)
	}
	if got := w.events(2); got != "+/registry/pods/a +/registry/pods/a" {
		t.Error(got)
	}
	if _, err := f.Compact(f.Context(), at); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Compact(g.Context(), at); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("compaction on the other server: %v", err)
	}
	if _, err := g.Get(g.Context(), "/registry/pods/a", clientv3.WithRev(at-1)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("read below a compaction of the other server: %v", err)
	}
	if _, err := g.Revoke(g.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := f.get("/registry/pods/a"); len(got.Kvs) != 0 {
		t.Errorf("after a revocation by the other server: %v", got)
	}
	if _, err := f.Put(f.Context(), "x", "", clientv3.WithLease(id)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("put with a lease that the other server has revoked: %v", err)
	}
}

// After a restart keys, revisions and compactions are as before, and a lease has its full TTL.
func TestServer_Restart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	start := func(t *testing.T) fixture {
		driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = driver.Close() })
		return serve(t, driver, sqlstore.Options{})
	}
	var id clientv3.LeaseID
	var member uint64
	var before *clientv3.GetResponse
	t.Run("first", func(t *testing.T) {
		f := start(t)
		id = f.grant(3)
		f.put("a", "1", clientv3.WithLease(id))
		at := f.put("a", "2", clientv3.WithLease(id))
		if _, err := f.Compact(f.Context(), at); err != nil {
			t.Fatal(err)
		}
		before = f.get("a")
		member = before.Header.MemberId
	})
	f := start(t)
	after := f.get("a")
	if after.Header.Revision != before.Header.Revision || after.Header.MemberId != member || len(after.Kvs) != 1 ||
		after.Kvs[0].String() != before.Kvs[0].String() {
		t.Errorf("after a restart: %v, before: %v", after, before)
	}
	_, err := f.Get(f.Context(), "a", clientv3.WithRev(before.Kvs[0].ModRevision-1))
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("below the compaction: %v", err)
	}
	storetest.Eventually(t, "the lease ends", func() bool { return len(f.get("a").Kvs) == 0 })
}

func TestServer_HTTP(t *testing.T) {
	onEach(t, func(f fixture) {
		for path, want := range map[string]string{
			"/health": `{"health":"true","reason":""}`, "/readyz": "ok", "/livez": "ok",
			"/version": `{"etcdcluster":"3.7.0","etcdserver":"3.7.3","storage":"3.7.0"}`,
		} {
			request, err := http.NewRequestWithContext(f.Context(), http.MethodGet, f.url+path, http.NoBody)
			if err != nil {
				f.Fatal(err)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				f.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || response.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != want {
				f.Errorf("%s: %d %s, %v", path, response.StatusCode, body, err)
			}
			if path == "/health" && !json.Valid(body) {
				f.Error("health is no JSON")
			}
		}
	})
}

// A stop ends watches as etcd does, so that clients resume them elsewhere, and loses no write that was acknowledged.
func TestServer_Stop(t *testing.T) {
	driver := dbtest.SQLite(t)
	t.Cleanup(func() { _ = driver.Close() })
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	dbtest.Serve(t, "store", store.Run)
	dbtest.Serve(t, "feed", feed.Run)
	listeners, err := server.Listen(t.Context(), server.Listening{ClientURLs: []string{"http://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Options{Store: store, Feed: feed})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listeners, http.NotFoundHandler()) }()
	f := fixture{T: t, Client: connect(t, listeners.URLs[0])}
	w := f.watch()
	w.create(&pb.WatchCreateRequest{Key: []byte("a")})
	w.next()
	stop()
	if err := <-ended; err != nil {
		t.Errorf("serve: %v", err)
	}
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
}

// The package links nothing of Kubernetes but the ring buffer of the feed.
func TestServer_LinksNoKubernetes(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dependency := range strings.FieldsSeq(string(out)) {
		if strings.Contains(dependency, "k8s.io/") && !strings.HasPrefix(dependency, "k8s.io/utils/") {
			t.Errorf("links %s", dependency)
		}
	}
}
