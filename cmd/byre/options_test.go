package main_test

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOptions_EveryFieldIsRead: each exported field of the module's option structs is read
// by a function that does more than declare, default or check the option. A flag that
// nothing reads must not exist. The fields of upstream's structs, which some embed, are not
// checked.
func TestOptions_EveryFieldIsRead(t *testing.T) {
	m := &checkedModule{root: moduleRoot(t), files: token.NewFileSet(), packages: make(map[string]*types.Package),
		read: make(map[types.Object]bool)}
	if _, err := m.Import(module + "/cmd/byre"); err != nil {
		t.Fatal(err)
	}
	fields := 0
	for _, p := range m.packages {
		for _, name := range p.Scope().Names() {
			options, ok := p.Scope().Lookup(name).Type().Underlying().(*types.Struct)
			if !ok || !strings.HasSuffix(name, "Options") {
				continue
			}
			for field := range options.Fields() {
				fields++
				if field.Exported() && !field.Embedded() && !m.read[field] {
					t.Errorf("nothing reads %s.%s.%s", p.Path(), name, field.Name())
				}
			}
		}
	}
	if fields < 100 {
		t.Errorf("found %d options, which can't be all", fields)
	}
}

// declares matches the functions whose reads of an option do not count.
var declares = regexp.MustCompile(`(?i)^(new.*options|with?defaults|(add.*)?flags|validate.*)$`)

// checkedModule type-checks the packages of the module from their sources. Other packages
// are empty; the errors that this causes are ignored.
type checkedModule struct {
	root     string
	files    *token.FileSet
	packages map[string]*types.Package
	// read holds the struct fields that are read somewhere.
	read map[types.Object]bool
}

// Import implements types.Importer.
func (m *checkedModule) Import(name string) (*types.Package, error) {
	if !strings.HasPrefix(name, module+"/") {
		p := types.NewPackage(name, path.Base(name))
		p.MarkComplete()
		return p, nil
	}
	if p, ok := m.packages[name]; ok {
		return p, nil
	}
	dir := filepath.Join(m.root, strings.TrimPrefix(name, module+"/"))
	source, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, base := range source.GoFiles {
		file, err := parser.ParseFile(m.files, filepath.Join(dir, base), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: m, Error: func(error) {}}
	p, _ := config.Check(name, m.files, files, &info)
	m.packages[name] = p
	for _, file := range files {
		m.noteReads(file, info.Uses)
	}
	return p, nil
}

// noteReads records the fields that the functions of a file read.
func (m *checkedModule) noteReads(file *ast.File, uses map[*ast.Ident]types.Object) {
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || declares.MatchString(function.Name.Name) {
			continue
		}
		var assigned []ast.Expr
		ast.Inspect(function, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok == token.ASSIGN {
					assigned = append(assigned, n.Lhs...)
				}
			case *ast.SelectorExpr:
				if !slices.Contains(assigned, ast.Expr(n)) {
					m.read[uses[n.Sel]] = true
				}
			}
			return true
		})
	}
}
