package sqlite_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
)

// A reader that stays in a transaction keeps the log from being copied back. Its age and the size of the log are
// measured, one line of the log says what to do, and the quota counts the log. All of that ends with the reader.
func TestWAL_OfAReaderThatStaysIsAnAlarm(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	path := migrated(t)
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{LogPages: 64, Logger: slog.New(slog.NewTextHandler(&log, nil))})
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
		if err := foreign(t, path).QueryRowContext(t.Context(), `SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count`).Scan(&pages); err != nil {
			t.Fatal(err)
		}
		return used - pages*4096
	}
	write(20)
	if s := space(); s.LogLimit != 64*4096 || s.IsLogLong() || s.Reader != 0 || s.Free <= 0 || free() != 0 {
		t.Errorf("without a reader: %+v, and %d bytes of the log count", s, free())
	}
	reader := foreign(t, path)
	execute(t, reader, `BEGIN; SELECT * FROM store`)
	write(20)
	if s := space(); !s.IsLogLong() || s.Reader <= 0 || free() != s.Log-s.LogLimit {
		t.Errorf("with a reader: %+v, and %d bytes of the log count", s, free())
	}
	if lines := strings.Count(log.String(), "a reader stays in a transaction"); lines != 1 {
		t.Errorf("%d lines say so: %s", lines, log.String())
	}
	execute(t, reader, `ROLLBACK`)
	write(2)
	if s := space(); s.IsLogLong() || s.Reader != 0 || free() != 0 {
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
	if deleted, _, err := driver.DeleteHistory(t.Context(), sqlstore.Deletion{Of: sqlstore.Resource{Resource: "configmaps"}, UpTo: all, Limit: all}); err != nil || deleted != all {
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
	if got, _, err := driver.Get(t.Context(), sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: "19-1"}); err != nil || len(got.Value) != 50_002 {
		t.Errorf("an object: %d bytes, %v", len(got.Value), err)
	}
}
