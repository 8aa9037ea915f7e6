package migrations_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"byre/migrations"
)

func TestLock_OneProcessAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "byre.db")
	lock, err := migrations.AcquireFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = migrations.AcquireFile(path)
	var inUse *migrations.InUseError
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Fatalf("second lock: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = migrations.AcquireFile(path); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestResolve_FollowsLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	links := t.TempDir()
	for name, target := range map[string]string{
		"dir": dir, "absolute": filepath.Join(dir, "byre.db"), "relative": "dir/byre.db", "twice": "relative", "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(links)
	want := filepath.Join(dir, "byre.db")
	for _, exists := range []bool{false, true} {
		for _, path := range []string{want, "absolute", "relative", "twice", "dir/byre.db",
			filepath.Join(links, "dir", "byre.db")} {
			if got, err := migrations.ResolveFile(path); err != nil || got != want {
				t.Errorf("%s (file exists: %v) is %s, %v; want %s", path, exists, got, err, want)
			}
		}
		if err := os.WriteFile(want, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := migrations.ResolveFile("loop"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop is %s, %v", got, err)
	}
}

func TestInspect_KnowsForeignFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "byre.db")
	if fresh, err := migrations.InspectFile(path); !fresh || err != nil {
		t.Errorf("no file: %v, %v", fresh, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if fresh, err := migrations.InspectFile(path); !fresh || err != nil {
		t.Errorf("empty file: %v, %v", fresh, err)
	}
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.InspectFile(path); !errors.Is(err, migrations.ErrForeign) {
		t.Errorf("zeros: %v", err)
	}
	const emptyFile = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7\x00\x00\x00\x00nonc\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x10\x00"
	for name, test := range map[string]struct {
		journal string
		fresh   bool
	}{
		"of an empty file":     {emptyFile, true},
		"of a file of 2 pages": {"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7\x00\x00\x00\x02nonc\x00\x00\x00\x02\x00\x00\x02\x00\x00\x00\x10\x00", false},
		"that is none":         {strings.Repeat("\x00", 512), false},
		"that is short":        {"\xd9\xd5", false},
	} {
		if err := os.WriteFile(path+"-journal", []byte(test.journal), 0o600); err != nil {
			t.Fatal(err)
		}
		if fresh, err := migrations.InspectFile(path); fresh != test.fresh || !fresh &&
			!errors.Is(err, migrations.ErrForeign) {
			t.Errorf("zeros with a journal %s: %v, %v", name, fresh, err)
		}
	}
	// A power failure in the first COMMIT may leave the new header and the journal.
	header := append([]byte("SQLite format 3\x00"), make([]byte, 84)...)
	binary.BigEndian.PutUint32(header[68:], migrations.ApplicationID)
	if err := errors.Join(os.WriteFile(path, header, 0o600),
		os.WriteFile(path+"-journal", []byte(emptyFile), 0o600)); err != nil {
		t.Fatal(err)
	}
	if fresh, err := migrations.InspectFile(path); !fresh || err != nil {
		t.Errorf("a header with a journal of an empty file: %v, %v", fresh, err)
	}
	if err := os.Remove(path + "-journal"); err != nil {
		t.Fatal(err)
	}
	if fresh, err := migrations.InspectFile(path); fresh || err != nil {
		t.Errorf("a header without a journal: %v, %v", fresh, err)
	}
	if _, err := migrations.InspectFile(t.TempDir()); err == nil {
		t.Error("a folder is taken for a database")
	}
}
