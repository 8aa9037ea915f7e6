package main_test

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	fencedBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	pageHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	pageLink    = regexp.MustCompile(`\]\(([^)\s:]+)\)`) // not one to another host
	// GitHub shows a delimiter row as text if no row precedes it
	headless    = regexp.MustCompile(`(?m)(?:\A|^[^|\n]*\n)\|[|: ]*---[-|: ]*$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// repositoryPath is a path from the root of the repository, as comments and pages name files and folders.
var repositoryPath = regexp.MustCompile(
	`(?:^|[^\w./:@-])((?:migrations|sqlstore|watch|apiserver|crd|aggregator|cmd/byre|e2e|packaging|docs|\.ci)/[\w./-]*\w)`)

// notRepositoryPath is what looks like one: paths in Kubernetes' modules, placeholders, paths in a cluster, what a
// command of a page makes, and decisions by their number.
var notRepositoryPath = regexp.MustCompile(
	`^(apiserver/(pkg|v)|(migrations|sqlstore)/NAME|crd/crawlers|packaging/kustomize/byre|docs/decisions/\d+$)`)

// Files and folders that comments, tests and pages name exist.
func TestDocs_PathsExist(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch {
		case d.IsDir() && (name == "bin" || name == ".git" || name == "byre-data" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !slices.Contains([]string{".go", ".md", ".sh", ".yml", ".yaml"}, filepath.Ext(name)):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, match := range repositoryPath.FindAllSubmatch(text, -1) {
			named := string(match[1])
			if _, err := os.Stat(filepath.Join(root, named)); err != nil && !notRepositoryPath.MatchString(named) {
				t.Errorf("%s names %s, which does not exist", name, named)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// A line of Go has at most 120 characters, but for text that would be torn apart: string literals, what //nolint says,
// what an example prints. The spaces by which gofmt aligns columns count as one.
func TestLines_AreShort(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() && (name == "bin" || name == ".git" || name == "byre-data" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		source, err := os.ReadFile(path)
		for number, length := range codeLengths(source) {
			if length > 120 {
				t.Errorf("%s:%d has %d characters", name, number, length)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// codeLengths returns the characters of each line without its string literals and from //nolint on.
func codeLengths(source []byte) map[int]int {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	lengths := map[int]int{}
	for i, line := range bytes.Split(source, []byte("\n")) {
		lengths[i+1] = utf8.RuneCount(bytes.Join(bytes.Fields(line), []byte(" ")))
	}
	var tokens scanner.Scanner
	tokens.Init(file, source, nil, scanner.ScanComments)
	for {
		pos, kind, text := tokens.Scan()
		switch {
		case kind == token.EOF:
			return lengths
		case kind == token.STRING, strings.HasPrefix(text, "//nolint"), strings.HasPrefix(text, `// {"`):
			for i, line := range strings.Split(text, "\n") {
				lengths[file.Line(pos)+i] -= utf8.RuneCountInString(line)
			}
		}
	}
}

// Each link from a page of this repository to another page leads to a file that exists, and to a
// heading that it has. Each table has a header. No page has more than 900 lines.
func TestDocs_LinksResolve(t *testing.T) {
	t.Parallel()
	root, pages := moduleRoot(t), map[string]string{}
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() && (name == "bin" || name == ".git" || name == "byre-data") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) == ".md" {
			text, err := os.ReadFile(path)
			if n := strings.Count(string(text), "\n"); n > 900 {
				t.Errorf("%s has %d lines", name, n)
			}
			pages[name] = fencedBlock.ReplaceAllString(string(text), "")
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for name, text := range pages {
		if row := headless.FindString(text); row != "" {
			t.Errorf("%s has a table without a header: %q", name, row)
		}
		for _, link := range pageLink.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(link[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, link[1])
			} else if anchor != "" && !hasAnchor(pages[target], anchor) {
				t.Errorf("%s links to %s, a heading that does not exist", name, link[1])
			}
		}
	}
}

// hasAnchor reports whether a heading of a page has this anchor, as GitHub makes it.
func hasAnchor(page, anchor string) bool {
	for _, heading := range pageHeading.FindAllStringSubmatch(page, -1) {
		if strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
