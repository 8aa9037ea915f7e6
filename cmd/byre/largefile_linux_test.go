package main

import (
	stdsql "database/sql"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// fillerRows is how many rows growFile begins with.
const fillerRows = 4 << 20

// growFile doubles a table of its own in a database. The first time it makes it.
func growFile(t *testing.T, path string) {
	t.Helper()
	db, err := stdsql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec := func(statement string) int64 {
		t.Helper()
		result, err := db.ExecContext(t.Context(), statement)
		if err != nil {
			t.Fatal(err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec(`CREATE TABLE IF NOT EXISTS filler (n INTEGER NOT NULL, x TEXT NOT NULL)`)
	if exec(`INSERT INTO filler SELECT n, x FROM filler`) == 0 {
		exec(fmt.Sprintf(`INSERT INTO filler
WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < %d) SELECT n, 'some text' FROM c`, fillerRows))
	}
	exec(`PRAGMA wal_checkpoint(TRUNCATE)`)
}

// TestServe_ChecksALargeFileWhileItServes crashes a server with a file whose check takes longer than a start. The next
// one serves before the check is complete, and tells whether the file is sound when it knows. How large such a file is
// depends on the machine and on what else it does: the file grows until a check takes longer, and once more for the
// crash that follows.
func TestServe_ChecksALargeFileWhileItServes(t *testing.T) {
	night(t) // sqlite.InspectAfterCrash has short tests
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "byre.db")
	startServer(t, dir, "--controllers=").stop(t)
	crash := func(p *serverProcess, name string) {
		t.Helper()
		createConfigMap(t, kubernetes.NewForConfigOrDie(p.config(t)).CoreV1().ConfigMaps("default"), name)
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	// serve starts a server after a crash, and waits for the end of the check. It returns whether it has served
	// before that.
	serve := func(end, metric string) (p *serverProcess, isEarly bool) {
		t.Helper()
		p = startServer(t, dir, "--controllers=")
		configMaps := kubernetes.NewForConfigOrDie(p.config(t)).CoreV1().ConfigMaps("default")
		if _, err := configMaps.Get(t.Context(), "0", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		const began = "the database file is checked while it is served"
		if !strings.Contains(p.log.String(), began) { // the check was complete before
			return p, false
		}
		storetest.Eventually(t, end, func() bool { return strings.Contains(p.log.String(), end) })
		if code, metrics := p.mustGet(t, "/metrics"); code != 200 || !strings.Contains(metrics, "\n"+metric) {
			t.Errorf("/metrics answers %d without %q", code, metric)
		}
		log := p.log.String()
		served := strings.Index(log, serving)
		return p, strings.Index(log, began) < served && served < strings.Index(log, end)
	}
	for n := 0; ; n++ {
		if n == 5 {
			t.Fatal("a start waits for the check of a file, however large it is")
		}
		growFile(t, path)
		crash(startServer(t, dir, "--controllers="), fmt.Sprint(n))
		p, isEarly := serve("The database file is sound", "byre_store_damaged 0\n")
		p.stop(t)
		if isEarly {
			break
		}
	}
	growFile(t, path)
	crash(startServer(t, dir, "--controllers="), "last")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(make([]byte, 8*4096), info.Size()/4096*3/4*4096); err != nil { // pages of the filler
		t.Fatal(err)
	}
	p, isEarly := serve("The database file is damaged", "byre_store_damaged 1\n")
	if !isEarly {
		t.Error("it has not served before the check was complete")
	}
	createConfigMap(t, kubernetes.NewForConfigOrDie(p.config(t)).CoreV1().ConfigMaps("default"),
		"written-to-a-damaged-file")
}

// TestTakeover_OfALargeDatabase measures how long clients can't write, with BYRE_TAKEOVER ConfigMaps of 8 KB.
func TestTakeover_OfALargeDatabase(t *testing.T) {
	objects, err := strconv.Atoi(os.Getenv("BYRE_TAKEOVER"))
	if err != nil {
		t.Skip("measures with BYRE_TAKEOVER=200000")
	}
	a, b := pair(t)
	loadConfigMaps(t, filepath.Join(a.dir, "byre.db"), objects)
	info, err := os.Stat(filepath.Join(a.dir, "byre.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the database has %d MB", info.Size()/1e6)
	await := func(what string, began time.Time, isTrue func() bool) {
		t.Helper()
		for !isTrue() {
			if time.Since(began) > 8*time.Minute {
				t.Fatalf("not within 8 minutes: %s", what)
			}
			time.Sleep(20 * time.Millisecond) //nolint:forbidigo // it measures
		}
		t.Logf("%s after %.1f s", what, time.Since(began).Seconds())
	}
	ready := func(m *machine) func() bool { return func() bool { m.mustRun(t); return m.ready(t.Context()) } }
	follows := func(m *machine) func() bool {
		return func() bool { m.mustRun(t); return strings.Contains(m.log.String(), "and this server has a copy") }
	}
	began := time.Now()
	a.serve(t)
	await("the first one is ready", began, ready(a))
	b.serve(t)
	await("the standby has a copy", began, follows(b))
	began = time.Now()
	command := b.run(t, "takeover", "--replicate-to", sharedURL, "--yes")
	await("byre takeover: the standby is ready", began, ready(b))
	createConfigMap(t, b.configMaps(t), "after-the-takeover")
	t.Logf("byre takeover: a write is done after %.1f s", time.Since(began).Seconds())
	<-command.exited
	<-a.exited
	began = time.Now()
	a.serve(t)
	await("the old one has a copy", began, follows(a))
	await("its copy is complete", began, func() bool { // until then the standby waits for it
		_, metrics := b.mustGet(t, "/metrics")
		return gauge(metrics, "byre_replication_lag_seconds") == 0 &&
			gauge(metrics, "byre_replication_last_success_timestamp_seconds") > 0
	})
	began = time.Now()
	await("the lease says so", began, func() bool { return time.Since(began) > 7*time.Second }) // two renewals
	began = time.Now()
	_ = b.cmd.Process.Kill()
	await("kill -9: the standby is ready", began, ready(a))
	createConfigMap(t, a.configMaps(t), "after-the-crash")
	t.Logf("kill -9: a write is done after %.1f s", time.Since(began).Seconds())
	began = time.Now()
	b.serve(t)
	await("the killed one has a copy", began, follows(b))
}

// loadConfigMaps makes a database of ConfigMaps of 8 KB that can't be compressed by much.
func loadConfigMaps(t *testing.T, path string, n int) {
	t.Helper()
	content, random := rand.NewChaCha8([32]byte{}), make([]byte, 4000)
	now := time.Now().UTC().Truncate(time.Microsecond)
	if err := sqlite.Load(t.Context(), path, sqlstore.Snapshot{
		Header: sqlstore.Header{Revision: int64(n), Compacted: int64(n), CompleteAfter: int64(n),
			Epoch: "loaded", Time: now, ObjectCount: int64(n)},
		Objects: func(yield func(*sqlstore.ObjectRow, error) bool) {
			for i := range n {
				_, _ = content.Read(random)
				name, uid := fmt.Sprintf("large-%06d", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
				value := fmt.Sprintf(
					`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":%q,"creationTimestamp":"2026-01-01T00:00:00Z"},"data":{"x":"%s"}}`,
					name, uid, hex.EncodeToString(random))
				row := &sqlstore.ObjectRow{Time: now, Author: sqlstore.Author{User: "test", Verb: "create"},
					Record: sqlstore.Record{
						Key: sqlstore.Key{Resource: "configmaps", Namespace: "default", Name: name}, UID: uid,
						Created: int64(i) + 1, Revision: int64(i) + 1, Value: []byte(value),
					}}
				if !yield(row, nil) {
					return
				}
			}
		},
		Changes: func(func(*sqlstore.ChangeRow, error) bool) {},
	}); err != nil {
		t.Fatal(err)
	}
}
