package power

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"byre/e2e/robustness/vfs"
)

var (
	failures = flag.Int("failures", 30, "how often the power fails for each store")
	seed     = flag.Uint64("seed", rand.Uint64(), "what decides by chance when the power fails, and what is lost")
)

func TestMain(m *testing.M) {
	flag.Parse()
	vfs.LoseUnsynced()
	if err := vfs.Register(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// store is a database together with a model of its contents.
type store interface {
	// open opens the file at path, which need not exist. It fails if the file is damaged or
	// its contents are neither those acknowledged nor these with the write that was in
	// progress when the power failed.
	open(ctx context.Context, path string) error
	// step reads, writes or does maintenance.
	step(ctx context.Context, r *rand.Rand) error
	// powerFailed is called during open or step: later writes of that call are not in the
	// file that is opened next.
	powerFailed()
	close() error
}

// survive runs a store until its power has failed often enough.
func survive(t *testing.T, s store, seed uint64) {
	t.Helper()
	t.Logf("-seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	for n := range *failures + 1 {
		path, disk := filepath.Join(dir, fmt.Sprint(n), "test.db"), t.TempDir()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		f := failPower(s, path, disk, r)
		err := s.open(t.Context(), path)
		for err == nil && !f.hasFailed() {
			err = s.step(t.Context(), r)
		}
		if err != nil {
			t.Fatalf("after %d power failures: %v", n, err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		if err := f.err; err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(restart(path, disk), os.RemoveAll(disk)); err != nil {
			t.Fatal(err)
		}
		// Package vfs remembers what was not synced of each path.
		if err := os.Rename(filepath.Dir(path), filepath.Join(dir, fmt.Sprint(n+1))); err != nil {
			t.Fatal(err)
		}
	}
}

// restart gives the files of a database the contents that failPower has copied to a folder. They stay the
// same files: byre takes another one for a backup that was restored.
func restart(path, disk string) error {
	for _, suffix := range []string{"", "-journal", "-wal", "-shm", lineage} {
		contents, err := os.ReadFile(filepath.Join(disk, filepath.Base(path)+suffix))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = os.RemoveAll(path + suffix)
		case err == nil:
			err = os.WriteFile(path+suffix, contents, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// failure is one power failure.
type failure struct {
	mu   sync.Mutex
	left int
	err  error
}

// lineage is the suffix of the file in which byre notes, after each commit, which revisions were given.
const lineage = ".lineage"

// failPower copies a database to a folder, as the disk has it after a power failure, at a
// change of one of its files. The file of its lineage may be as new as what the kernel has.
func failPower(s store, path, dir string, r *rand.Rand) *failure {
	// Some failures come soon, within the start, and some only after a compaction.
	f := &failure{left: 1 + r.IntN(100<<r.IntN(5))}
	vfs.Observe(func(changed string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !strings.HasPrefix(changed, path) || f.left == 0 {
			return
		}
		if f.left--; f.left == 0 {
			f.err = errors.Join(vfs.CopyTorn(path, dir, r), copyIfPresent(path+lineage, dir))
			s.powerFailed()
		}
	})
	return f
}

func copyIfPresent(path, dir string) error {
	contents, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, os.WriteFile(filepath.Join(dir, filepath.Base(path)), contents, 0o600))
}

func (f *failure) hasFailed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left == 0
}

// TestSQLite_SurvivesPowerFailures shows that the disk of package vfs is one that SQLite
// can work with.
func TestSQLite_SurvivesPowerFailures(t *testing.T) { survive(t, &plain{}, *seed) }

// TestStore_SurvivesPowerFailures: byre's store keeps what it has acknowledged.
func TestStore_SurvivesPowerFailures(t *testing.T) { survive(t, newByre(), *seed) }

// Once a page that was torn while the log was copied back read as if the file were later than its log, and byre took
// that log for another file's.
func TestStore_SurvivesATornCheckpoint(t *testing.T) { survive(t, newByre(), 2864238985334910294) }

// connections are two connections beside that which writes: one copies the log back, the
// other reads an old snapshot meanwhile, so that the log can't be copied whole.
type connections struct {
	maintenance, reader *sql.DB
	snapshot            *sql.Tx
}

func (c *connections) open(path string) (err error) {
	dsn := dsn(path, "synchronous(full)")
	if c.maintenance, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	c.reader, err = sql.Open("sqlite", dsn)
	return err
}

// dsn is the URI of a file, for connections with settings.
func dsn(path string, pragmas ...string) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(),
		RawQuery: url.Values{"_pragma": pragmas}.Encode()}).String()
}

// step begins or ends a snapshot, or copies the log back.
func (c *connections) step(ctx context.Context, r *rand.Rand) (err error) {
	switch {
	case r.IntN(2) == 0:
		_, err = c.maintenance.ExecContext(ctx, `PRAGMA wal_checkpoint(PASSIVE)`)
	case c.snapshot != nil:
		err = c.snapshot.Rollback()
		c.snapshot = nil
	default:
		if c.snapshot, err = c.reader.BeginTx(ctx, nil); err != nil {
			return err
		}
		var n int
		err = c.snapshot.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&n)
	}
	return err
}

func (c *connections) close() error {
	if c.snapshot != nil {
		if err := c.snapshot.Rollback(); err != nil {
			return err
		}
		c.snapshot = nil
	}
	if err := c.reader.Close(); err != nil {
		return err
	}
	return c.maintenance.Close()
}
