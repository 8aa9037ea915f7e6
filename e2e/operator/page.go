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

// Page is docs/operations.md of the repository.
type Page string

// ReadPage reads the page.
func ReadPage(t *testing.T) Page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(programs.Root(), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	return Page(text)
}

// Commands returns the blocks of commands below a heading, of which there must be n. Headings
// are unique.
func (p Page) Commands(t *testing.T, heading string, n int) []string {
	t.Helper()
	_, section, ok := strings.Cut(string(p), "\n### "+heading+"\n")
	if !ok {
		t.Fatalf("docs/operations.md has no section %q", heading)
	}
	if end := regexp.MustCompile(`(?m)^##`).FindStringIndex(section); end != nil {
		section = section[:end[0]]
	}
	var blocks []string
	for _, match := range block.FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:])
	}
	if len(blocks) != n {
		t.Fatalf("%q of docs/operations.md has %d blocks of commands, and this test types %d", heading, len(blocks), n)
	}
	return blocks
}
