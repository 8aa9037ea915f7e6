package document

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUpdate_ReplacesTables(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a\n<!-- m: x -->\nold\n<!-- m end -->\nb\n<!-- m: y -->\nkept\n<!-- m end -->\n")
	if err := Update(path, "m", map[string]string{"x": "new\n"}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := "a\n<!-- m: x -->\nnew\n<!-- m end -->\nb\n<!-- m: y -->\nkept\n<!-- m end -->\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	write("<!-- m: x -->\n")
	if err := Update(path, "m", nil); err == nil {
		t.Error("a table without an end is accepted")
	}
}
