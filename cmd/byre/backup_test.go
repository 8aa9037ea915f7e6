package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// succeed runs a command that must succeed.
func succeed(t *testing.T, args ...string) (out, errOut string) {
	t.Helper()
	status, out, errOut := call(args...)
	if status != 0 {
		t.Fatalf("%q: status %d, %q, %q", args, status, out, errOut)
	}
	return out, errOut
}

// emptyDatabases are endpoints of each kind that hold nothing.
func emptyDatabases(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"sqlite": "sqlite://" + filepath.Join(t.TempDir(), "new", "byre.db"), "postgres": pgtest.DSN(t),
	}
}

// restoredDigest returns the digest that the rows have after a restore.
func restoredDigest(t *testing.T, s sqlstore.Snapshot) backup.Digest {
	t.Helper()
	digest, err := backup.DigestOf(backup.Restored(s, bumpRevision, "any", s.Time))
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestBackup_RestoresToBothDatabases(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(8, 8)))
	first := sqliteWith(t, rows)
	file := filepath.Join(t.TempDir(), "byre.zst")
	out, errOut := succeed(t, "backup", "--endpoint", first, file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s: revision %d, %d objects, %d changes, %d bytes\nsha256 %x\n",
		file, rows.Revision, len(rows.Objects), len(rows.Changes), len(content), sha256.Sum256(content))
	if out != want || errOut != "" {
		t.Errorf("output %q, %q; want %q", out, errOut, want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	_, original := digestOf(t, first)
	for name, endpoint := range emptyDatabases(t) {
		out, _ := succeed(t, "restore", "--endpoint", endpoint, file)
		if want := fmt.Sprintf("restored and verified %d objects of revision %d, and %d changes of history; the next revision is %d\n",
			len(rows.Objects), rows.Revision, len(rows.Changes), rows.Revision+bumpRevision+1); !strings.HasPrefix(out, want+"next, before a start: pki/ ") || strings.Count(out, "\n") != 2 {
			t.Errorf("%s: output %q, want %q", name, out, want)
		}
		digest, header := digestOf(t, endpoint)
		if digest != restoredDigest(t, rows.Snapshot()) || header.Revision != rows.Revision+bumpRevision ||
			header.Compacted != header.Revision || header.Epoch == original.Epoch {
			t.Errorf("%s: restored %v, %+v", name, digest, header)
		}
		expectFailure(t, "holds data", "restore", "--endpoint", endpoint, file)
		// Back up from this database and restore to the other kind, through a pipe.
		status, out, errOut := call("backup", "--endpoint", endpoint, "-")
		if status != 0 || !strings.Contains(errOut, "\nsha256 ") {
			t.Fatalf("to standard output: %d, %q", status, errOut)
		}
		third := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
		restoreFrom(t, out, 0, "restore", "--endpoint", third, "--bump-revision", "5", "-")
		if again, header := digestOf(t, third); again != digest || header.Revision != rows.Revision+bumpRevision+5 {
			t.Errorf("%s: restored again %v, %+v; want %v", name, again, header, digest)
		}
	}
}

// restoreFrom runs a command with standard input.
func restoreFrom(t *testing.T, input string, want int, args ...string) {
	t.Helper()
	root := newRootCommand()
	var out bytes.Buffer
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); (err != nil) != (want != 0) {
		t.Fatalf("%q: %v", args, err)
	}
}

func TestRestore_AtAMoment(t *testing.T) {
	t.Parallel()
	rows := storetest.WholeRows(t, rand.New(rand.NewPCG(9, 9)))
	for i, change := range rows.Changes { // one minute apart
		change.Time = rows.Time.Add(time.Duration(i-len(rows.Changes)) * time.Minute)
	}
	database := sqliteWith(t, rows)
	file := filepath.Join(t.TempDir(), "byre.zst")
	succeed(t, "backup", "--endpoint", database, file)
	middle := rows.Changes[len(rows.Changes)/2]
	then, err := backup.At(rows.Snapshot(), middle.Revision)
	if err != nil {
		t.Fatal(err)
	}
	want := restoredDigest(t, then)
	for _, at := range []string{
		fmt.Sprint(middle.Revision), middle.Time.Format(time.RFC3339Nano),
		middle.Time.Add(59 * time.Second).In(time.FixedZone("", 3600)).Format(time.RFC3339Nano),
	} {
		for _, source := range [][]string{{file}, {"--from", database}} {
			target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
			succeed(t, append([]string{"restore", "--endpoint", target, "--at", at}, source...)...)
			// Where the author of an object is not known the digest has the time of the
			// snapshot: compare without it.
			if got, header := digestOf(t, target); got.Objects != want.Objects || got.Changes != want.Changes || got.ChangeSum != want.ChangeSum || header.Revision != middle.Revision+bumpRevision {
				t.Errorf("at %s from %v: %v, %+v; want %v", at, source, got, header, want)
			}
		}
	}
	target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
	for at, want := range map[string]string{
		fmt.Sprint(rows.Revision + 1): "is not within the history",
		"1990-01-01T00:00:00Z":        "is not within the history",
		"2190-01-01T00:00:00Z":        "is not within the history",
		"-3650d":                      "is not within the history",
	} {
		expectFailure(t, want, "restore", "--endpoint", target, "--at", at, file)
	}
	for _, at := range []string{"0", "-1", "yesterday", middle.Time.Format("2006-01-02 15:04:05")} {
		expectFailure(t, "is neither a revision, nor a time such as", "restore", "--endpoint", target, "--at", at, filepath.Join(t.TempDir(), "not read"))
	}
	if _, err := os.Stat(strings.TrimPrefix(target, "sqlite://")); !os.IsNotExist(err) {
		t.Errorf("a restore that was refused left %v", err)
	}
}

func TestBackup_Refusals(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(10, 10)))
	database := sqliteWith(t, rows)
	dir := t.TempDir()
	file := filepath.Join(dir, "byre.zst")
	succeed(t, "backup", "--endpoint", database, file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	expectFailure(t, "exists already: name another file, or replace it with --force", "backup", "--endpoint", database, file)
	succeed(t, "backup", "--endpoint", database, "--force", file)
	expectFailure(t, "not a regular file", "backup", "--endpoint", database, "--force", dir)
	expectFailure(t, "there is no directory "+filepath.Join(dir, "no"), "backup", "--endpoint", database, filepath.Join(dir, "no", "dir"))
	expectFailure(t, "want s3://BUCKET/KEY", "backup", "--endpoint", database, "s3://bucket")
	expectFailure(t, "accepts 1 arg", "backup", "--endpoint", database)

	target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
	for name, spoilt := range map[string][]byte{
		"truncated": content[:len(content)-10], "half": content[:len(content)/2], "empty": nil, "foreign": []byte("SQLite format 3"),
		"flipped": append(append([]byte{}, content[:len(content)/2]...), append([]byte{content[len(content)/2] ^ 1}, content[len(content)/2+1:]...)...),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, spoilt, 0o600); err != nil {
			t.Fatal(err)
		}
		expectFailure(t, path+": snapshot is broken: ", "restore", "--endpoint", target, path)
	}
	expectFailure(t, "no such file", "restore", "--endpoint", target, filepath.Join(dir, "nothing"))
	expectFailure(t, "--bump-revision", "restore", "--endpoint", target, "--bump-revision", "0", file)
	expectFailure(t, "unknown command", "restore", "--endpoint", target, "--from", database, file)
	if _, err := os.Stat(strings.TrimPrefix(target, "sqlite://")); !os.IsNotExist(err) {
		t.Errorf("a restore that was refused left %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			t.Errorf("%s is left", entry.Name())
		}
	}
}
