package projects

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Kubectl, programs.APIServer, programs.Etcd, programs.Byre))
}

// TestProjects_WorkAsOnStock installs, uses and removes every project on three servers at
// once, all projects at once on each, and compares what kubectl printed.
func TestProjects_WorkAsOnStock(t *testing.T) {
	manifests := make([]Manifests, len(All))
	for i, p := range All {
		manifests[i] = fetch(t, p)
	}
	targets := startAll(t)
	answers := make([][][]output, len(targets)) // by target and project
	errs := make([]error, len(targets)*len(All))
	var group sync.WaitGroup
	for i, target := range targets {
		answers[i] = make([][]output, len(All))
		for j, p := range All {
			home := t.TempDir()
			group.Go(func() {
				answers[i][j], errs[i*len(All)+j] = target.runLifecycle(t.Context(), home, p, manifests[j])
			})
		}
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for j, p := range All {
		stock := map[string]output{}
		for _, answer := range answers[0][j] {
			stock[answer.name] = answer
		}
		t.Run(p.Name, func(t *testing.T) { expect(t, p, manifests[j], stock) })
		for i, target := range targets[1:] {
			t.Run(p.Name+"/"+target.name, func(t *testing.T) {
				for _, got := range answers[i+1][j] {
					if diff := cmp.Diff(stock[got.name].String(), got.String()); diff != "" {
						t.Errorf("%s: kube-apiserver (-), byre (+):\n%.4000s", got.name, diff)
					}
				}
			})
		}
	}
}

// expect checks the stock server's own answers, without which an empty comparison would pass.
func expect(t *testing.T, p Project, m Manifests, stock map[string]output) {
	count := func(name, ending string, want int) {
		t.Helper()
		answer := stock[name]
		if got := strings.Count(answer.stdout, " "+ending+"\n"); got != want {
			t.Errorf("%s: %d objects %s, not %d:\n%s%s", name, got, ending, want, answer.stdout, answer.stderr)
		}
	}
	count("apply server-side", "serverside-applied", m.Definitions)
	count("established", "condition met", m.Definitions)
	count("create", "created", m.Samples)
	count("patch", "patched", m.Samples)
	count("apply samples", "serverside-applied", m.Samples)
	count("malformed", "created", 0)
	malformed := stock["malformed"].stderr
	for _, refusal := range p.Refusals {
		if !strings.Contains(malformed, refusal) {
			t.Errorf("nothing malformed is refused with %q:\n%s", refusal, malformed)
		}
	}
	if m.Samples == 0 || m.Malformed == 0 || len(p.Refusals) == 0 {
		t.Errorf("%d samples, %d malformed ones, %d refusals: want some of each", m.Samples, m.Malformed, len(p.Refusals))
	}
}

func fetch(t *testing.T, p Project) Manifests {
	t.Helper()
	root, err := p.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	extra, err := os.ReadFile(filepath.Join("testdata", p.Name+".yaml"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	m, err := p.WriteManifests(os.DirFS(root), extra, t.TempDir())
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	return m
}

// startAll starts the stock server, which comes first, and byre on both databases.
// None has controllers that change objects while they are compared.
func startAll(t *testing.T) []target {
	t.Helper()
	const noServiceAccounts = "--disable-admission-plugins=ServiceAccount"
	byre := func(endpoint string) func(context.Context) (*servers.Server, error) {
		dir := filepath.Join(t.TempDir(), "data")
		return servers.Byre{Dir: dir, Endpoint: endpoint, Args: []string{noServiceAccounts, "--controllers="}}.Start
	}
	targets := []target{{name: "stock"}, {name: "sqlite"}, {name: "postgres", short: true}}
	start := []func(context.Context) (*servers.Server, error){
		servers.Stock{Dir: t.TempDir(), Args: []string{noServiceAccounts}}.Start,
		byre(""), byre(pgtest.DSN(t)),
	}
	errs := make([]error, len(targets))
	var group sync.WaitGroup
	for i := range targets {
		targets[i].slots = make(chan struct{}, 2)
		group.Go(func() { targets[i].server, errs[i] = start[i](t.Context()) })
	}
	group.Wait()
	for i, s := range targets {
		if errs[i] != nil {
			t.Error(errs[i])
			continue
		}
		t.Cleanup(func() {
			s.server.Report(t)
			if s.name == "stock" {
				s.server.Kill()
			} else if err := s.server.Stop(); err != nil {
				t.Errorf("%s ended with: %v", s.name, err)
			}
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	return targets
}
