package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/storetest"
)

// backupsIn returns what "byre backup list" tells.
func backupsIn(t *testing.T, dir string) (backups []storedBackup) {
	t.Helper()
	out, _ := succeed(t, "backup", "list", "--output=json", dir)
	if err := json.Unmarshal([]byte(out), &backups); err != nil {
		t.Fatal(err)
	}
	return backups
}

// A server makes the backups of its schedule. They can be restored into either database, and the metric
// and "byre status" tell of the last one.
func TestServe_MakesBackups(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir, to := t.TempDir(), t.TempDir()
		server := startServer(t, dir, append([]string{"--backup-schedule=@every 1s", "--backup-keep=2", "--backup-to", to}, flags...)...)
		storetest.Eventually(t, "a server makes backups", func() bool { return len(backupsIn(t, to)) == 2 })
		first := backupsIn(t, to)[0]
		storetest.Eventually(t, "a server deletes the oldest backup", func() bool {
			_, err := os.Stat(filepath.Join(to, first.Name))
			return os.IsNotExist(err)
		})
		status, body := server.mustGet(t, "/metrics")
		metric := regexp.MustCompile(`(?m)^byre_store_last_backup_timestamp_seconds\{location="` + regexp.QuoteMeta(to) + `/byre-\d{8}T\d{6}Z.zst",revision="\d+"\} `)
		if status != http.StatusOK || !metric.MatchString(body) {
			t.Errorf("/metrics answers %d without the last backup in %s", status, to)
		}
		server.stop(t)
		if strings.Contains(server.log.String(), "the schedule is not kept") {
			t.Error("a backup failed")
		}
		backups := backupsIn(t, to)
		last := backups[len(backups)-1]
		if len(backups) > 3 || last.Error != "" || last.Objects == 0 || last.Revision < first.Revision {
			t.Errorf("the server left %+v", backups)
		}
		expectBackup(t, filepath.Join(to, last.Name), append([]string{"status", "--data-dir", dir}, flags...)...)
		if out, _ := succeed(t, "backup", "verify", to); strings.Count(out, ": complete, revision ") != len(backups) {
			t.Errorf("verify: %s", out)
		}
		for _, endpoint := range emptyDatabases(t) {
			succeed(t, "restore", "--endpoint", endpoint, filepath.Join(to, last.Name))
		}
	})
}

// A fork may have the configuration of its source, with the place of its backups: it makes none until it is adopted.
func TestFork_MakesNoBackups(t *testing.T) {
	t.Parallel()
	source, dir, to, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "fork"), t.TempDir(), t.TempDir()
	startServer(t, source, "--controllers=").stop(t)
	succeed(t, "fork", "--data-dir", source, "--to", dir)
	args := []string{"--controllers=", "--backup-schedule=@every 1s", "--backup-to"}
	fork := startServer(t, dir, append(args, to)...)
	beside := startServer(t, source, append(args, elsewhere)...)
	storetest.Eventually(t, "the source has made backups meanwhile", func() bool { return len(backupsIn(t, elsewhere)) >= 3 })
	beside.stop(t)
	fork.stop(t)
	if made := backupsIn(t, to); len(made) > 0 {
		t.Errorf("the fork has made %+v", made)
	}
	fork = startServer(t, dir, append(args, to, "--adopt")...)
	storetest.Eventually(t, "an adopted fork makes backups", func() bool { return len(backupsIn(t, to)) > 0 })
	fork.stop(t)
}

// Of two servers on one PostgreSQL one makes the backup.
func TestReplicas_MakeOneBackup(t *testing.T) {
	t.Parallel()
	flags := append(databases()["postgres"](t), "--cert-dir", t.TempDir(), "--backup-schedule=@monthly")
	dirs := []string{t.TempDir(), t.TempDir()}
	var servers []*serverProcess
	for _, to := range dirs {
		servers = append(servers, startServer(t, t.TempDir(), append(flags, "--backup-to", to)...))
	}
	count := func() int { return len(backupsIn(t, dirs[0])) + len(backupsIn(t, dirs[1])) }
	storetest.Eventually(t, "a server makes a backup", func() bool { return count() > 0 })
	for _, server := range servers {
		server.stop(t)
	}
	if n := count(); n != 1 {
		t.Errorf("there are %d backups", n)
	}
}

