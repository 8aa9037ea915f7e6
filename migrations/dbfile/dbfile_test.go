package dbfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"byre/migrations/dbfile"
)

func TestOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "byre.db")
	lock, err := dbfile.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = dbfile.Acquire(path)
	var inUse *dbfile.InUseError
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Fatalf("second lock: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = dbfile.Acquire(path); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestInspect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "byre.db")
	if fresh, err := dbfile.Inspect(path); !fresh || err != nil {
		t.Errorf("no file: %v, %v", fresh, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if fresh, err := dbfile.Inspect(path); !fresh || err != nil {
		t.Errorf("empty file: %v, %v", fresh, err)
	}
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dbfile.Inspect(path); !errors.Is(err, dbfile.ErrForeign) {
		t.Errorf("zeros: %v", err)
	}
	if _, err := dbfile.Inspect(t.TempDir()); err == nil {
		t.Error("a folder is taken for a database")
	}
}
