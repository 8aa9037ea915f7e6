package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// Each command that gets a wrong file or database names it, in one line, with the next step, and
// makes nothing.
func TestMessages_NameTheFileAndTheRemedy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	missing, garbage, foreign, backup, snapshot := in("missing.db"), in("garbage"), in("foreign.db"), in("backup.zst"), in("etcd.db")
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
		expectFailure(t, foreign+" is another program's SQLite database: use \"byre import kine sqlite://"+foreign, with(foreign)...)
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
	succeed(t, "export", "etcd", in("etcd.db"), "--data-dir", sharedServer(t, "sqlite").dir, "--etcd-prefix", "/one/two")
	empty := in("empty.zst")
	succeed(t, "backup", "--endpoint", sqliteWith(t, storetest.Rows{Header: sqlstore.Header{Epoch: "e", Time: time.Now()}}), empty)
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
		if out, _ := succeed(t, "import", "etcd", in("etcd.db"), "--etcd-prefix", "/one/two", "--endpoint", endpoint); !strings.Contains(out, "imported and verified") {
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
		{"backup", filepath.Join(t.TempDir(), "out"), "--endpoint"}, {"check", "--endpoint"}, {"status", "--data-dir", t.TempDir(), "--endpoint"},
	} {
		expectFailure(t, "it has no tables of byre: name the database that ", append(read, dsn)...)
	}
	nobody := strings.Replace(dsn, "//byre@", "//nobody@", 1)
	expectFailure(t, `role "nobody" does not exist: create it (CREATE ROLE "nobody" LOGIN), or let it log in`, "check", "--endpoint", nobody)
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
		"admission-control-config-file", "tracing-config-file", "egress-selector-config-file", "client-ca-file", "tls-cert-file",
	} {
		args := []string{"serve", "--data-dir", dir, "--secure-port=0", "--" + flag, garbage}
		if flag == "tls-cert-file" {
			args = append(args, "--tls-private-key-file", garbage)
		}
		p := command(t, dir, args...)
		status := p.wait(t)
		lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
		last := lines[len(lines)-1]
		if status != 1 || !strings.HasPrefix(last, "byre: ") || !strings.Contains(last, garbage) || strings.Contains(last, "Go value") {
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
		"retention=2d": "retention: 48h0m0s", "event-ttl=1w1h": "event-ttl: 169h0m0s", "audit-log-batch-max-wait=1d": "audit-log-batch-max-wait: 24h0m0s",
		"retention=90m": "retention: 1h30m0s",
	} {
		if out, _ := succeed(t, "config", "--"+flag); !strings.Contains(out, want) {
			t.Errorf("--%s: no %s", flag, want)
		}
	}
	for _, args := range [][]string{{"config", "--retention=2x"}, {"compact", "--keep=2x"}, {"kubeconfig", "--user=x", "--duration=2x"}} {
		expectFailure(t, `"2x" is not a time such as 90d, 12h, 5m or 1h30m`, args...)
	}
}
