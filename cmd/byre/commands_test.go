package main

import (
	"bytes"
	"context"
	stdsql "database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"byre/cmd/byre/client"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
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
		const reset = "UPDATE byre_schema_version SET dirty = false, version = ?1; UPDATE store SET least_version = ?1"
		if _, err := database.ExecContext(t.Context(), reset, latest); err != nil {
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
	if status, out, _ := call("version"); status != 0 || !number.MatchString(strings.TrimPrefix(out, "byre ")) ||
		!strings.Contains(out, "Kubernetes API v1.37.") {
		t.Errorf("version: status %d, %q", status, out)
	}
	if status, out, _ := call("serve", "--data-dir=/nowhere", "--version"); status != 0 ||
		!strings.Contains(out, "Kubernetes API v1.37.") {
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
		if err := decode([]byte(out), &info); err != nil || info.Major != "1" || info.Minor != "37" ||
			!strings.HasPrefix(info.GitVersion, "v1.37.") ||
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
		{"migrate --endpoint=sqlite:x.db statu",
			"byre: unknown command \"statu\" for \"byre migrate\": did you mean status?\n"},
		{"serve now", "byre: unknown command \"now\" for \"byre serve\"\n"},
	} {
		if status, out, errOut := call(strings.Fields(test.args)...); status != 1 || out != "" || errOut != test.want {
			t.Errorf("%s: status %d, %q, %q", test.args, status, out, errOut)
		}
	}
	_, version, _ := call("version")
	for _, args := range []string{
		"--version", "-v", "log --version", "compact --version", "migrate up --version", "sql --at=-1h --version",
		"version --version", "completion bash --version",
	} {
		if status, out, errOut := call(strings.Fields(args)...); status != 0 || out != version || errOut != "" {
			t.Errorf("%s: status %d, %q, %q, want %q", args, status, out, errOut, version)
		}
	}
	status, out, _ := call("version", "--version=false", "--output=json")
	if status != 0 || !strings.HasPrefix(out, "{") {
		t.Errorf("version --version=false: status %d, %q", status, out)
	}
}

func TestCommand_Help(t *testing.T) {
	status, out, _ := call("serve", "--help")
	if status != 0 {
		t.Errorf("status is %d", status)
	}
	for _, section := range []string{
		"Store flags:", "Generic flags:", "Secure serving flags:", "Authentication flags:", "Authorization flags:",
		"Admission flags:", "Auditing flags:", "Features flags:", "Controllers flags:", "Metrics flags:", "Logs flags:",
		"Misc flags:",
	} {
		if !strings.Contains(out, "\n"+section+"\n") {
			t.Errorf("help has no section %q", section)
		}
	}
	if strings.Contains(out, "etcd") {
		t.Error("help shows flags that are refused")
	}
	if status, out, _ := call("--help"); status != 0 || !strings.Contains(out, "serve") ||
		!strings.Contains(out, "migrate") {
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

// TestCommandLine_ReadsTheConfigurationStrictly: a misspelt key means another data directory than the one that its
// writer had in mind, so each command refuses it.
func TestCommandLine_ReadsTheConfigurationStrictly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("data-dri: /nowhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"serve"}, {"config"}, {"status"}, {"check"}, {"backup", filepath.Join(t.TempDir(), "b.zst")}, {"compact"},
		{"migrate", "status"}, {"certs", "status"},
	} {
		status, out, errOut := call(append(args, "--config", path)...)
		if status == 0 || !strings.Contains(errOut, "line 1: data-dri is not a flag of byre serve") || out != "" {
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
		for _, args := range [][]string{{"sql", statement}, {"sql", "-o", "csv", statement},
			{"sql", "--kubeconfig=/nowhere", statement}} {
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
	for _, args := range [][]string{{"--version"}, {"log", "--version"}} {
		out.Reset()
		status := run(t.Context(), "kubectl-byre", args, &out, &errOut)
		if status != 0 || !strings.HasPrefix(out.String(), "byre ") {
			t.Errorf("%q: %d, %q, %q", args, status, out.String(), errOut.String())
		}
	}
	if _, _, errOut := call("kubeconfig", "alice", "--data-dir", t.TempDir()); strings.Contains(errOut, "unknown") ||
		strings.Contains(errOut, "--user") {
		t.Error(errOut)
	}
	if _, _, errOut := call("kubeconfig", "alice", "--user", "bob", "--data-dir", t.TempDir()); !strings.Contains(errOut,
		"name the user once") {
		t.Error(errOut)
	}
}

// Each command that gets a wrong file or database names it, in one line, with the next step, and
// makes nothing.
func TestMessages_NameTheFileAndTheRemedy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	missing, garbage, foreign, backup, snapshot := in("missing.db"), in("garbage"), in("foreign.db"), in("backup.zst"),
		in("etcd.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("garbage ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sqlite3", foreign, "CREATE TABLE t (a)").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	database := sqliteWith(t, storetest.RandomRows(t, rand.New(rand.NewPCG(3, 3))))
	file := strings.TrimPrefix(database, "sqlite://")
	succeed(t, "backup", "--endpoint", database, backup)
	succeed(t, "export", "etcd", snapshot, "--data-dir", sharedServer(t, "sqlite").dir)

	const noDatabase = "there is no database in "
	target := "sqlite://" + in("target.db")
	for _, read := range [][]string{
		{"backup", in("out"), "--endpoint"},
		{"export", "etcd", in("out"), "--endpoint"},
		{"check", "--endpoint"},
		{"copy", "--to", target, "--from"},
		{"restore", "--endpoint", target, "--from"},
	} {
		with := func(path string) []string { return append(read, "sqlite://"+path) }
		expectFailure(t, noDatabase+missing+": name its directory with --data-dir", with(missing)...)
		expectFailure(t, garbage+": not a byre database: name a database that ", with(garbage)...)
		expectFailure(t, foreign+" is another program's SQLite database: use \"byre import kine sqlite://"+foreign,
			with(foreign)...)
		expectFailure(t, backup+" is a compressed file, as backups of byre are: use \"byre restore "+backup, with(backup)...)
		expectFailure(t, snapshot+" is a snapshot of etcd: use \"byre import etcd "+snapshot, with(snapshot)...)
	}
	for want, args := range map[string][]string{
		"use \"byre import etcd " + snapshot:              {"restore", snapshot},
		"use \"byre restore --from sqlite://" + file:      {"restore", file},
		garbage + ": snapshot is broken: ":                {"restore", garbage},
		"use \"byre restore " + backup:                    {"import", "etcd", backup},
		"use \"byre restore --from sqlite://" + file + "": {"import", "etcd", file},
		garbage + ": not a snapshot of etcd: save one":    {"import", "etcd", garbage},
		"use \"byre restore " + backup + "\"":             {"import", "kine", "sqlite://" + backup},
		"use \"byre import etcd " + snapshot + "\"":       {"import", "kine", "sqlite://" + snapshot},
		foreign + ": ": {"import", "kine", "sqlite://" + foreign},
	} {
		expectFailure(t, want, append(args, "--endpoint", target)...)
	}
	for _, path := range []string{missing, in("out"), in("target.db"), in("target.db.lock"), missing + ".lock"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s was made", path)
		}
	}
}

// What has no objects is not restored or imported, so that the right try finds an empty database.
func TestMessages_RefuseToLoadNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	startServer(t, in("data"), "--controllers=").stop(t)
	succeed(t, "export", "etcd", in("etcd.db"), "--data-dir", in("data"), "--etcd-prefix", "/one/two")
	empty := in("empty.zst")
	succeed(t, "backup", "--endpoint",
		sqliteWith(t, storetest.Rows{Header: sqlstore.Header{Epoch: "e", Time: time.Now()}}), empty)
	for name, endpoint := range emptyDatabases(t) {
		for want, args := range map[string][]string{
			"there are no objects at revision 0, where the history reaches from revision 0 to 0: nothing was restored":          {"restore", empty},
			"there are no objects below --etcd-prefix /registry, so nothing was imported; the source has keys below /one/two (": {"import", "etcd", in("etcd.db")},
		} {
			expectFailure(t, want, append(args, "--endpoint", endpoint)...)
		}
		if path, isFile := strings.CutPrefix(endpoint, "sqlite://"); isFile {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s was made", path)
			}
		}
		if out, _ := succeed(t, "import", "etcd", in("etcd.db"), "--etcd-prefix", "/one/two", "--endpoint",
			endpoint); !strings.Contains(out, "imported and verified") {
			t.Errorf("%s: the right try says %s", name, out)
		}
	}
}

// A PostgreSQL database without byre's tables is not one to be migrated, and a role that does not
// exist is not a question of pg_hba.conf.
func TestMessages_OfPostgreSQL(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	for _, read := range [][]string{
		{"backup", filepath.Join(t.TempDir(), "out"), "--endpoint"}, {"check", "--endpoint"},
		{"status", "--data-dir", t.TempDir(), "--endpoint"},
	} {
		expectFailure(t, "it has no tables of byre: name the database that ", append(read, dsn)...)
	}
	nobody := strings.Replace(dsn, "//byre@", "//nobody@", 1)
	expectFailure(t, `role "nobody" does not exist: create it (CREATE ROLE "nobody" LOGIN), or let it log in`, "check",
		"--endpoint", nobody)
}

// A server refuses a malformed file with its path and its flag.
func TestMessages_OfConfigurationFiles(t *testing.T) {
	t.Parallel()
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("garbage\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, flag := range []string{
		"config", "encryption-provider-config", "audit-policy-file", "authentication-config", "authorization-config",
		"admission-control-config-file", "tracing-config-file", "egress-selector-config-file", "client-ca-file",
		"tls-cert-file",
	} {
		args := []string{"serve", "--data-dir", dir, "--secure-port=0", "--" + flag, garbage}
		if flag == "tls-cert-file" {
			args = append(args, "--tls-private-key-file", garbage)
		}
		p := command(t, dir, args...)
		status := p.wait(t)
		lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
		last := lines[len(lines)-1]
		if status != 1 || !strings.HasPrefix(last, "byre: ") || !strings.Contains(last, garbage) ||
			strings.Contains(last, "Go value") {
			t.Errorf("--%s: status %d, %s", flag, status, last)
		}
	}
}

// Every flag for a duration takes days, under each name of the program.
func TestMessages_EveryDurationTakesDays(t *testing.T) {
	t.Parallel()
	flags := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Value.Type() != "duration" {
				return
			}
			flags++
			if err := flag.Value.Set("2d"); err != nil || flag.Value.String() != "48h0m0s" {
				t.Errorf("%s --%s=2d: %v, %v", cmd.CommandPath(), flag.Name, flag.Value, err)
			}
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	for _, name := range []string{"byre", "kube-apiserver"} {
		before := flags
		if visit(newCommand(name)); flags-before < 20 {
			t.Errorf("%s: found %d flags, which can't be all", name, flags-before)
		}
	}
}

// What a flag with days means, and the message for what is no duration.
func TestMessages_DurationsTakeDays(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"retention=2d": "retention: 48h0m0s", "event-ttl=1w1h": "event-ttl: 169h0m0s",
		"audit-log-batch-max-wait=1d": "audit-log-batch-max-wait: 24h0m0s",
		"retention=90m":               "retention: 1h30m0s",
	} {
		if out, _ := succeed(t, "config", "--"+flag); !strings.Contains(out, want) {
			t.Errorf("--%s: no %s", flag, want)
		}
	}
	for _, args := range [][]string{{"config", "--retention=2x"}, {"compact", "--keep=2x"},
		{"kubeconfig", "--user=x", "--duration=2x"}} {
		expectFailure(t, `"2x" is not a time such as 90d, 12h, 5m or 1h30m`, args...)
	}
}
