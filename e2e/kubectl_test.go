package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"byre/e2e/manifests"
	"byre/e2e/peers"
	"byre/e2e/programs"
	"byre/e2e/servers"
)

// TestKubectl_Scripts runs the scripts of testdata/scripts, all at once, against one
// server for each database. A script has a namespace of its own, $NS, which is the
// default of its kubectl; the names of its cluster-scoped objects contain $NS.
func TestKubectl_Scripts(t *testing.T) {
	t.Parallel()
	for _, db := range databases {
		t.Run(db, func(t *testing.T) {
			t.Parallel()
			db := openDatabase(t, db)
			runScripts(t, startByre(t, db), db)
		})
	}
}

// TestKubectl_ScriptsAgainstStock runs the scripts against a stock kube-apiserver, which
// shows that they expect what Kubernetes does. It runs only with E2E_STOCK set: with a stock
// server some scripts fail, which need controllers of kube-controller-manager.
func TestKubectl_ScriptsAgainstStock(t *testing.T) {
	t.Parallel()
	if os.Getenv("E2E_STOCK") == "" {
		t.Skip("set E2E_STOCK=1 to try the scripts on a stock kube-apiserver")
	}
	s, err := servers.Stock{Dir: t.TempDir(),
		Args: []string{"--disable-admission-plugins=ServiceAccount"}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	runScripts(t, s, database{name: "stock"})
}

func runScripts(t *testing.T, s *servers.Server, db database) {
	web := newAuthority(t, "web")
	hooks := peers.NewHooks(web)
	t.Cleanup(hooks.Close)
	var scripts atomic.Int32
	testscript.Run(t, testscript.Params{
		Dir:             filepath.Join("testdata", "scripts"),
		ContinueOnError: true,
		Setup: func(env *testscript.Env) error {
			kubeconfig, err := os.ReadFile(s.Kubeconfig)
			if err != nil {
				return err
			}
			own := filepath.Join(env.WorkDir, "kubeconfig")
			if err := os.WriteFile(own, kubeconfig, 0o600); err != nil {
				return err
			}
			if err := s.WriteKubeconfig(filepath.Join(env.WorkDir, "alice"), servers.AliceToken, "default"); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(env.WorkDir, "nobody"), nil, 0o600); err != nil {
				return err
			}
			env.Setenv("PATH", programs.Dir()+string(os.PathListSeparator)+os.Getenv("PATH"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("GOGC", "off") // of kubectl, which ends before it needs a collection
			env.Setenv("GOMEMLIMIT", "1GiB")
			env.Setenv("KUBECONFIG", own)
			env.Setenv("KUBECACHEDIR", filepath.Join(env.WorkDir, "cache"))
			env.Setenv("NS", fmt.Sprintf("s%02d-%s", scripts.Add(1), db.name))
			env.Setenv("BYRE", programs.Byre.Path())
			env.Setenv("SERVER", s.URL)
			env.Setenv("CA", s.CAFile)
			env.Setenv("HOOKS", hooks.URL)
			env.Setenv("HOOKS_PORT", hooks.URL[strings.LastIndex(hooks.URL, ":")+1:])
			env.Setenv("HOOKS_CA", base64.StdEncoding.EncodeToString(web.PEM))
			if db.name == "stock" {
				env.Setenv("STOCK", "1")
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "stock" {
				return db.name == "stock", nil
			}
			return false, fmt.Errorf("no such condition: %s", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"namespace":  makeNamespace,
			"manifests":  copyManifests,
			"expand":     expandFiles,
			"sql":        func(ts *testscript.TestScript, neg bool, args []string) { runSQL(ts, db, neg, args) },
			"count":      countMatches,
			"dependents": makeDependents,
			"eventually": runUntilItSucceeds,

			"largedefinition": makeLargeDefinition,
		},
	})
}

// makeNamespace creates the namespace $NS and makes it kubectl's default.
func makeNamespace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: namespace")
	}
	ns := ts.Getenv("NS")
	ts.Check(ts.Exec("kubectl", "create", "namespace", ns))
	ts.Check(ts.Exec("kubectl", "config", "set-context", "--current", "--namespace", ns))
	if ts.Getenv("STOCK") == "" {
		// Pods need the service account, which a controller creates.
		runUntilItSucceeds(ts, false, []string{"", "kubectl", "get", "serviceaccount", "default"})
	}
}

// copyManifests makes a directory with the manifests for this script.
func copyManifests(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: manifests DIR")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.CopyFS(dir, manifests.Files))
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	ts.Check(err)
	expandFiles(ts, false, files)
}

// expandFiles writes the script's namespace for ${NS} into files, and where the
// webhooks are for ${HOOKS} (their URL), ${HOOKS_PORT} and ${HOOKS_CA}.
func expandFiles(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: expand FILE...")
	}
	var pairs []string
	for _, name := range []string{"NS", "HOOKS", "HOOKS_PORT", "HOOKS_CA"} {
		pairs = append(pairs, "${"+name+"}", ts.Getenv(name))
	}
	expand := strings.NewReplacer(pairs...)
	for _, name := range args {
		path := ts.MkAbs(name)
		text, err := os.ReadFile(path)
		ts.Check(err)
		ts.Check(os.WriteFile(path, []byte(expand.Replace(string(text))), 0o600))
	}
}

// runSQL queries the database; the answer, one row a line, must contain a text.
// NS in the query stands for the namespace of the script.
func runSQL(ts *testscript.TestScript, db database, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] sql QUERY TEXT")
	}
	if db.name == "stock" {
		return
	}
	query := strings.ReplaceAll(args[0], "NS", ts.Getenv("NS"))
	rows, err := db.query(query)
	ts.Check(err)
	if got := strings.Join(rows, "\n"); strings.Contains(got, args[1]) == neg {
		ts.Fatalf("%s\nanswers:\n%s", query, got)
	}
}
