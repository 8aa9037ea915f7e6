package tables

import (
	"path/filepath"
	"testing"
)

// TestConnect_AcceptsAnyPath reads a file with characters that mean something in a URI.
func TestConnect_AcceptsAnyPath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a#b?c%20d.db")
	if err := Exec(t.Context(), SQLite, path, `CREATE TABLE counters (revision INTEGER, compacted INTEGER)`); err != nil {
		t.Fatal(err)
	}
	if err := Exec(t.Context(), SQLite, path, `INSERT INTO counters VALUES (7, 3)`); err != nil {
		t.Fatal(err)
	}
	conn, err := Connect(t.Context(), SQLite, path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	revision, compacted, err := conn.Counters(t.Context())
	if err != nil || revision != 7 || compacted != 3 {
		t.Error(revision, compacted, err)
	}
}
