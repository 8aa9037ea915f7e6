package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
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
			if err := sqlite.ReadSnapshot(t.Context(), copied, func(s sqlstore.Snapshot) error { count = s.ObjectCount; return nil }); err != nil {
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
