package main

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}

// The copy that a database's own tool makes is a whole store; restore turns it into one
// that clients can continue with.
func TestRestore_FromCopiesOfTheDatabasesTools(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(13, 13)))
	first := sqliteWith(t, rows)
	path := strings.TrimPrefix(first, "sqlite://")
	dir := t.TempDir()
	// byre has the file open while the tool copies it.
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tool(t, "sqlite3", path, "VACUUM INTO '"+filepath.Join(dir, "vacuumed.db")+"'")
	tool(t, "sqlite3", path, ".backup '"+filepath.Join(dir, "backup.db")+"'")
	driver.Close()

	dumped, restored := pgtest.DSN(t), pgtest.DSN(t)
	succeed(t, "copy", "--from", first, "--to", dumped)
	dump, err := pgtest.Program("pg_dump")
	if err != nil {
		t.Fatal(err)
	}
	restore, err := pgtest.Program("pg_restore")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "byre.dump")
	tool(t, dump, "--format=custom", "--file", archive, dumped)
	tool(t, restore, "--no-owner", "--exit-on-error", "--dbname", restored, archive)

	want, wantHeader := digestOf(t, first)
	for _, endpoint := range []string{"sqlite://" + filepath.Join(dir, "vacuumed.db"), "sqlite://" + filepath.Join(dir, "backup.db"), restored} {
		if got, header := digestOf(t, endpoint); got != want || !reflect.DeepEqual(header, wantHeader) {
			t.Errorf("%s: %v, %+v; want %v, %+v", endpoint, got, header, want, wantHeader)
		}
		if state, err := migrations.Status(t.Context(), endpoint); err != nil || state.Current != state.Latest {
			t.Errorf("%s: schema %+v, %v", endpoint, state, err)
		}
		target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
		succeed(t, "restore", "--endpoint", target, "--from", endpoint)
		if got, header := digestOf(t, target); got != restoredDigest(t, rows.Snapshot()) || header.Revision != rows.Revision+bumpRevision {
			t.Errorf("restored from %s: %v, %+v", endpoint, got, header)
		}
	}
}

// A server on a restored database has the history of before for SQL, also where it has become older than
// its retention meanwhile, and nothing resumes into it. The database passes "byre check". Each kind of database is
// restored to the other one.
func TestRestore_HistoryIsForSQL(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir, file := t.TempDir(), filepath.Join(t.TempDir(), "byre.zst")
		first := startServer(t, dir, append([]string{"--controllers=", "--compaction-interval=100ms"}, flags...)...)
		configMaps := kubernetes.NewForConfigOrDie(first.config(t)).CoreV1().ConfigMaps("default")
		made, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := configMaps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		endpoint := "sqlite://" + dir + "/byre.db"
		if len(flags) > 0 {
			endpoint = flags[1]
		}
		storetest.EventuallyDone(t, "the retention is recorded", func(context.Context) (bool, error) {
			_, retainedFor := changesOf(t, endpoint, "configmaps")
			return retainedFor == 7*24*time.Hour, nil
		})
		want, _ := changesOf(t, endpoint, "configmaps")
		succeed(t, "backup", "--endpoint", endpoint, file)
		first.stop(t)
		for name, target := range emptyDatabases(t) {
			if strings.HasPrefix(endpoint, name) {
				continue
			}
			succeed(t, "restore", "--endpoint", target, file)
			succeed(t, "check", "--endpoint", target)
			// With a retention of a second, all of the history is older.
			second := startServer(t, dir, "--controllers=", "--compaction-interval=100ms", "--retention=1s", "--endpoint", target)
			configMaps := kubernetes.NewForConfigOrDie(second.config(t)).CoreV1().ConfigMaps("default")
			at := metav1.ListOptions{ResourceVersion: made.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
			if _, err := configMaps.List(t.Context(), at); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: list at a revision of before: %v", name, err)
			}
			watching, err := configMaps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
			if err == nil {
				event := <-watching.ResultChan()
				err = apierrors.FromObject(event.Object)
				watching.Stop()
			}
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: watch from a revision of before: %v", name, err)
			}
			storetest.EventuallyDone(t, "the log has what will be deleted", func(context.Context) (bool, error) {
				return strings.Contains(second.log.String(), `kept for longer before`), nil
			})
			if got, _ := changesOf(t, target, "configmaps"); got < want || want < 2 {
				t.Errorf("%s: %d changes of ConfigMaps are in the history, want %d", name, got, want)
			}
			second.stop(t)
		}
	})
}