// A server does not start with half a schedule.
func TestServe_RefusesAScheduleThatCannotBe(t *testing.T) {
	for want, args := range map[string][]string{
		"--backup-schedule and --backup-to need each other": {"--backup-schedule=@daily"},
		`--backup-schedule "daily": `:                       {"--backup-schedule=daily", "--backup-to=/backup"},
		`--backup-schedule "0 0 30 2 *": that never comes`:  {"--backup-schedule=0 0 30 2 *", "--backup-to=/backup"},
		"--backup-keep must be at least 1":                  {"--backup-keep=0"},
		`--age-recipient "age1": `:                          {"--age-recipient=age1", "--replicate-to=file:///copies"},
		"--age-recipient needs --backup-schedule or ":       {"--age-recipient=age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"},
	} {
		p := command(t, "", append([]string{"serve", "--data-dir", t.TempDir()}, args...)...)
		if status := p.wait(t); status != 1 || !strings.HasPrefix(p.log.String(), "byre: "+want) || strings.Count(p.log.String(), "\n") != 1 {
			t.Errorf("%q: status %d, %q, want %q", args, status, p.log, want)
		}
	}
}

// Clusters may share a directory: exactly the newest backups of each stay. Those of programs that did not write down their cluster
// are known by their epoch.
func TestBackups_ArePrunedByCluster(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		var all []storedBackup
		for i := range random.IntN(12) {
			cluster, epoch := []string{"", "one", "two"}[random.IntN(3)], []string{"x", "y"}[random.IntN(2)]
			if cluster != "" {
				epoch = cluster // each cluster has its own
			}
			all = append(all, storedBackup{Name: fmt.Sprint(i), Cluster: cluster, header: &sqlstore.Header{Cluster: cluster, Epoch: epoch}})
		}
		keep := 1 + random.IntN(4)
		var want []string
		left := map[string]int{}
		for _, b := range slices.Backward(all) {
			if left[b.header.Epoch]++; left[b.header.Epoch] > keep {
				want = append(want, b.Name)
			}
		}
		slices.Reverse(want)
		var got []string
		for _, b := range oldBackups(all, keep) {
			got = append(got, b.Name)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("of %+v all but %d: %q, want %q", all, keep, got, want)
		}
	}
}

