package oracle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"byre/e2e/servers"
)

// large is the approximate length of the value, in bytes, of the objects that fill a
// database.
const large = 200_000

func mapOf(name, more string, size int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q%s},"data":{"text":%q}}`, name, more,
		strings.Repeat("x", size))
}

const configMaps = "/api/v1/namespaces/default/configmaps"

// TestDatabaseQuota_AnswersEqualStock fills byre's database up to --database-quota and the
// etcd of a stock server up to --quota-backend-bytes. Clients of both get the same answers,
// except that byre accepts the writes that free space or elect leaders. Then both recover.
func TestDatabaseQuota_AnswersEqualStock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	etcd, err := servers.StartEtcd(t.Context(), dir, "--quota-backend-bytes=16777216")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Kill)
	server, err := servers.Stock{Dir: dir, Etcd: etcd, Args: []string{noServiceAccounts}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	stock, err := newPeer(server)
	if err != nil {
		t.Fatal(err)
	}
	stock.isStock = true
	byre, err := startByre(t, "", "--database-quota=16Mi", "--retention=1s", "--compaction-interval=200ms")
	if err != nil {
		t.Fatal(err)
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	peers := []*peer{stock, byre}
	filled := map[*peer]int{}
	for _, p := range peers {
		for _, name := range []string{"kept", "shrunk", "deleted"} {
			p.must(t, http.StatusCreated, request{method: http.MethodPost, path: configMaps, body: mapOf(name, "", 1000)})
		}
		p.must(t, http.StatusCreated,
			request{method: http.MethodPost, path: configMaps, body: mapOf("final", `,"finalizers":["example.com/kept"]`, 10)})
		p.must(t, http.StatusCreated,
			request{method: http.MethodPost, path: leases, body: `{"metadata":{"name":"held"},"spec":{"holderIdentity":"a"}}`})
		filled[p] = p.fill(t)
	}

	const merge = "application/merge-patch+json"
	for _, r := range []request{
		{name: "create", method: http.MethodPost, path: configMaps, body: mapOf("more", "", 10)},
		{name: "create with a generated name", method: http.MethodPost, path: configMaps,
			body: `{"metadata":{"generateName":"more-"}}`},
		{name: "dry run", method: http.MethodPost, path: configMaps + "?dryRun=All", body: mapOf("more", "", 10)},
		{name: "bad object", method: http.MethodPost, path: configMaps, body: mapOf("Not A Name", "", 10)},
		{name: "update", method: http.MethodPut, path: configMaps + "/kept", body: mapOf("kept", "", 2000)},
		{name: "update of nothing", method: http.MethodPut, path: configMaps + "/kept", body: mapOf("kept", "", 1000)},
		{name: "patch", method: http.MethodPatch, path: configMaps + "/kept", contentType: merge,
			body: `{"data":{"more":"text"}}`},
		{name: "apply", method: http.MethodPatch, path: configMaps + "/applied?fieldManager=a",
			contentType: "application/apply-patch+yaml", body: mapOf("applied", "", 10)},
		{name: "create of a lease", method: http.MethodPost, path: leases, body: `{"metadata":{"name":"new"}}`},
		{name: "event", method: http.MethodPost, path: "/api/v1/namespaces/default/events",
			body: `{"metadata":{"name":"e"},"involvedObject":{"namespace":"default"}}`},
		{name: "definition", method: http.MethodPost, path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
			body: `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",` +
				`"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`},
		{name: "get", path: configMaps + "/kept"},
		{name: "delete", method: http.MethodDelete, path: configMaps + "/deleted"},
		{name: "delete of what is gone", method: http.MethodDelete, path: configMaps + "/deleted"},
	} {
		compare(t, stock, byre, r)
	}

	// A stock server refuses these writes, too. byre accepts them: without them no space is
	// freed and no leader elected.
	for _, test := range []struct {
		request
		stock, byre int
	}{
		{request{name: "shorter update", method: http.MethodPut, path: configMaps + "/shrunk", body: mapOf("shrunk", "", 10)},
			500, 200},
		{request{name: "renewal of a lease", method: http.MethodPatch, path: leases + "/held", contentType: merge,
			body: `{"spec":{"holderIdentity":"another"}}`}, 500, 200},
		{request{name: "delete with a finalizer", method: http.MethodDelete, path: configMaps + "/final"}, 500, 200},
		{request{name: "removal of a finalizer", method: http.MethodPatch, path: configMaps + "/final", contentType: merge,
			body: `{"metadata":{"finalizers":null}}`}, 500, 200},
		// A load balancer sends clients to a stock server that takes no writes.
		{request{name: "readiness", path: "/readyz"}, 200, 500},
		{request{name: "readiness but for the quota", path: "/readyz?exclude=database-quota"}, 200, 200},
		{request{name: "liveness", path: "/livez"}, 200, 200},
	} {
		for p, want := range map[*peer]int{stock: test.stock, byre: test.byre} {
			if err := p.expect(t.Context(), want, test.request); err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
		}
	}

	for _, p := range peers {
		for i := range filled[p] {
			p.must(t, http.StatusOK, request{method: http.MethodDelete, path: fmt.Sprintf("%s/full-%d", configMaps, i)})
		}
	}
	recoverEtcd(t, etcd)
	// byre compacts by itself, and accepts all writes again.
	for _, p := range peers {
		p.await(t, http.StatusCreated, request{method: http.MethodPost, path: configMaps, body: mapOf("afterwards", "", 10)})
		p.await(t, http.StatusOK, request{path: "/readyz"})
	}
	compare(t, stock, byre, request{name: "get afterwards", path: configMaps + "/afterwards"})
}

// fill creates objects until they are refused, and returns how many it made.
func (p *peer) fill(t *testing.T) int {
	t.Helper()
	for i := range 1000 {
		a, err := p.ask(t.Context(),
			request{method: http.MethodPost, path: configMaps, body: mapOf(fmt.Sprintf("full-%d", i), "", large)})
		switch {
		case err != nil:
			t.Fatal(err)
		case a.status != http.StatusCreated:
			return i
		}
	}
	t.Fatal("the database is not full")
	return 0
}

// recoverEtcd does what an administrator does to an etcd that has raised NOSPACE
// (etcd.io/docs/v3.7/op-guide/maintenance).
func recoverEtcd(t *testing.T, etcd *servers.Etcd) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.URL}, DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	status, err := client.Status(t.Context(), etcd.URL)
	if err == nil {
		_, err = client.Compact(t.Context(), status.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = client.Defragment(t.Context(), etcd.URL)
	}
	if err == nil {
		_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// await repeats a request until its answer has a status.
func (p *peer) await(t *testing.T, status int, r request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.expect(ctx, status, r)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(errors.Join(err, ctx.Err()))
		}
	}
}
