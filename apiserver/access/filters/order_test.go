package filters

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"byre/sqlstore/storetest"
)

// TestChain_OrderIsUpstreams compares the calls in Chain with those in upstream's
// function, in the order of their source. It fails when upstream adds, removes or moves
// a filter.
func TestChain_OrderIsUpstreams(t *testing.T) {
	upstream := calls(t, filepath.Join(storetest.ModuleDir(t, "k8s.io/apiserver"), "pkg/server/config.go"), "DefaultBuildHandlerChain")
	ours := calls(t, "chain.go", "addAuthorizationFilters", "addAuthenticationFilters", "addTimeoutFilters", "addOuterFilters")
	if diff := cmp.Diff(upstream, ours); diff != "" {
		t.Errorf("filters, innermost first, are not upstream's (-upstream +ours):\n%s", diff)
	}
}

// calls lists the filters that each of the functions of a file calls.
func calls(t *testing.T, file string, functions ...string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]*ast.BlockStmt{}
	for _, decl := range parsed.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			bodies[f.Name.Name] = f.Body
		}
	}
	var found []string
	for _, name := range functions {
		if bodies[name] == nil {
			t.Fatalf("%s has no function %s", file, name)
		}
		ast.Inspect(bodies[name], func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok &&
					(strings.HasPrefix(sel.Sel.Name, "With") || sel.Sel.Name == "Unauthorized") {
					found = append(found, sel.Sel.Name)
				}
			}
			return true
		})
	}
	return found
}
