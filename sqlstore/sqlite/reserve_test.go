package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/bucket"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// tooLarge is a reserve that no disk has space for.
const tooLarge = 1 << 60

func openReserving(t *testing.T, path string, reserve int64) *sqlite.Driver {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{Reserve: reserve, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

func closeDriver(t *testing.T, driver *sqlite.Driver) {
	t.Helper()
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// fill commits a change that the file of the database has no space for.
func fill(t *testing.T, driver *sqlite.Driver) {
	t.Helper()
	if err := driver.ExecWriter(t.Context(), "PRAGMA max_page_count = 1"); err != nil { // it becomes the present number
		t.Fatal(err)
	}
	value := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	_, err := driver.Commit(t.Context(),
		[]sqlstore.Write{{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "large"}, Value: value,
			Grows: true}})
	if !errors.Is(err, sqlstore.ErrDiskFull) {
		t.Fatalf("commit: %v", err)
	}
}

// A disk that never had space for the reserve is used to its end: what was never taken can't be in
// use.
func TestReserve_IsNotInUseIfItWasNeverTaken(t *testing.T) {
	t.Parallel()
	path := migrated(t)
	for _, name := range []string{"a", "b"} {
		driver := openReserving(t, path, tooLarge)
		if driver.InReserve() {
			t.Error("the reserve is in use")
		}
		commitOne(t, driver,
			sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: name}, Value: []byte("{}"),
				Grows: true})
		closeDriver(t, driver)
	}
	driver := openReserving(t, path, tooLarge)
	fill(t, driver)
	if driver.InReserve() {
		t.Error("the reserve is in use after an error of the disk")
	}
	closeDriver(t, driver)
	if _, err := os.Stat(path + "-reserve"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the reserve: %v", err)
	}
}

// A reserve that was released is in use, after a restart too, until there is space for it.
func TestReserve_IsInUseOnceReleased(t *testing.T) {
	t.Parallel()
	path := migrated(t)
	expectSize := func(want int64) {
		t.Helper()
		if info, err := os.Stat(path + "-reserve"); err != nil || info.Size() != want {
			t.Fatalf("the reserve is %v, %v", info, err)
		}
	}
	driver := openReserving(t, path, 1<<20)
	expectSize(1 << 20)
	fill(t, driver)
	expectSize(0)
	closeDriver(t, driver)

	driver = openReserving(t, path, tooLarge)
	if !driver.InReserve() {
		t.Error("the reserve is not in use after a restart")
	}
	expectSize(0)
	closeDriver(t, driver)

	driver = openReserving(t, path, 1<<20)
	if driver.InReserve() {
		t.Error("the reserve is not taken back")
	}
	expectSize(1 << 20)
	closeDriver(t, driver)
}

