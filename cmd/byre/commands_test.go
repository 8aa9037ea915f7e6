package main

import (
	"bytes"
	"context"
	stdsql "database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"byre/migrations"
	"byre/sqlstore/storetest"
)

// progressLines are what a command of more than two seconds prints meanwhile.
var progressLines = regexp.MustCompile(`(?m)^.* (\d+ rows, \d+ MiB|\d+ s)\n`)

// call runs a command of the program in this process. It leaves out what a slow machine
// makes the command say of its progress.
func call(args ...string) (status int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	status = run(context.Background(), "byre", args, &stdout, &stderr)
	return status, stdout.String(), progressLines.ReplaceAllString(stderr.String(), "")
}

func TestMigrate_UpDownStatus(t *testing.T) {
	dir := t.TempDir()
	endpoint := "sqlite://" + filepath.Join(dir, "byre.db")
	latest, err := migrations.Latest(migrations.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	migrate := func(wantStatus int, want string, args ...string) {
		t.Helper()
		status, out, errOut := call(append([]string{"migrate", "--endpoint", endpoint}, args...)...)
		if status != wantStatus || !strings.Contains(out+errOut, want) || strings.Count(errOut, "\n") > 1 {
			t.Errorf("migrate %q: status %d, %q, %q, want %d, %q", args, status, out, errOut, wantStatus, want)
		}
	}
	at := func(version migrations.Version) string {
		return fmt.Sprintf("sqlite: schema %d, this program has %d\n", version, latest)
	}
	migrate(1, "there is no schema of byre to take down", "down")
	migrate(1, "there is no schema of byre to take down", "down", "--yes-delete-all-data")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("down of nothing has made %v, %v", entries, err)
	}
	migrate(2, at(0), "status")
	migrate(2, "byre migrate up", "status")
	migrate(0, at(latest), "up")
	migrate(0, at(latest), "up")
	migrate(0, at(latest), "status")
	for version := latest - 1; version >= 1; version-- {
		migrate(0, at(version), "down")
		migrate(2, at(version), "status")
	}
	migrate(1, "deletes all data: 0 objects, and 0 changes of history; to do it, add --yes-delete-all-data", "down")
	migrate(0, at(0), "down", "--yes-delete-all-data")

	migrate(0, at(latest), "up")
	database, err := stdsql.Open("sqlite", migrations.SQLiteDSN(filepath.Join(dir, "byre.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	for text, want := range map[string]int{"dirty = true": 3, "version = 999; UPDATE store SET least_version = 999": 4} {
		if _, err := database.ExecContext(t.Context(), "UPDATE byre_schema_version SET "+text); err != nil {
			t.Fatal(err)
		}
		migrate(want, map[int]string{3: "restore a backup", 4: "run that version"}[want], "status")
		if _, err := database.ExecContext(t.Context(), "UPDATE byre_schema_version SET dirty = false, version = 1; UPDATE store SET least_version = 1"); err != nil {
			t.Fatal(err)
		}
	}
	endpoint = "redis://localhost"
	migrate(1, "endpoint", "up")
}

// awaitShared waits until a process shares a lock of the database.
func awaitShared(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	storetest.EventuallyDone(t, "the lock is shared", func(ctx context.Context) (shared bool, err error) {
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ShareLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&shared)
		return shared, err
	})
}

func TestVersion_IsPrinted(t *testing.T) {
	number := regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+`) // in a build without Git too
	if status, out, _ := call("version"); status != 0 || !number.MatchString(strings.TrimPrefix(out, "byre ")) || !strings.Contains(out, "Kubernetes API v1.37.") {
		t.Errorf("version: status %d, %q", status, out)
	}
	if status, out, _ := call("serve", "--data-dir=/nowhere", "--version"); status != 0 || !strings.Contains(out, "Kubernetes API v1.37.") {
		t.Errorf("serve --version: status %d, %q", status, out)
	}
	latest, err := migrations.Latest(migrations.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	for format, decode := range map[string]func([]byte, *versionInfo) error{
		"json": func(text []byte, info *versionInfo) error { return json.Unmarshal(text, info) },
		"yaml": func(text []byte, info *versionInfo) error { return yaml.UnmarshalStrict(text, info) },
	} {
		var info versionInfo
		_, out, _ := call("version", "--output="+format)
		if err := decode([]byte(out), &info); err != nil || info.Major != "1" || info.Minor != "37" || !strings.HasPrefix(info.GitVersion, "v1.37.") ||
			!number.MatchString(info.ByreVersion) || info.SchemaVersions.SQLite != latest {
			t.Errorf("version as %s is %q: %v", format, out, err)
		}
	}
	if status, _, errOut := call("version", "--output=xml"); status != 1 || !strings.Contains(errOut, "--output") {
		t.Errorf("version in an unknown format: status %d, %q", status, errOut)
	}
}

// The error for an unknown command suggests a similar one.
func TestCommand_UnknownIsAnError(t *testing.T) {
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

func TestCommand_Help(t *testing.T) {
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

func TestCompletion_OfEachShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if status, out, errOut := call("completion", shell); status != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("%s: status %d, %d bytes, %q", shell, status, len(out), errOut)
		}
	}
	for line, want := range map[string]string{
		"mig":                "migrate\t",
		"serve --data-d":     "--data-dir\t",
		"version --output j": "json\n",
	} {
		args := append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Fields(line)...)
		if strings.HasSuffix(want, "\t") {
			args[0] = cobra.ShellCompRequestCmd
		}
		if status, out, errOut := call(args...); status != 0 || !strings.HasPrefix(out, want) {
			t.Errorf("completion of %q: status %d, %q, %q, want %q", line, status, out, errOut, want)
		}
	}
}

// The manual has one page for each command, with its flags. Two runs write the same bytes.
func TestMan_HasAPageOfEachCommand(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		if status, _, errOut := call("man", dir); status != 0 {
			t.Fatalf("status %d, %s", status, errOut)
		}
	}
	for page, want := range map[string]string{
		"byre.8":              `byre\-serve(8)`,
		"byre-serve.8":        "--service-cluster-ip-range",
		"byre-serve.8 names":  "The key's format is <MetricName>,<LabelName>.",
		"byre-migrate-up.8":   "--endpoint",
		"byre-backup.8":       "byre backup",
		"byre-completion.8":   `byre\-completion\-bash(8)`,
		"byre-version.8":      "--output",
		"byre-serve.8 header": `"Nov 2023"`,
	} {
		name, _, _ := strings.Cut(page, " ")
		var texts []string
		for _, dir := range dirs {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(text))
		}
		if plain := strings.ReplaceAll(texts[0], `\-`, "-"); !strings.Contains(plain, strings.ReplaceAll(want, `\-`, "-")) {
			t.Errorf("%s lacks %q:\n%.1000s", page, want, texts[0])
		}
		if texts[0] != texts[1] {
			t.Errorf("%s differs when it is written again", page)
		}
	}
}