// The commands tell what is in a directory, which of it can be restored, and delete the oldest if told so.
func TestBackups_AreListedVerifiedAndPruned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, name := range []string{"c.zst", "a.zst", "b.zst"} {
		rows := storetest.RandomRows(t, rand.New(rand.NewPCG(1, uint64(i))))
		succeed(t, "backup", "--endpoint", sqliteWith(t, rows), filepath.Join(dir, name))
	}
	content, err := os.ReadFile(filepath.Join(dir, "b.zst"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"cut.zst": content[:len(content)-9], "foreign.zst": []byte("something else"), "note.txt": nil} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (all string) {
		for _, b := range backupsIn(t, dir) {
			all += strings.TrimSuffix(b.Name, ".zst") + " "
			if isForeign := b.Name == "foreign.zst"; (b.Error != "") != isForeign || (b.Revision > 0 && b.Objects > 0 && b.SizeBytes > 0 && !b.Time.IsZero() && b.Program != "") == isForeign {
				t.Errorf("it lists %+v", b)
			}
		}
		return all
	}
	const all = "foreign c a b cut " // as the times of what they hold; those that are none first
	if got := names(); got != all {
		t.Errorf("it lists %q", got)
	}
	out, _ := succeed(t, "backup", "list", dir)
	if !regexp.MustCompile(`(?m)^c.zst +\d{4}-\S+Z +\d+ +\d+ +\d+\.\d MiB +\S+$`).MatchString(out) || !strings.Contains(out, "foreign.zst  -") || strings.Contains(out, "note") {
		t.Errorf("it lists\n%s", out)
	}
	status, out, errOut := call("backup", "verify", dir)
	if status != 2 || strings.Count(out, ": complete, revision ") != 3 || !strings.Contains(out, "cut.zst: snapshot is broken: ") || !strings.Contains(out, "foreign.zst: snapshot is broken: ") ||
		!strings.HasPrefix(errOut, "byre: 2 of 5 backups can't be restored") {
		t.Errorf("verify: %d, %s%s", status, out, errOut)
	}
	succeed(t, "backup", "verify", filepath.Join(dir, "a.zst"))
	var verified bytes.Buffer
	verify := new(cobra.Command)
	verify.SetContext(t.Context())
	verify.SetOut(&verified)
	of := func(name string) verification {
		file := bucket.Location{Name: filepath.Join(dir, name)}
		return verification{file.Name, func() (string, error) { return verifyBackup(verify, file) }}
	}
	if err := verifyAll(verify, []verification{of("deleted.zst"), of("a.zst")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a file that was deleted meanwhile: %v", err)
	}
	if !strings.Contains(verified.String(), "a.zst: complete, revision ") {
		t.Errorf("after a file that was deleted meanwhile:\n%s", &verified)
	}
	expectFailure(t, "there is no backup there", "backup", "verify", t.TempDir())
	expectFailure(t, "no such file", "backup", "verify", filepath.Join(dir, "nothing.zst"))
	expectFailure(t, "no such file", "backup", "list", filepath.Join(dir, "nothing"))
	expectFailure(t, "name a directory of backups, or set --backup-to", "backup", "list")
	expectFailure(t, "--keep must be at least 1", "backup", "prune", dir, "--keep=0")
	expectFailure(t, `"keep" not set`, "backup", "prune", dir)

	answer := func(text string) string {
		t.Helper()
		root, out := newRootCommand(), new(bytes.Buffer)
		root.SetIn(strings.NewReader(text))
		root.SetOut(out)
		root.SetArgs([]string{"backup", "prune", "--backup-to", dir, "--keep=3"})
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	if out := answer("n\n"); !strings.Contains(out, "delete 1 of 4 backups:\n") || !strings.Contains(out, "\nc.zst ") || strings.Contains(out, "\na.zst") || names() != all {
		t.Errorf("an answer of no: %s, %q", out, names())
	}
	if out := answer("y\n"); !strings.HasSuffix(out, "deleted 1 backups\n") || names() != "foreign a b cut " {
		t.Errorf("an answer of yes: %s, %q", out, names())
	}
	if out := answer(""); !strings.Contains(out, "nothing to delete") {
		t.Errorf("of three: %s", out)
	}
	if status, _, errOut := call("backup", "prune", dir, "--keep=1"); status != 1 || errOut != "byre: nothing done: nobody answered; use --yes\n" {
		t.Errorf("without an answer: %d, %q", status, errOut)
	}
	succeed(t, "backup", "prune", dir, "--keep=1", "--yes")
	if got := names(); got != "foreign cut " {
		t.Errorf("with --yes it left %q", got)
	}
}

// The names of objects in S3 that "byre backup" has written need no ending.
func TestBackups_VerifyAnObjectOfAnyName(t *testing.T) {
	storetest.ServeS3Here(t, storetest.NewS3(t, "backups"))
	succeed(t, "backup", "--endpoint", sqliteWith(t, storetest.RandomRows(t, rand.New(rand.NewPCG(1, 1)))), "s3://backups/cluster/first")
	if out, _ := succeed(t, "backup", "verify", "s3://backups/cluster/first"); !strings.HasPrefix(out, "s3://backups/cluster/first: complete, revision ") {
		t.Errorf("it says %q", out)
	}
	expectFailure(t, "s3://backups/elsewhere: ", "backup", "verify", "s3://backups/elsewhere")
}

// A backup says by which program it was written: what it says does not move the cursor of a terminal.
func TestBackups_ShowNoControlCharacters(t *testing.T) {
	t.Parallel()
	dir, rows := t.TempDir(), storetest.RandomRows(t, rand.New(rand.NewPCG(1, 1)))
	if err := (bucket.Directory{Name: dir}).File("a.zst").Write(t.Context(), func(w io.Writer) error { return backup.Write(w, rows.Snapshot(), "byre\x1b[2J") }); err != nil {
		t.Fatal(err)
	}
	if out, _ := succeed(t, "backup", "list", dir); strings.Contains(out, "\x1b") || !strings.Contains(out, "byre·[2J") {
		t.Errorf("it lists %q", out)
	}
}
