package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/cluster"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// restoredObjects is how many objects TestRestore makes, at least;
// E2E_BACKUP_OBJECTS=20000 is the long form.
func restoredObjects() int {
	n, err := strconv.Atoi(os.Getenv("E2E_BACKUP_OBJECTS"))
	if err != nil {
		return 300
	}
	return n
}

// byreCommand runs a command of byre that must succeed.
func byreCommand(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), programs.Byre.Path(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("byre %q: %v: %s", args, err, out)
	}
	return string(out)
}

// TestRestore_InformersConverge restores a backup, while clients watch all resources, into
// a database of the other kind. Every object is what it was when the backup was made; the
// informers, which have seen later changes, converge by themselves to a fresh list, and
// see what is written from then on.
func TestRestore_InformersConverge(t *testing.T) {
	t.Parallel()
	for first, second := range map[string]string{"sqlite": "postgres", "postgres": "sqlite"} {
		t.Run(first+" to "+second, func(t *testing.T) {
			t.Parallel()
			testRestore(t, openDatabase(t, first), openDatabase(t, second))
		})
	}
}

func testRestore(t *testing.T, first, second database) {
	byre := servers.Byre{Dir: filepath.Join(t.TempDir(), "data"), Endpoint: first.endpoint,
		Args: []string{"--controllers="}}
	server, err := byre.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	c := newRestoreClient(t, server)
	count := c.Fill(t, restoredObjects())
	want := c.Dump(t)

	file := filepath.Join(t.TempDir(), "byre.zst")
	began := time.Now()
	t.Log(byreCommand(t, "backup", "--endpoint", first.endpoint, file))
	took := time.Since(began)

	stores := c.inform(t)
	c.change(t)
	awaitStores(t, c, stores) // the informers have seen what is about to be lost

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	restoring := time.Now()
	t.Log(byreCommand(t, "restore", "--endpoint", second.endpoint, file))
	t.Logf("%d objects: backup in %v, restore in %v", count, took, time.Since(restoring))
	byre.Endpoint = second.endpoint
	serveRestored(t, byre, c)
	compareDumps(t, want, c.Dump(t), count)
	awaitStores(t, c, stores)
	c.change(t)
	awaitStores(t, c, stores)
}

// serveRestored starts byre on what was restored, and has the client find it.
func serveRestored(t *testing.T, byre servers.Byre, c *restoreClient) {
	t.Helper()
	server, err := byre.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	c.address.Store(strings.TrimPrefix(server.URL, "https://"))
}

// TestSQLiteBackup_InformersConverge copies the file of a byre that serves by the shell's
// ".backup", as docs/operations/backup.md says, and restores the copy. Informers that have seen
// later changes converge by themselves.
func TestSQLiteBackup_InformersConverge(t *testing.T) {
	programs.Night(t)
	t.Parallel()
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "byre.db"), filepath.Join(dir, "copy.db")
	byre := servers.Byre{Dir: filepath.Join(dir, "data"), Endpoint: "sqlite://" + path, Args: []string{"--controllers="}}
	server, err := byre.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	c := newRestoreClient(t, server)
	count := c.Fill(t, 100)
	want := c.Dump(t)
	if out, err := exec.CommandContext(t.Context(), "sqlite3", path, ".backup '"+copied+"'").CombinedOutput(); err != nil {
		t.Fatalf("sqlite3: %v: %s", err, out)
	}
	stores := c.inform(t)
	c.change(t)
	awaitStores(t, c, stores) // the informers have seen what is about to be lost
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}

	byreCommand(t, "check", "--endpoint", "sqlite://"+copied)
	byre.Endpoint = "sqlite://" + filepath.Join(dir, "restored.db")
	byreCommand(t, "restore", "--from", "sqlite://"+copied, "--endpoint", byre.Endpoint)
	serveRestored(t, byre, c)
	compareDumps(t, want, c.Dump(t), count)
	awaitStores(t, c, stores)
	c.change(t)
	awaitStores(t, c, stores)
}

// compareDumps compares what was backed up with what is there, of at least count objects.
// What byre has written since then has a revision beyond those of the backup.
func compareDumps(t *testing.T, want, got map[string]*unstructured.Unstructured, count int) {
	t.Helper()
	last := int64(0)
	for _, object := range want {
		revision, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, revision)
	}
	cluster.Compare(t, want, got, last)
	if len(want) < count {
		t.Errorf("compared %d objects, made %d", len(want), count)
	}
}

