package power

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"byre/e2e/robustness/vfs"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
)

// replicated is a database each of whose acknowledged commits must be in its copy.
type replicated struct {
	*sqlite.Driver
	*replication.Replicator
	path, place string
}

// replicate opens a database, and maintains and closes it at the end of the test.
func replicate(t *testing.T) *replicated {
	t.Helper()
	r := &replicated{path: filepath.Join(t.TempDir(), "byre.db"), place: "file://" + t.TempDir()}
	_, err := migrations.Up(t.Context(), "sqlite://"+r.path)
	if err != nil {
		t.Fatal(err)
	}
	if r.Replicator, err = replication.New([]string{r.place}, bucket.S3{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	r.Sync = true
	if r.Driver, err = sqlite.Open(t.Context(), r.path, sqlite.Options{Replication: r.Replicator}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var maintaining sync.WaitGroup
	maintaining.Go(func() {
		if err := r.Maintain(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		observe(func(string) {})
		cancel()
		maintaining.Wait()
		if err := r.Driver.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// observe calls f before each change of a file, and ends a fault.
func observe(f func(path string)) {
	vfs.Clear()
	vfs.Observe(f)
}

// create creates n objects of size bytes in one commit.
func (r *replicated) create(t *testing.T, prefix string, n, size int) error {
	t.Helper()
	batch := make([]sqlstore.Write, n)
	for i := range batch {
		batch[i] = sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprintf("%s-%d", prefix, i)},
			Value: []byte(`"` + strings.Repeat("x", size) + `"`),
		}
	}
	_, err := r.Commit(t.Context(), batch)
	return err
}

// expectCopied makes a commit of a few pages, and compares what can be restored.
func (r *replicated) expectCopied(t *testing.T, name string) {
	t.Helper()
	if err := r.create(t, name, 1, 10); err != nil {
		t.Fatal(err)
	}
	copies, err := replication.Copies(t.Context(), r.place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	latest, err := replication.Latest(copies)
	if err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(t.TempDir(), "restored.db")
	if err := replication.Restore(t.Context(), r.place, bucket.S3{}, latest, restored); err != nil {
		t.Fatal(err)
	}
	if got, want := digest(t, restored), digest(t, r.path); got != want {
		t.Errorf("after %q the copy has %v, want %v", name, got, want)
	}
}

func digest(t *testing.T, path string) (d backup.Digest) {
	t.Helper()
	if err := sqlite.ReadSnapshot(t.Context(), path, func(s sqlstore.Snapshot) (err error) {
		d, err = backup.DigestOf(s)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestReplicator_CopiesWhatFollowsAFailedCommit has the sync of the log fail at a COMMIT whose frames are copied. The
// next commit is smaller, so that the last of these frames stays in the log.
func TestReplicator_CopiesWhatFollowsAFailedCommit(t *testing.T) {
	r := replicate(t)
	r.expectCopied(t, "first")
	for _, isIdle := range []bool{false, true} {
		observe(func(path string) {
			if path == r.path+"-wal" {
				_ = r.AwaitCopy(t.Context())
			}
		})
		vfs.Fail(vfs.Sync)
		err := r.create(t, fmt.Sprint("failed-", isIdle), 20, 10_000)
		observe(func(string) {})
		if !errors.Is(err, sqlstore.ErrUnknown) {
			t.Fatalf("a COMMIT whose sync fails: %v", err)
		}
		if isIdle { // what is copied next is copied before another commit
			if err := r.AwaitCopy(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r.expectCopied(t, fmt.Sprint("next-", isIdle))
	}
}
