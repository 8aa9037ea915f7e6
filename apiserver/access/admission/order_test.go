package admission

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"

	"byre/apiserver/upstreamtest"
)

// TestPlugins_OrderIsUpstreams compares the table of plugins, with its order and its
// defaults, with the lists in the source of kube-apiserver. It fails when upstream
// adds, moves or turns on a plugin. Plugins are identified by their import paths.
func TestPlugins_OrderIsUpstreams(t *testing.T) {
	upstream := parse(t, filepath.Join(upstreamtest.ModuleDir(t, "k8s.io/kubernetes"), "pkg/kubeapiserver/options/plugins.go"))
	defaultOn := sets.New(upstream.list(t, "defaultOnPlugins")...)
	var want []string
	for _, name := range upstream.list(t, "AllOrderedPlugins") {
		state := "off"
		if defaultOn.Has(name) {
			state = "on"
		}
		want = append(want, name+" "+state)
	}
	if diff := cmp.Diff(want, parse(t, "plugins.go").table(t)); diff != "" {
		t.Errorf("the plugins are not upstream's (-upstream +ours):\n%s", diff)
	}
}

type source struct {
	file    *ast.File
	imports map[string]string // by the name that the file uses
}

func parse(t *testing.T, file string) source {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := source{file: parsed, imports: map[string]string{}}
	for _, spec := range parsed.Imports {
		pkg, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(pkg)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		s.imports[name] = pkg
	}
	return s
}

// list returns the packages whose PluginName is an element, or an argument of a call, in
// the value of a variable.
func (s source) list(t *testing.T, variable string) []string {
	t.Helper()
	var found []string
	collect := func(values []ast.Expr) {
		for _, value := range values {
			switch v := value.(type) {
			case *ast.CompositeLit:
				found = append(found, s.packages(v.Elts)...)
			case *ast.CallExpr:
				found = append(found, s.packages(v.Args)...)
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if n.Names[0].Name == variable {
				collect(n.Values)
			}
		case *ast.AssignStmt:
			if id, ok := n.Lhs[0].(*ast.Ident); ok && id.Name == variable {
				collect(n.Rhs)
			}
		}
		return true
	})
	if len(found) == 0 {
		t.Fatalf("found no %s", variable)
	}
	return found
}

func (s source) packages(exprs []ast.Expr) []string {
	var found []string
	for _, expr := range exprs {
		if sel, ok := expr.(*ast.SelectorExpr); ok && sel.Sel.Name == "PluginName" {
			found = append(found, s.imports[sel.X.(*ast.Ident).Name])
		}
	}
	return found
}

// table reads this package's table of plugins: each row is {p.PluginName, p.Register,
// on}.
func (s source) table(t *testing.T) []string {
	t.Helper()
	var rows []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		row, ok := n.(*ast.CompositeLit)
		if !ok || row.Type != nil || len(row.Elts) != 3 {
			return true
		}
		pkgs := s.packages(row.Elts)
		if len(pkgs) != 1 {
			t.Fatalf("row %d has no plugin's name", len(rows))
		}
		switch register := row.Elts[1].(type) {
		case *ast.SelectorExpr:
			if pkgs[0] != s.imports[register.X.(*ast.Ident).Name] {
				t.Errorf("row %d pairs the name of one plugin with another's Register", len(rows))
			}
		case *ast.Ident:
			// This package's function wraps upstream's. The tests that build the chain
			// show that it registers the plugin that the row names.
		}
		rows = append(rows, strings.Join(append(pkgs, row.Elts[2].(*ast.Ident).Name), " "))
		return true
	})
	return rows
}
