package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// optimizationParts are what the comment on each performance optimization says, in this
// order. It names a benchmark that defends the optimization, and a test that fails when
// upstream or the Go runtime changes what it relies on.
var optimizationParts = []string{"What upstream does:", "What is done instead:", "What it relies on:", "What it earns:"}

var (
	functionName = regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w*`)
	backticked   = regexp.MustCompile("`([^`]+)`")
)

// TestOptimizations_NameTheirBenchmarkAndTheirTest: each comment that says what upstream does
// has all parts, and what it names exists. docs/architecture.md lists the files.
func TestOptimizations_NameTheirBenchmarkAndTheirTest(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	functions := map[string]bool{}
	comments := map[string][]string{} // by file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || isModule(name)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, "_test.go") {
			for _, declared := range file.Decls {
				if f, ok := declared.(*ast.FuncDecl); ok && f.Recv == nil {
					functions[f.Name.Name] = true
				}
			}
			return nil
		}
		for _, group := range file.Comments {
			if text := strings.Join(strings.Fields(group.Text()), " "); strings.Contains(text, optimizationParts[0]) {
				rel, err := filepath.Rel(root, name)
				if err != nil {
					return err
				}
				comments[filepath.ToSlash(rel)] = append(comments[filepath.ToSlash(rel)], text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, texts := range comments {
		for _, text := range texts {
			checkOptimization(t, name, text, functions)
		}
	}
	listed := optimizationsOf(t, filepath.Join(root, "docs", "architecture.md"))
	for name := range comments {
		if !slices.Contains(listed, name) {
			t.Errorf("docs/architecture.md does not list the optimization in %s", name)
		}
	}
	for _, name := range listed {
		if comments[name] == nil {
			t.Errorf("docs/architecture.md lists an optimization in %s, which has none", name)
		}
	}
}

func checkOptimization(t *testing.T, name, text string, functions map[string]bool) {
	t.Helper()
	rest := text
	for _, part := range optimizationParts {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			t.Errorf("%s: the optimization does not say %q at its place", name, part)
			return
		}
		rest = after
	}
	hasBenchmark, hasTest := false, false
	for _, function := range functionName.FindAllString(text, -1) {
		if !functions[function] {
			t.Errorf("%s: there is no %s", name, function)
		}
		isBenchmark := strings.HasPrefix(function, "Benchmark")
		hasBenchmark, hasTest = hasBenchmark || isBenchmark, hasTest || !isBenchmark
	}
	if !hasBenchmark || !hasTest {
		t.Errorf("%s: the optimization names a benchmark: %v; a test: %v", name, hasBenchmark, hasTest)
	}
}

// optimizationsOf returns the files in the table of the section "Optimizations".
func optimizationsOf(t *testing.T, page string) (files []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Optimizations\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for _, match := range backticked.FindAllStringSubmatch(line, -1) {
			if strings.HasSuffix(match[1], ".go") {
				files = append(files, match[1])
			}
		}
	}
	return files
}
