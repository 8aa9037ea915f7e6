package operator

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"byre/e2e/programs"
)

// block is a fenced block of commands, which may be part of a list; its lines have the fence's
// own indentation.
var block = regexp.MustCompile("(?ms)^( *)```sh\n(.*?)^ *```$")

// Commands returns the blocks of commands below a heading of a page of docs/operations, of which
// there must be n.
func Commands(t *testing.T, page, heading string, n int) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(programs.Root(), "docs", "operations", page))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	for _, match := range block.FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:])
	}
	if len(blocks) != n {
		t.Fatalf("%q of %s has %d blocks of commands, and this test types %d", heading, page, len(blocks), n)
	}
	return blocks
}