// The reserve belongs to the process that has the lock: a second one that is started on a full disk leaves it alone.
func TestReleaseReserve_LeavesThatOfAnotherProcess(t *testing.T) {
	disk := pgtest.NewDisk(t, 96)
	path := filepath.Join(disk.Dir, "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	const reserve = 1 << 20
	driver := openReserving(t, path, reserve)
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		info, err := os.Stat(path + "-reserve")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if _, inUse := errors.AsType[*migrations.InUseError](sqlite.ReleaseReserve(path)); !inUse || size() != reserve {
		t.Errorf("refused: %v, and the reserve of the process that serves has %d bytes", inUse, size())
	}
	closeDriver(t, driver)
	if err := sqlite.ReleaseReserve(path); err != nil || size() != 0 {
		t.Errorf("when it has ended: %v, the reserve has %d bytes", err, size())
	}
}

// History is deleted on a full disk, and space returned, as objects are: that is what makes space.
func TestReserve_IsForCompactions(t *testing.T) {
	disk := pgtest.NewDisk(t, 160)
	path := filepath.Join(disk.Dir, "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	const reserve = 24 << 20
	driver := openReserving(t, path, reserve)
	pods := sqlstore.Resource{Resource: "pods"}
	value := []byte(`"` + strings.Repeat("x", 2000) + `"`)
	for i := range 40 {
		batch := make([]sqlstore.Write, 100)
		for j := range batch {
			batch[j] = sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprintf("%d-%d", i, j)},
				Value: value, Grows: true}
		}
		created, err := driver.Commit(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		for j := range batch {
			batch[j] = sqlstore.Write{Op: sqlstore.Delete, Key: batch[j].Key, Replaces: created[j].Revision}
		}
		deleted, err := driver.Commit(t.Context(), batch)
		if err != nil || deleted[0].Err != nil {
			t.Fatal(deleted[0].Err, err)
		}
	}
	closeDriver(t, driver) // the log is copied back and removed: the next transaction needs space for one
	driver = openReserving(t, path, reserve)
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	deleted, _, err := driver.DeleteHistory(t.Context(), sqlstore.Deletion{Of: pods, UpTo: 8000, Limit: 8000})
	if err != nil || deleted != 8000 {
		t.Errorf("%d changes are deleted, %v", deleted, err)
	}
	if !driver.InReserve() {
		t.Error("the deletion did not need the reserve: this test tests nothing")
	}
	for done := false; !done && err == nil; {
		done, err = driver.Shrink(t.Context(), 1000)
	}
	if err != nil {
		t.Error(err)
	}
	closeDriver(t, driver)
}

// Deletes need more of the log than the reserve has given, however quickly they follow each other: the log is copied
// back between them. Then the history is compacted.
func TestReserve_IsEnoughForQuickDeletes(t *testing.T) {
	t.Parallel()
	t.Run("after a start", func(t *testing.T) {
		t.Parallel()
		testQuickDeletes(t, false)
	})
	t.Run("while a copy is attached", func(t *testing.T) {
		t.Parallel()
		testQuickDeletes(t, true)
	})
}

func testQuickDeletes(t *testing.T, attached bool) {
	t.Helper()
	const reserve, objects = 8 << 20, 20
	disk := pgtest.NewDisk(t, 80)
	path := filepath.Join(disk.Dir, "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	copies, err := replication.New([]string{"file://" + t.TempDir()}, bucket.S3{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{Reserve: reserve, Replication: copies})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = driver.Close() }() // a full disk has no space for the last commits of the copy
	key := func(i int) sqlstore.Key { return sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)} }
	value := []byte(`"` + strings.Repeat("x", 900_000) + `"`)
	create := func(i int) error {
		outcomes, err := driver.Commit(t.Context(),
			[]sqlstore.Write{{Op: sqlstore.Create, Key: key(i), Value: value, Grows: true}})
		if err == nil {
			err = outcomes[0].Err
		}
		return err
	}
	for i := range objects {
		if err := create(i); err != nil {
			t.Fatal(err)
		}
	}
	if attached {
		if err := driver.ExecWriter(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var maintaining sync.WaitGroup
		maintaining.Go(func() { _ = driver.Maintain(ctx) })
		defer maintaining.Wait()
		defer cancel()
		storetest.Eventually(t, "the copy is attached", copies.Attached)
	} else { // the log is copied back and removed
		closeDriver(t, driver)
		driver = openReserving(t, path, reserve)
	}
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	made := objects
	for err == nil {
		if err = create(made); err == nil {
			made++
		}
	}
	if !errors.Is(err, sqlstore.ErrDiskFull) || !driver.InReserve() {
		t.Fatal(err)
	}
	for i := range made {
		commitOne(t, driver, sqlstore.Write{Op: sqlstore.Delete, Key: key(i), Replaces: int64(i) + 1})
	}
	if s, err := driver.Space(); err != nil || s.Log > reserve/2 {
		t.Errorf("%+v, %v", s, err)
	}
	n := int64(2 * made)
	deleted, _, err := driver.DeleteHistory(t.Context(),
		sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: n, Limit: int(n)})
	if err != nil || int64(deleted) != n {
		t.Errorf("%d changes are deleted, %v", deleted, err)
	}
	for done := false; !done && err == nil; {
		done, err = driver.Shrink(t.Context(), 1000)
	}
	if err != nil {
		t.Error(err)
	}
	storetest.Eventually(t, "the reserve is taken back", func() bool { return !driver.InReserve() })
}

