package main_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "byre"

// A part is a folder of the module, with what nests in it unless a longer dir does. It may import
// itself and the parts of lower layers.
type part struct {
	dir   string
	layer int
}

// parts is the import table, which docs/architecture.md explains. Invariant: two parts of one layer
// never import each other.
//
// It is a test and not a configuration of golangci-lint's depguard. There each package
// would list all packages that it may import, there are no layers, and a package that no
// rule names is not checked.
var parts = []part{
	{"migrations", 0},
	{"sqlstore", 1},
	{"watch", 2},
	{"sqlstore/dbtest", 3},
	{"sqlstore/etcd/server", 3},
	{"apiserver/storage", 3},
	{"apiserver/handlers", 4},
	{"apiserver/process", 5},
	{"apiserver/access", 6},
	{"apiserver/registry", 6},
	{"apiserver/bootstrap", 6},
	{"apiserver/history", 6},
	{"apiserver/query", 6},
	{"apiserver/controllers", 6},
	{"apiserver/envtest", 6},
	{"apiserver/console", 7},
	{"apiserver/apitest", 7},
	{"apiserver/server", 8},
	{"crd", 8},
	{"aggregator", 8},
	{"cmd/byre", 9},
}

// bans are what the packages of a folder, of the longest that matches, must not import.
var bans = map[string][]string{
	"migrations": {"k8s.io/", "sigs.k8s.io/"},
	"sqlstore": {
		"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/", "byre/sqlstore/sqlite",
		"byre/sqlstore/postgres",
	},
	"sqlstore/bucket": {"byre/sqlstore", "k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/",
		"modernc.org/"},
	"sqlstore/dbtest":      {"k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"},
	"sqlstore/etcd":        {"k8s.io/"},
	"sqlstore/etcd/server": {"k8s.io/", "sigs.k8s.io/", "database/sql", "github.com/jackc/", "modernc.org/"},
	"sqlstore/postgres":    {"k8s.io/", "modernc.org/"},
	"sqlstore/storetest":   {"database/sql", "github.com/jackc/", "modernc.org/"},
	"sqlstore/sqlite":      {"k8s.io/", "github.com/jackc/"},
	"watch": {
		"k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiserver", "k8s.io/client-go", "sigs.k8s.io/", "database/sql",
		"github.com/jackc/", "modernc.org/",
	},
	"apiserver":         noSQL,
	"apiserver/envtest": {"byre/sqlstore", "byre/watch", "byre/migrations", "k8s.io/kubernetes", "k8s.io/apiserver"},
	"crd":               noSQL,
	"aggregator":        noSQL,
	"cmd/byre":          nil,
	"cmd/byre/client":   noSQL,
	"cmd/byre/sqlviews": {"byre/sqlstore"},
	"cmd/byre/status":   noSQL,
	"cmd/byre/transfer": noSQL,
}

// noSQL lists what all packages but the drivers must not import: databases, and upstream's
// own servers, which this program replaces.
var noSQL = []string{
	"database/sql", "github.com/jackc/", "modernc.org/", "byre/sqlstore/sqlite", "byre/sqlstore/postgres",
	"k8s.io/kubernetes/pkg/controlplane",
	"k8s.io/kubernetes/cmd/",
}

// leaves are packages below a ban of which this program uses what is no server. The first has the
// constructors of controllers; the others do not import upstream's servers.
var leaves = []string{
	"k8s.io/kubernetes/cmd/kube-controller-manager/app",
	"k8s.io/kubernetes/cmd/kube-controller-manager/names",
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm",
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil",
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

// An image and a small machine have no files of time zones, so the program has them, as kube-apiserver does.
func TestImports_HaveTheTimeZones(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "main.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(file.Imports, func(spec *ast.ImportSpec) bool { return spec.Path.Value == `"time/tzdata"` }) {
		t.Error("main.go does not import time/tzdata")
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
	banned, known := longest(path.Dir(rel), slices.Collect(maps.Keys(bans)))
	if !ok || !known {
		t.Errorf("%s is in no part of the import table", rel)
		return
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(bans[banned], func(ban string) bool {
			return isIn(imported, strings.TrimSuffix(ban, "/"))
		}) && !slices.Contains(leaves, imported) {
			t.Errorf("%s: %s may not import %s", rel, banned, imported)
		}
		if complaint := from.complain(imported); complaint != "" {
			t.Errorf("%s: %s", rel, complaint)
		}
	}
}

// complain returns why the part may not import the package, or "".
func (p part) complain(imported string) string {
	dir, ours := strings.CutPrefix(imported, module+"/")
	if !ours {
		return ""
	}
	to, ok := partOf(dir)
	switch {
	case !ok:
		return fmt.Sprintf("imports %s, which is in no part of the import table", imported)
	case to == p || to.layer < p.layer:
		return ""
	default:
		return fmt.Sprintf("%s (layer %d) may not import %s (layer %d)", p.dir, p.layer, to.dir, to.layer)
	}
}

func partOf(dir string) (part, bool) {
	dirs := make([]string, len(parts))
	for i, p := range parts {
		dirs[i] = p.dir
	}
	best, ok := longest(dir, dirs)
	if !ok {
		return part{}, false
	}
	return parts[slices.Index(dirs, best)], true
}

// longest returns the longest of the folders that dir is in.
func longest(dir string, folders []string) (best string, ok bool) {
	for _, f := range folders {
		if isIn(dir, f) && len(f) > len(best) {
			best, ok = f, true
		}
	}
	return best, ok
}

func isIn(dir, folder string) bool { return dir == folder || strings.HasPrefix(dir, folder+"/") }

// The table of docs/architecture.md has the parts and their layers.
func TestImports_TableIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(moduleRoot(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []part
	for _, row := range regexp.MustCompile("(?m)^\\| ([0-9]) \\| (`[^|]*`) \\|").FindAllStringSubmatch(section, -1) {
		layer, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			documented = append(documented, part{strings.TrimSuffix(dir[1], "/"), layer})
		}
	}
	if diff := cmp.Diff(parts, documented, cmp.AllowUnexported(part{})); diff != "" {
		t.Errorf("the tables differ (- test, + docs):\n%s", diff)
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
