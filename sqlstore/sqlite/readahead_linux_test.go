package sqlite_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

// BenchmarkInspectAfterCrash checks a file of 200 MB that the kernel does not have in memory,
// as after a power failure.
func BenchmarkInspectAfterCrash(b *testing.B) {
	path := crashed(b, 10_000)
	logger := slog.New(slog.DiscardHandler)
	for b.Loop() {
		b.StopTimer()
		evict(b, path)
		b.StartTimer()
		if _, err := sqlite.InspectAfterCrash(b.Context(), path, true, time.Minute, logger); err != nil {
			b.Fatal(err)
		}
	}
}

// A start that is stopped while it checks the file does not call the file damaged.
func TestInspectAfterCrash_CanBeStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := sqlite.InspectAfterCrash(ctx, crashed(t, 10), true, time.Minute,
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	if !errors.Is(err, context.Canceled) || errors.Is(err, sqlstore.ErrDamaged) {
		t.Errorf("error %v", err)
	}
}

// crashed returns a database of n objects of 20 kB, which are written in random order of their
// keys, as a process that is killed would leave it.
func crashed(t testing.TB, n int) string {
	t.Helper()
	driver, path := open(t)
	keys := rand.New(rand.NewPCG(1, 2)).Perm(n)
	for chunk := range slices.Chunk(keys, 64) {
		writes := make([]sqlstore.Write, len(chunk))
		for i, key := range chunk {
			writes[i] = createOf(strconv.Itoa(key), 20_000)
		}
		outcomes, err := driver.Commit(t.Context(), writes)
		for _, o := range outcomes {
			err = errors.Join(err, o.Err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	killed := filepath.Join(t.TempDir(), "byre.db")
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(killed+suffix, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	return killed
}

// evict makes the kernel forget what it has of the file in memory.
func evict(b *testing.B, path string) {
	b.Helper()
	file, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	if err := errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		b.Fatal(err)
	}
}
