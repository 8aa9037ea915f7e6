package main_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "byre"

// A part is a folder of the module. It may import only parts of lower layers, and nothing
// that its bans name.
type part struct {
	dir   string  // matches itself and what nests in it, unless a longer dir does
	layer float64 // fractions order the parts within one layer
	bans  []string
}

// parts is the import table. Invariant: two parts of one layer never import each other.
//
// It is a test and not a configuration of golangci-lint's depguard. There each package
// would list all packages that it may import, there are no layers, and a package that no
// rule names is not checked.
var parts = []part{
	{"migrations", 0, []string{"k8s.io/", "sigs.k8s.io/"}},
	{"sqlstore/eventually", 0, []string{"byre/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore/elapsed", 0, []string{"byre/", "k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore", 1, []string{"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore/snapshot", 1.1, []string{"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore/backup/location", 1.1, []string{"byre/", "k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore/backup", 1.2, []string{"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore/storetest", 1.1, []string{"k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore/sqlite", 1.2, []string{"k8s.io/", "github.com/jackc/"}},
	{"sqlstore/postgres", 1.2, []string{"k8s.io/", "modernc.org/"}},
	{"sqlstore/etcd", 1.2, []string{"k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"sqlstore/kine", 1.3, []string{"k8s.io/"}},
	{"sqlstore/dbtest", 1.3, []string{"k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"watch/representation", 1.9, []string{"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"watch", 2, []string{"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"watch/watchtest", 2.1, []string{"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"apiserver/stack", 2.9, []string{"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"apiserver/transcode", 2.9, noSQL},
	{"apiserver/objectstore", 3.0, noSQL},
	{"apiserver/loopback", 3.0, noSQL},
	{"apiserver/lookup", 3.1, noSQL},
	{"apiserver/routing", 3.2, noSQL},
	{"apiserver/openapi", 3.1, noSQL},
	{"apiserver/discovery", 3.15, noSQL},
	{"apiserver/managedfields", 3.0, noSQL},
	{"apiserver/integrity", 3.0, noSQL},
	{"apiserver/endpoints", 3.2, noSQL},
	{"apiserver/delegation", 3.4, noSQL},
	{"apiserver/auth", 3.3, noSQL},
	{"apiserver/admission", 3.3, noSQL},
	{"apiserver/audit", 3.3, noSQL},
	{"apiserver/filters", 3.3, noSQL},
	{"apiserver/configfile", 3.3, noSQL},
	{"apiserver/controllers", 3.3, noSQL},
	{"apiserver/controlplane", 3.4, noSQL},
	{"apiserver/health", 3.3, noSQL},
	{"apiserver/lifecycle", 3.3, noSQL},
	{"apiserver/pki", 3.3, noSQL},
	{"apiserver/builtin", 3.4, noSQL},
	{"apiserver/serving", 3.4, noSQL},
	{"apiserver/memory", 3.3, noSQL},
	{"apiserver/systemd", 3.3, noSQL},
	{"apiserver/upstreamtest", 0, []string{"byre/", "k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"}},
	{"apiserver/envtest", 3.0, []string{"byre/sqlstore", "byre/watch", "byre/migrations", "k8s.io/kubernetes", "k8s.io/apiserver"}},
	{"apiserver/options", 3.5, noSQL},
	{"apiserver/status", 3.6, noSQL},
	{"apiserver/transfer", 3.6, noSQL},
	{"apiserver", 4, noSQL},
	{"crd/definition", 3.0, noSQL},
	{"crd/instances", 3.9, noSQL},
	{"crd", 4, noSQL},
	{"aggregator", 4, noSQL},
	{"cmd/byre", 5, nil},
}

// noSQL lists what all packages but the drivers must not import: databases, and upstream's
// own servers, which this program replaces.
var noSQL = []string{
	"database/sql", "github.com/jackc/", "modernc.org/", "byre/sqlstore/sqlite", "byre/sqlstore/postgres",
	"k8s.io/kubernetes/pkg/controlplane",
	"k8s.io/kubernetes/cmd/",
}

// leaves are packages below a ban that do not need upstream's servers.
var leaves = []string{
	"k8s.io/kubernetes/cmd/kube-controller-manager/names",
	"k8s.io/kubernetes/pkg/controlplane/apiserver/admission",
	"k8s.io/kubernetes/pkg/controlplane/controller/apiserverleasegc",
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust",
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection",
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking",
	"k8s.io/kubernetes/pkg/controlplane/reconcilers",
}

func TestImports_FollowTheTable(t *testing.T) {
	root := moduleRoot(t)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || isModule(name)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		checkFile(t, root, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkFile(t *testing.T, root, name string) {
	t.Helper()
	rel, err := filepath.Rel(root, name)
	if err != nil {
		t.Fatal(err)
	}
	rel = filepath.ToSlash(rel)
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	from, ok := partOf(path.Dir(rel))
	if !ok {
		t.Errorf("%s is in no part of the import table", rel)
		return
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if complaint := from.complain(imported); complaint != "" {
			t.Errorf("%s: %s", rel, complaint)
		}
	}
}

// complain returns why the part may not import the package, or "".
func (r part) complain(imported string) string {
	for _, ban := range r.bans {
		if slices.Contains(leaves, imported) {
			continue
		}
		if imported == strings.TrimSuffix(ban, "/") || strings.HasPrefix(imported, strings.TrimSuffix(ban, "/")+"/") {
			return fmt.Sprintf("%s may not import %s", r.dir, imported)
		}
	}
	dir, ours := strings.CutPrefix(imported, module+"/")
	if !ours {
		return ""
	}
	to, ok := partOf(dir)
	switch {
	case !ok:
		return fmt.Sprintf("imports %s, which is in no part of the import table", imported)
	case to.dir == r.dir || to.layer < r.layer:
		return ""
	default:
		return fmt.Sprintf("%s (layer %v) may not import %s (layer %v)", r.dir, r.layer, to.dir, to.layer)
	}
}

func partOf(dir string) (part, bool) {
	best := -1
	for i, r := range parts {
		if (dir == r.dir || strings.HasPrefix(dir, r.dir+"/")) && (best < 0 || len(r.dir) > len(parts[best].dir)) {
			best = i
		}
	}
	if best < 0 {
		return part{}, false
	}
	return parts[best], true
}

func TestImports_TableHasNoDuplicates(t *testing.T) {
	var dirs []string
	for _, r := range parts {
		if slices.Contains(dirs, r.dir) {
			t.Errorf("%s stands twice in the import table", r.dir)
		}
		dirs = append(dirs, r.dir)
	}
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for !isModule(dir) {
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = parent
	}
	return dir
}
