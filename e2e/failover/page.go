package failover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"byre/e2e/programs"
)

// page is the documentation whose settings the tests run.
func page() string { return filepath.Join(programs.Root(), "docs/operations/failover.md") }

// block returns the block of code of the page that begins with a comment, "# TITLE".
func block(title string) (string, error) {
	text, err := os.ReadFile(page())
	if err != nil {
		return "", err
	}
	for i, part := range strings.Split(string(text), "```") {
		_, code, _ := strings.Cut(part, "\n")
		if i%2 == 1 && strings.HasPrefix(code, "# "+title+"\n") {
			return code, nil
		}
	}
	return "", fmt.Errorf("%s has no block %q", page(), title)
}

// settings returns a block of the page with other texts in the place of some, which are pairs as of
// strings.NewReplacer: the first one that fits is replaced.
func (s *site) settings(title string, replace ...string) string {
	s.Helper()
	text, err := block(title)
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			s.Fatalf("the block %q has no %q", title, replace[i])
		}
	}
	return strings.NewReplacer(replace...).Replace(text)
}
