package migrations

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// other is the user and the group of nobody.
const other = 65534

func otherDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, other, other); err != nil {
		t.Fatal(err)
	}
	return dir
}

func expectOwner(t *testing.T, path string, want uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != want || owner.Gid != want {
		t.Errorf("%s belongs to %d and group %d, want %d", path, owner.Uid, owner.Gid, want)
	}
}

func TestFiles_OfRootBelongToTheOwnerOfTheDirectory(t *testing.T) {
	t.Parallel()
	dir := otherDir(t)
	made := filepath.Join(dir, "a", "b")
	if err := MkdirAllOwned(made, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(made, "file")
	for range 2 {
		file, err := OpenOwned(path, os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Dir(made), made, path} {
		expectOwner(t, path, other)
	}
}

// Where one of several files can't be written, the others stay as they were.
func TestWriteFiles_ReplaceAllOrNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := OwnedFile{filepath.Join(dir, "file"), []byte("old"), 0o600}
	if err := WriteFilesOwned(file); err != nil {
		t.Fatal(err)
	}
	file.Data = []byte("new")
	if err := WriteFilesOwned(file, OwnedFile{filepath.Join(dir, "missing", "file"), nil, 0o600}); err == nil {
		t.Error("a file was written to a directory that does not exist")
	}
	entries, err := os.ReadDir(dir)
	data, readErr := os.ReadFile(file.Path)
	if err != nil || readErr != nil || string(data) != "old" || len(entries) != 1 {
		t.Errorf("the file has %q, %v, and beside it are %v, %v", data, readErr, entries, err)
	}
}

// A link in another user's directory must not give that user the file that it leads to.
func TestFiles_ThatExistKeepTheirOwner(t *testing.T) {
	t.Parallel()
	dir, mine := otherDir(t), t.TempDir()
	secret := filepath.Join(mine, "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link, linkedDir := filepath.Join(dir, "link"), filepath.Join(dir, "dir")
	for target, path := range map[string]string{secret: link, mine: linkedDir} {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	file, err := OpenOwned(link, os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAllOwned(linkedDir, 0o700); err != nil {
		t.Fatal(err)
	}
	expectOwner(t, secret, 0)
	expectOwner(t, mine, 0)
}
