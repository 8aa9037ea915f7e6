package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"byre/cmd/byre/client"
)

// TestCommandLine_ReadsTheConfigurationStrictly: a misspelt key means another data directory than the one that its writer
// had in mind, so each command refuses it.
func TestCommandLine_ReadsTheConfigurationStrictly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: byre.dev/v1alpha1\nkind: ServerConfiguration\ndata-dri: /nowhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"serve"}, {"config"}, {"status"}, {"check"}, {"backup", filepath.Join(t.TempDir(), "b.zst")}, {"compact"}, {"migrate", "status"}, {"certs", "status"},
	} {
		status, out, errOut := call(append(args, "--config", path)...)
		if status == 0 || !strings.Contains(errOut, "line 3: data-dri is not a flag of byre serve") || out != "" {
			t.Errorf("%v: %d, %q, %q", args, status, out, errOut)
		}
	}
}

// TestCommandLine_SaysWhichDataDirectory: where nobody has named one, a command says which one it uses.
func TestCommandLine_SaysWhichDataDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	said := "no --data-dir is named: using " + filepath.Join(here, "byre-data") + "\n"
	for _, c := range []struct {
		args []string
		says bool
	}{
		{[]string{"status"}, true},
		{[]string{"check"}, true},
		{[]string{"certs", "status"}, true},
		{[]string{"status", "--data-dir", "other"}, false},
		{[]string{"check", "--endpoint", "sqlite:///nowhere/byre.db"}, false},
		{[]string{"version"}, false},
	} {
		if _, _, errOut := call(c.args...); strings.HasPrefix(errOut, said) != c.says {
			t.Errorf("%v: %q", c.args, errOut)
		}
	}
}

// TestCommandLine_TakesAStatementWithAComment: the examples of docs/sql.md begin with one.
func TestCommandLine_TakesAStatementWithAComment(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"-- which Pods\nSELECT name FROM pods", "--  which"} {
		for _, args := range [][]string{{"sql", statement}, {"sql", "-o", "csv", statement}, {"sql", "--kubeconfig=/nowhere", statement}} {
			_, _, errOut := call(append(args, "--kubeconfig", "/nowhere")...)
			if !strings.Contains(errOut, "/nowhere") {
				t.Errorf("%q: %s", args, errOut)
			}
		}
	}
	for _, args := range [][]string{{"serve", "-- x"}, {"sql", "--", "-- x"}, {"sql", "--at", "-2h"}} {
		got := client.ProtectStatement(args)
		if args[0] == "sql" && len(args) == 3 && args[1] == "--" {
			args = []string{"sql", "--", " -- x"} // which SQL takes as the same
		}
		if diff := cmp.Diff(args, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestCommandLine_NamesWhatPeopleTry: the version of the plugin, and a user without a flag.
func TestCommandLine_NamesWhatPeopleTry(t *testing.T) {
	t.Parallel()
	var out, errOut strings.Builder
	if status := run(t.Context(), "kubectl-byre", []string{"--version"}, &out, &errOut); status != 0 || !strings.HasPrefix(out.String(), "byre ") {
		t.Errorf("%d, %q, %q", status, out.String(), errOut.String())
	}
	if _, _, errOut := call("kubeconfig", "alice", "--data-dir", t.TempDir()); strings.Contains(errOut, "unknown") || strings.Contains(errOut, "--user") {
		t.Error(errOut)
	}
	if _, _, errOut := call("kubeconfig", "alice", "--user", "bob", "--data-dir", t.TempDir()); !strings.Contains(errOut, "name the user once") {
		t.Error(errOut)
	}
}
