package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// Some seconds after the last commit the file alone has everything, as cp copies it.
func TestMaintain_CopiesTheLogBackWhenIdle(t *testing.T) {
	t.Parallel()
	path, copied := migrated(t), filepath.Join(t.TempDir(), "byre.db")
	synctest.Test(t, func(t *testing.T) {
		driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer driver.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var maintenance sync.WaitGroup
		maintenance.Go(func() {
			if err := driver.Maintain(ctx); err != nil {
				t.Error(err)
			}
		})
		defer maintenance.Wait()
		defer cancel()
		commitPods(t, driver, "a", "b")
		objects := func() (count int64) {
			content, err := os.ReadFile(path)
			if err := errors.Join(err, os.WriteFile(copied, content, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := sqlite.ReadSnapshot(t.Context(), copied, func(s sqlstore.Snapshot) error {
				count = s.ObjectCount
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return count
		}
		if n := objects(); n != 0 {
			t.Errorf("a copy of the file alone has %d objects at once: this test tests nothing", n)
		}
		time.Sleep(10 * time.Second) // of the bubble's clock
		synctest.Wait()
		if n := objects(); n != 2 {
			t.Errorf("after ten seconds a copy of the file alone has %d objects of 2", n)
		}
	})
}

// Maintain copies the log back while others write and read. The log does not grow much beyond
// Options.LogPages.
func TestWAL_IsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Parallel()
	driver, path := openWith(t, 256)
	ctx, cancel := context.WithCancel(t.Context())
	var maintenance sync.WaitGroup
	maintenance.Go(func() {
		if err := driver.Maintain(ctx); err != nil {
			t.Error(err)
		}
	})
	value := []byte(`"` + strings.Repeat("x", 5000) + `"`)
	for i := range 1500 {
		key := sqlstore.Key{Resource: "pods", Namespace: "n", Name: strconv.Itoa(i)}
		o, err := driver.Commit(ctx, []sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: value}})
		if err != nil || o[0].Err != nil {
			t.Fatal(err, o)
		}
		if _, _, err := driver.Get(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	// A checkpoint that a slow disk holds up lets the log grow; a later commit shortens it.
	later := 0
	storetest.EventuallyDone(t, "the log is short", func(ctx context.Context) (bool, error) {
		info, err := os.Stat(path + "-wal")
		if err != nil || info.Size() <= 4*256*4096 {
			return err == nil, err
		}
		later++
		key := sqlstore.Key{Resource: "pods", Namespace: "later", Name: strconv.Itoa(later)}
		_, err = driver.Commit(ctx, []sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: value}})
		return false, err
	})
	cancel()
	maintenance.Wait()
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// A reader that stays in a transaction keeps the log from being copied back. Its age and the size of the log are
// measured, one line of the log says what to do, and the quota counts the log. All of that ends with the reader.
func TestWAL_OfAReaderThatStaysIsAnAlarm(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	path := migrated(t)
	driver, err := sqlite.Open(t.Context(), path,
		sqlite.Options{LogPages: 64, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer closeDriver(t, driver)
	n := 0
	write := func(times int) {
		t.Helper()
		for range times {
			n++
			if err := commits(t, driver, fmt.Sprint(n), 50_000); err != nil {
				t.Fatal(err)
			}
			if err := driver.MaintainOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	space := func() sqlstore.Space {
		t.Helper()
		s, err := driver.Space()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	free := func() int64 { // what is used beyond the pages of the file
		t.Helper()
		used, err := driver.Used(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var pages int64
		if err := foreign(t, path).QueryRowContext(t.Context(),
			`SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count`).Scan(&pages); err != nil {
			t.Fatal(err)
		}
		return used - pages*4096
	}
	write(20)
	if s := space(); s.LogLimit != 64*4096 || s.Log >= 2*s.LogLimit || s.Reader != 0 || s.Free <= 0 || free() != 0 {
		t.Errorf("without a reader: %+v, and %d bytes of the log count", s, free())
	}
	reader := foreign(t, path)
	execute(t, reader, `BEGIN; SELECT * FROM store`)
	write(20)
	if s := space(); s.Log < 2*s.LogLimit || s.Reader <= 0 || free() != s.Log-s.LogLimit {
		t.Errorf("with a reader: %+v, and %d bytes of the log count", s, free())
	}
	if lines := strings.Count(log.String(), "a reader stays in a transaction"); lines != 1 {
		t.Errorf("%d lines say so: %s", lines, log.String())
	}
	execute(t, reader, `ROLLBACK`)
	write(2)
	if s := space(); s.Log >= 2*s.LogLimit || s.Reader != 0 || free() != 0 {
		t.Errorf("after the reader: %+v, and %d bytes of the log count", s, free())
	}
	if lines := strings.Count(log.String(), "the write-ahead log is short again"); lines != 1 {
		t.Errorf("%d lines say so: %s", lines, log.String())
	}
}

// On a full disk the log gives up its space, for the reserve.
func TestWAL_IsTruncatedOnAFullDisk(t *testing.T) {
	t.Parallel()
	driver := openReserving(t, migrated(t), 1<<20)
	defer closeDriver(t, driver)
	for i := range 20 {
		if err := commits(t, driver, fmt.Sprint(i), 50_000); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, driver)
	if err := driver.MaintainOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := driver.Space()
	if err != nil || s.Log != 0 || s.NeededFree != 1<<20+1<<17 || s.IsReserveMissing {
		t.Errorf("%+v, %v", s, err)
	}
}

// A start on a disk without a free page says that the disk is full.
func TestOpen_SaysThatTheDiskIsFull(t *testing.T) {
	disk := pgtest.NewDisk(t, 96)
	path := filepath.Join(disk.Dir, "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err == nil {
		t.Fatal("it opens", driver.Close())
	}
	if sqlstore.Public(err) != "the disk is full" || !strings.Contains(err.Error(), "free a megabyte on its file system") {
		t.Error(err)
	}
}

// A file of which most is free is written anew. It is the same database.
func TestRewrite_ReturnsTheSpaceOfTheFile(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	defer closeDriver(t, driver)
	for i := range 20 {
		if err := commits(t, driver, fmt.Sprint(i), 50_000); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 19 {
		for j := range 2 {
			key := sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: fmt.Sprintf("%d-%d", i, j+1)}
			commitOne(t, driver, sqlstore.Write{Op: sqlstore.Delete, Key: key, Replaces: int64(2*i + j + 1)})
		}
	}
	const all = 2 * (20 + 19)
	if deleted, _, err := driver.DeleteHistory(t.Context(),
		sqlstore.Deletion{Of: sqlstore.Resource{Resource: "configmaps"}, UpTo: all, Limit: all}); err != nil ||
		deleted != all {
		t.Fatal(deleted, err)
	}
	if err := driver.Rewrite(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > 500_000 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	if err := driver.Rewrite(t.Context()); err != nil { // there is nothing to do
		t.Error(err)
	}
	if err := commits(t, driver, "after", 10); err != nil {
		t.Error(err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != all+2 {
		t.Errorf("%+v, %v", state, err)
	}
	if got, _, err := driver.Get(t.Context(),
		sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: "19-1"}); err != nil || len(got.Value) != 50_002 {
		t.Errorf("an object: %d bytes, %v", len(got.Value), err)
	}
}

// An update of a small object, such as the renewal of a Lease, writes the page of its row, that
// of its change, and that of its key in the index of changes, and few others.
func TestUpdate_WritesFewPages(t *testing.T) {
	t.Parallel()
	driver, _ := open(t)
	defer driver.Close()
	const nodes, rounds = 20, 20
	revisions := make([]int64, nodes)
	commit := func(i int, op sqlstore.Op) {
		t.Helper()
		o, err := driver.Commit(t.Context(), []sqlstore.Write{{
			Op: op, Replaces: revisions[i], UID: "8cd0c3a4-4a8e-4d05-a3f3-6f5bb1d3d6a6",
			Encoding: "v1.36/coordination.k8s.io/v1",
			Key: sqlstore.Key{Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-node-lease",
				Name: "node-" + strconv.Itoa(i)},
			Value:  []byte(`{"spec":"` + strings.Repeat("x", 600) + `"}`),
			Author: sqlstore.Author{User: "system:node:node-" + strconv.Itoa(i), Verb: "update"},
		}})
		if err != nil || o[0].Err != nil {
			t.Fatal(o, err)
		}
		revisions[i] = o[0].Revision
	}
	for i := range nodes {
		commit(i, sqlstore.Create)
	}
	before := logPages(t, driver)
	for range rounds {
		for i := range nodes {
			commit(i, sqlstore.Update)
		}
	}
	if pages := float64(logPages(t, driver)-before) / (nodes * rounds); pages > 5 {
		t.Errorf("an update writes %.2f pages to the log, want at most 5", pages)
	} else {
		t.Logf("an update writes %.2f pages to the log", pages)
	}
}

// Maintain copies the log back when it is long, and not after each commit.
func TestMaintain_LeavesAShortLog(t *testing.T) {
	t.Parallel()
	driver, _ := openWith(t, 1000)
	defer driver.Close()
	for copied, i := 0, 0; copied == 0; i++ {
		if err := commits(t, driver, strconv.Itoa(i), 100_000); err != nil {
			t.Fatal(err)
		}
		pages := logPages(t, driver)
		if err := driver.MaintainOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, copied = driver.Log(t.Context())
		if long := pages >= 1000*2/3; long != (copied > 0) {
			t.Fatalf("%d pages of a log of %d are copied back", copied, pages)
		}
	}
}

func logPages(t *testing.T, driver *sqlite.Driver) int {
	t.Helper()
	pages, _ := driver.Log(t.Context())
	return pages
}

// State is answered from memory. A Probe reads the file and notices if it was deleted or
// replaced.
func TestProbe_NoticesALostFile(t *testing.T) {
	t.Parallel()
	overwrite := func(t *testing.T, path string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"none": nil,
		"removed": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"replaced": func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path+".copy", data, 0o600)
			}
			if err == nil {
				err = os.Rename(path+".copy", path)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"overwritten": overwrite,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, path := open(t)
			defer driver.Close()
			outcomes, err := driver.Commit(t.Context(), []sqlstore.Write{{
				Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "x"}, Value: []byte(`{}`),
			}})
			if err != nil || outcomes[0].Err != nil {
				t.Fatal(err, outcomes)
			}
			checkpoint(t, path)
			if err := driver.Probe(t.Context()); err != nil {
				t.Fatalf("an undamaged file: %v", err)
			}
			if damage == nil {
				return
			}
			damage(t, path)
			if _, err := driver.State(t.Context()); err != nil {
				t.Fatalf("state: %v", err)
			}
			if err := driver.Probe(t.Context()); err == nil {
				t.Error("nothing is noticed")
			} else if name != "overwritten" && !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
}

// checkpoint copies the log back into the file, so that reads use the file.
func checkpoint(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkProbe(b *testing.B) {
	driver, _ := open(b)
	defer driver.Close()
	for b.Loop() {
		if err := driver.Probe(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