// awaitStores waits until each informer's store has what a fresh list has.
func awaitStores(t *testing.T, c *restoreClient, stores map[schema.GroupVersionResource]cache.Store) {
	t.Helper()
	for resource, store := range stores {
		storetest.EventuallySucceeds(t, "the informer of "+resource.String(), func() error {
			want, got := map[string]string{}, map[string]string{}
			for _, object := range c.list(t, resource) {
				want[object.GetNamespace()+"/"+object.GetName()] = object.GetResourceVersion()
			}
			for _, object := range store.List() {
				u := object.(*unstructured.Unstructured)
				got[u.GetNamespace()+"/"+u.GetName()] = u.GetResourceVersion()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return errors.New(diff)
			}
			return nil
		})
	}
}

// TestRestore_KilledLeavesNothingHalfDone kills backups and restores at random moments. The
// file of a backup is then complete or absent. A restored database is complete or empty; an
// empty one can be restored into again.
func TestRestore_KilledLeavesNothingHalfDone(t *testing.T) {
	programs.Night(t)
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(11, 11)))
	for i := range 5000 { // so that it takes a moment
		revision := rows.Revision + int64(i) + 1
		rows.Objects = append(rows.Objects, &sqlstore.ObjectRow{
			Record: sqlstore.Record{
				Key:     sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: fmt.Sprint(i)},
				Created: revision, Revision: revision, Value: fmt.Appendf(nil, "%q", strings.Repeat(fmt.Sprint(rand.Int()), 100)),
			},
			Time: rows.Time,
		})
	}
	rows.Revision += 5000
	rows.ObjectCount = int64(len(rows.Objects))
	rows.Compacted, rows.Changes = rows.Revision, nil
	first := filepath.Join(t.TempDir(), "byre.db")
	if err := sqlite.Load(t.Context(), first, rows.Snapshot()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "byre.zst")
	byreCommand(t, "backup", "--endpoint", "sqlite://"+first, file)
	whole := time.Now()
	byreCommand(t, "restore", "--endpoint", "sqlite://"+filepath.Join(t.TempDir(), "byre.db"), file)
	took := time.Since(whole)
	for _, share := range []float64{0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9} {
		after := time.Duration(share * float64(took))
		again := filepath.Join(t.TempDir(), "again.zst")
		killed := killAfter(t, after, "backup", "--endpoint", "sqlite://"+first, again)
		if _, err := os.Stat(again); err == nil {
			byreCommand(t, "restore", "--endpoint", "sqlite://"+filepath.Join(t.TempDir(), "byre.db"), again)
		} else if !killed {
			t.Errorf("a backup that ended left %v", err)
		}
		for _, target := range []string{"sqlite://" + filepath.Join(t.TempDir(), "byre.db"), pgtest.DSN(t)} {
			killed := killAfter(t, after, "restore", "--endpoint", target, file)
			if objects := countRestored(t, target); objects != 0 && objects != rows.ObjectCount {
				t.Errorf("%d of %d objects after a restore that was killed (%v) after %v", objects, rows.ObjectCount, killed, after)
			} else if objects == 0 {
				// PostgreSQL may take a moment to notice that the client has gone, or to do
				// the COMMIT that it has sent.
				storetest.EventuallySucceeds(t, "another restore", func() error {
					if countRestored(t, target) == rows.ObjectCount {
						return nil
					}
					return exec.CommandContext(t.Context(), programs.Byre.Path(), "restore", "--endpoint", target, file).Run()
				})
			}
		}
	}
}

// killAfter kills a command of byre, unless it has ended.
func killAfter(t *testing.T, after time.Duration, args ...string) (killed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	err := exec.CommandContext(ctx, programs.Byre.Path(), args...).Run()
	return err != nil
}

// countRestored counts the objects of a database, 0 where there is none.
func countRestored(t *testing.T, endpoint string) (objects int64) {
	t.Helper()
	read := func(s sqlstore.Snapshot) error {
		digest, err := backup.DigestOf(s)
		objects = digest.Objects
		return err
	}
	path, isFile := strings.CutPrefix(endpoint, "sqlite://")
	if !isFile {
		if rows, err := queryPostgres(t.Context(), endpoint,
			"SELECT count(*) FROM pg_tables WHERE tablename = 'byre_schema_version'"); err != nil {
			t.Fatal(err)
		} else if !slices.Equal(rows, []string{"0"}) {
			// The server may still be ending the killed session's transaction, in which
			// the store holds nothing.
			if err := postgres.ReadSnapshot(t.Context(), endpoint, read); err != nil {
				t.Fatal(err)
			}
		}
		return objects
	}
	if _, err := os.Stat(path); err == nil {
		if err := sqlite.ReadSnapshot(t.Context(), path, read); err != nil {
			t.Fatal(err)
		}
	}
	return objects
}
