package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestControlPlanes_ShareOnePostgres runs several byre processes on one PostgreSQL, with a
// schema each. One of them is dumped, dropped and restored as docs/operations/postgresql.md says, while
// the others are written to. E2E_CONTROL_PLANES says how many there are; the log has what each
// costs.
func TestControlPlanes_ShareOnePostgres(t *testing.T) {
	programs.Night(t)
	t.Parallel()
	n := 4
	if text := os.Getenv("E2E_CONTROL_PLANES"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 2 {
			t.Fatalf("E2E_CONTROL_PLANES is %q, not a number from 2", text)
		}
	}
	db := openDatabase(t, "postgres")
	planes := make([]*controlPlane, n)
	for i := range planes {
		planes[i] = newControlPlane(t, db, i)
	}
	t.Cleanup(func() {
		for _, p := range planes {
			if p.server == nil {
				continue
			}
			if err := p.server.Stop(); err != nil {
				t.Errorf("%s ended with: %v", p.schema, err)
			}
		}
	})
	began := time.Now()
	each(t, n, func(ctx context.Context, i int) error { return planes[i].start(ctx) })
	t.Logf("%d control planes were ready %v after they were started at once", n, time.Since(began).Round(time.Millisecond))

	each(t, n, func(ctx context.Context, i int) error {
		return createConfigMap(ctx, planes[i].client(t), "default", planes[i].schema)
	})
	for _, p := range planes {
		p.expectOwn(t)
	}
	awaitIdleConnections(t, db, planes)
	logMemory(t, planes)

	// The first one is moved, the others are written to meanwhile.
	moved, others := planes[0], planes[1:]
	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for _, p := range others {
		c := p.client(t)
		writers.Go(func() {
			for i := 0; writing.Err() == nil; i++ {
				if err := createConfigMap(writing, c, "kube-public", fmt.Sprint("written-", i)); err != nil &&
					writing.Err() == nil {
					t.Errorf("%s, while another one is moved: %v", p.schema, err)
					return
				}
			}
		})
	}
	moved.dumpDropAndRestore(t, db)
	stop()
	writers.Wait()
	for _, p := range planes {
		p.expectOwn(t)
	}
}

// controlPlane is a byre process with a schema of its own.
type controlPlane struct {
	schema string
	byre   servers.Byre
	server *servers.Server
}

func newControlPlane(t *testing.T, db database, i int) *controlPlane {
	schema := fmt.Sprintf("tenant%d", i)
	return &controlPlane{schema: schema, byre: servers.Byre{
		Dir:      filepath.Join(t.TempDir(), "data"),
		Endpoint: db.endpoint + "&pool_max_conns=4&application_name=" + schema,
		Args:     []string{"--database-schema", schema},
	}}
}

func (p *controlPlane) start(ctx context.Context) (err error) {
	p.server, err = p.byre.Start(ctx)
	return err
}

func (p *controlPlane) stop(t *testing.T) {
	t.Helper()
	if err := p.server.Stop(); err != nil {
		t.Fatalf("%s ended with: %v", p.schema, err)
	}
	p.server = nil
}

// expectOwn expects that there is the ConfigMap of this control plane, and of no other.
func (p *controlPlane) expectOwn(t *testing.T) {
	t.Helper()
	list, err := p.client(t).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, cm := range list.Items {
		if cm.Name != "kube-root-ca.crt" {
			found = append(found, cm.Name)
		}
	}
	if len(found) != 1 || found[0] != p.schema {
		t.Errorf("%s has %q", p.schema, found)
	}
}

// awaitIdleConnections waits until each control plane has at most four connections.
func awaitIdleConnections(t *testing.T, db database, planes []*controlPlane) {
	t.Helper()
	most := 0
	storetest.EventuallySucceeds(t, "four connections each", func() error {
		lines, err := db.query(
			`SELECT application_name, count(*)::text FROM pg_stat_activity WHERE application_name LIKE 'tenant%' GROUP BY 1 ORDER BY 1`)
		if err != nil {
			return err
		}
		if len(lines) != len(planes) {
			return fmt.Errorf("connections of %d control planes: %q", len(lines), lines)
		}
		most = 0
		for _, line := range lines {
			var name string
			var count int
			if _, err := fmt.Sscan(line, &name, &count); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			if count > 4 {
				return fmt.Errorf("%s has %d connections", name, count)
			}
			most = max(most, count)
		}
		return nil
	})
	t.Logf("connections of an idle one: at most %d", most)
}

func logMemory(t *testing.T, planes []*controlPlane) {
	t.Helper()
	var all, files int64
	for _, p := range planes {
		usage, err := p.server.Usage()
		if err != nil {
			t.Fatal(err)
		}
		all += usage.Memory
		files += usage.FileMemory
	}
	n := int64(len(planes))
	t.Logf("memory of one: %d MB on average, of them %d MB pages of the program's file", all/n>>20, files/n>>20)
}

// dumpDropAndRestore does with PostgreSQL's tools what docs/operations/postgresql.md says.
func (p *controlPlane) dumpDropAndRestore(t *testing.T, db database) {
	t.Helper()
	p.stop(t)
	dump := filepath.Join(t.TempDir(), "tenant.dump")
	runPostgresTool(t, "pg_dump", "--schema="+p.schema, "--format=custom", "--file="+dump, db.endpoint)
	if _, err := db.query(`DROP SCHEMA ` + p.schema + ` CASCADE`); err != nil {
		t.Fatal(err)
	}
	runPostgresTool(t, "pg_restore", "--dbname="+db.endpoint, dump)
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func runPostgresTool(t *testing.T, name string, args ...string) {
	t.Helper()
	program, err := pgtest.Program(name)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func (p *controlPlane) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	return client(t, p.server)
}
