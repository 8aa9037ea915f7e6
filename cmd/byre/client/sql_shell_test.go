package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSQLShell_FindsTheEndOfAStatement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": -1, "SELECT 1": -1, ";": 0, "SELECT 1;": 8, "SELECT ';'": -1, "SELECT ';''';": 12, `SELECT ";";`: 10, "SELECT [;]`;`;": 13,
		"-- ;": -1, "-- ;\n;": 5, "/* ; */;": 7, "/* ;": -1, "SELECT 'x": -1, "a-b/c;": 5,
	} {
		if got := endOfStatement(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// A file that has grown is cut to its newest lines.
func TestSQLShell_BoundsTheHistory(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	file := filepath.Join(state, "byre", "sql_history")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(strings.Repeat("a\nb\n", maxHistory)), 0o600)); err != nil {
		t.Fatal(err)
	}
	var warnings strings.Builder
	h := newSQLHistory(&warnings)
	h.Add("c")
	h.Add("c")
	h.close()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(text), "\n"); lines != maxHistory+1 || !strings.HasSuffix(string(text), "\nb\nc\n") || h.At(0) != "c" || h.At(1) != "b" || warnings.Len() > 0 {
		t.Errorf("%d lines, %d, %s", lines, h.Len(), warnings.String())
	}
}