// The log that fills the disk has fewer new pages than the reserve gives: it is copied back before it has more.
func TestReserve_IsEnoughForTheLog(t *testing.T) {
	t.Parallel()
	const reserve = 8 << 20
	disk := pgtest.NewDisk(t, 80)
	path := filepath.Join(disk.Dir, "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	driver := openReserving(t, path, reserve)
	defer func() { _ = driver.Close() }()
	key := func(i int) sqlstore.Key { return sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)} }
	value := []byte(`"` + strings.Repeat("x", 900_000) + `"`)
	made := 0
	for ; ; made++ {
		_, err := driver.Commit(t.Context(),
			[]sqlstore.Write{{Op: sqlstore.Create, Key: key(made), Value: value, Grows: true}})
		if errors.Is(err, sqlstore.ErrDiskFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for i := range made {
		commitOne(t, driver, sqlstore.Write{Op: sqlstore.Delete, Key: key(i), Replaces: int64(i) + 1})
	}
	if info, err := os.Stat(path); err != nil || info.Size() < int64(made*len(value)) {
		t.Errorf("the log is not copied back: the file has %d bytes, %v", info.Size(), err)
	}
}

// On a full disk nothing is copied. A delete that is to be acknowledged with its copy is made, and says that its
// outcome is unknown: it does not hold up those that follow, with which there is space again.
func TestReserve_DeletesDoNotWaitForACopy(t *testing.T) {
	t.Parallel()
	t.Run("the database has no space", func(t *testing.T) {
		t.Parallel()
		testDeletesDoNotWait(t, t.TempDir(), func(driver *sqlite.Driver) { fill(t, driver) })
	})
	t.Run("the copy has no space", func(t *testing.T) { // the log of the database has some of its own
		t.Parallel()
		disk := pgtest.NewDisk(t, 160)
		testDeletesDoNotWait(t, disk.Dir, func(*sqlite.Driver) {
			if err := disk.Fill(); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func testDeletesDoNotWait(t *testing.T, dir string, fillDisk func(*sqlite.Driver)) {
	t.Helper()
	copies, err := replication.New([]string{"file://" + t.TempDir()}, bucket.S3{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{Reserve: 1 << 20, Replication: copies})
	if err != nil {
		t.Fatal(err)
	}
	value := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	commitOne(t, driver,
		sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "first"}, Value: value})
	if err := driver.ExecWriter(t.Context(), "PRAGMA wal_checkpoint"); err != nil { // the log begins anew, and has space
		t.Fatal(err)
	}
	copies.Sync = true
	ctx, cancel := context.WithCancel(t.Context())
	var maintaining sync.WaitGroup
	maintaining.Go(func() { _ = driver.Maintain(ctx) })
	defer func() { _ = driver.Close() }() // it copies nothing either
	defer maintaining.Wait()
	defer cancel()
	const objects = 8
	for i := range objects {
		commitOne(t, driver,
			sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)}, Value: []byte("{}")})
	}
	fillDisk(driver)
	deleted := make(chan error, objects)
	go func() {
		for i := range objects {
			outcomes, err := driver.Commit(ctx,
				[]sqlstore.Write{{Op: sqlstore.Delete, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)},
					Replaces: int64(i) + 2}})
			if len(outcomes) != 1 || outcomes[0].Err != nil {
				t.Errorf("reads see the delete, and its outcome is %+v", outcomes)
			}
			deleted <- err
		}
	}()
	for range objects {
		select {
		case err = <-deleted: // what was begun may still be copied
		case <-time.After(time.Minute):
			t.Fatal("a delete waits for a copy that nobody makes")
		}
	}
	if !errors.Is(err, sqlstore.ErrUnknown) {
		t.Errorf("the last delete: %v", err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != 2*objects+1 {
		t.Errorf("%+v, %v", state, err)
	}
}
