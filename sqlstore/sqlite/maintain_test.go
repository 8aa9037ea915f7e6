package sqlite_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/eventually"
)

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
	eventually.Done(t, "the log is short", func(ctx context.Context) (bool, error) {
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
