package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// call runs a command of the program in this process.
func call(args ...string) (status int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	status = run(args, &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

func TestMigrate(t *testing.T) {
	endpoint := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
	steps := []struct{ command, want string }{
		{"status", "sqlite: schema 0, this program has 2\n"},
		{"up", "sqlite: schema 2, this program has 2\n"},
		{"up", "sqlite: schema 2, this program has 2\n"},
		{"status", "sqlite: schema 2, this program has 2\n"},
		{"down", "sqlite: schema 1, this program has 2\n"},
		{"status", "sqlite: schema 1, this program has 2\n"},
	}
	for _, step := range steps {
		status, out, errOut := call("migrate", step.command, "--endpoint", endpoint)
		if status != 0 || out != step.want {
			t.Errorf("migrate %s: status %d, %q, %q, want %q", step.command, status, out, errOut, step.want)
		}
	}
	if status, _, errOut := call("migrate", "up", "--endpoint=redis://localhost"); status != 1 || strings.Count(errOut, "\n") != 1 {
		t.Errorf("migrate of no database: status %d, %q", status, errOut)
	}
}

func TestVersion(t *testing.T) {
	if status, out, _ := call("version"); status != 0 || !strings.Contains(out, "Kubernetes API v1.36.") {
		t.Errorf("version: status %d, %q", status, out)
	}
	if status, out, _ := call("serve", "--data-dir=/nowhere", "--version"); status != 0 || !strings.Contains(out, "Kubernetes API v1.36.") {
		t.Errorf("serve --version: status %d, %q", status, out)
	}
	var info struct{ Major, Minor, GitVersion string }
	_, out, _ := call("version", "--output=json")
	if err := json.Unmarshal([]byte(out), &info); err != nil || info.Major != "1" || info.Minor != "36" || !strings.HasPrefix(info.GitVersion, "v1.36.") {
		t.Errorf("version as JSON is %q: %v", out, err)
	}
	if status, _, errOut := call("version", "--output=xml"); status != 1 || !strings.Contains(errOut, "--output") {
		t.Errorf("version in an unknown format: status %d, %q", status, errOut)
	}
}

// A command that is not there is an error, with what may have been meant.
func TestUnknownCommand(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"serv", "byre: unknown command \"serv\" for \"byre\": did you mean serve?\n"},
		{"frobnicate", "byre: unknown command \"frobnicate\" for \"byre\": see \"byre --help\"\n"},
		{"migrate ups", "byre: unknown command \"ups\" for \"byre migrate\": did you mean up?\n"},
		{"migrate --endpoint=sqlite:x.db statu", "byre: unknown command \"statu\" for \"byre migrate\": did you mean status?\n"},
		{"serve now", "byre: unknown command \"now\" for \"byre serve\"\n"},
	} {
		if status, out, errOut := call(strings.Fields(test.args)...); status != 1 || out != "" || errOut != test.want {
			t.Errorf("%s: status %d, %q, %q", test.args, status, out, errOut)
		}
	}
	_, version, _ := call("version")
	if status, out, _ := call("--version"); status != 0 || out != version {
		t.Errorf("--version: status %d, %q, want %q", status, out, version)
	}
}

func TestHelp(t *testing.T) {
	status, out, _ := call("serve", "--help")
	if status != 0 {
		t.Errorf("status is %d", status)
	}
	for _, section := range []string{
		"Store flags:", "Generic flags:", "Secure serving flags:", "Authentication flags:", "Authorization flags:",
		"Admission flags:", "Auditing flags:", "Features flags:", "Controllers flags:", "Metrics flags:", "Logs flags:", "Misc flags:",
	} {
		if !strings.Contains(out, "\n"+section+"\n") {
			t.Errorf("help has no section %q", section)
		}
	}
	if strings.Contains(out, "etcd") {
		t.Error("help shows flags that are refused")
	}
	if status, out, _ := call("--help"); status != 0 || !strings.Contains(out, "serve") || !strings.Contains(out, "migrate") {
		t.Errorf("help of the program: status %d, %q", status, out)
	}
}
