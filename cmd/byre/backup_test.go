package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/process/pki"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// succeed runs a command that must succeed.
func succeed(t *testing.T, args ...string) (out, errOut string) {
	t.Helper()
	status, out, errOut := call(args...)
	if status != 0 {
		t.Fatalf("%q: status %d, %q, %q", args, status, out, errOut)
	}
	return out, errOut
}

// emptyDatabases are endpoints of each kind that hold nothing.
func emptyDatabases(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"sqlite": "sqlite://" + filepath.Join(t.TempDir(), "new", "byre.db"), "postgres": pgtest.DSN(t),
	}
}

// restoredDigest returns the digest that the rows have after a restore.
func restoredDigest(t *testing.T, s sqlstore.Snapshot) backup.Digest {
	t.Helper()
	digest, err := backup.DigestOf(backup.Restored(s, bumpRevision, "any", s.Time))
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestBackup_RestoresToBothDatabases(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(8, 8)))
	first := sqliteWith(t, rows)
	file := filepath.Join(t.TempDir(), "byre.zst")
	out, errOut := succeed(t, "backup", "--endpoint", first, file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s: revision %d, %d objects, %d changes, %d bytes\nsha256 %x\n",
		file, rows.Revision, len(rows.Objects), len(rows.Changes), len(content), sha256.Sum256(content))
	if out != want || errOut != "" {
		t.Errorf("output %q, %q; want %q", out, errOut, want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	_, original := digestOf(t, first)
	for name, endpoint := range emptyDatabases(t) {
		out, _ := succeed(t, "restore", "--endpoint", endpoint, file)
		if want := fmt.Sprintf(
			"restored and verified %d objects of revision %d, and %d changes of history; the next revision is %d\n",
			len(rows.Objects), rows.Revision, len(rows.Changes), rows.Revision+bumpRevision+1); !strings.HasPrefix(out,
			want+"next, before a start: pki/ ") || strings.Count(out, "\n") != 2 {
			t.Errorf("%s: output %q, want %q", name, out, want)
		}
		digest, header := digestOf(t, endpoint)
		if digest != restoredDigest(t, rows.Snapshot()) || header.Revision != rows.Revision+bumpRevision ||
			header.Compacted != header.Revision || header.Epoch == original.Epoch {
			t.Errorf("%s: restored %v, %+v", name, digest, header)
		}
		expectFailure(t, "holds data", "restore", "--endpoint", endpoint, file)
		// Back up from this database and restore to the other kind, through a pipe.
		status, out, errOut := call("backup", "--endpoint", endpoint, "-")
		if status != 0 || !strings.Contains(errOut, "\nsha256 ") {
			t.Fatalf("to standard output: %d, %q", status, errOut)
		}
		third := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
		restoreFrom(t, out, 0, "restore", "--endpoint", third, "--bump-revision", "5", "-")
		if again, header := digestOf(t, third); again != digest || header.Revision != rows.Revision+bumpRevision+5 {
			t.Errorf("%s: restored again %v, %+v; want %v", name, again, header, digest)
		}
	}
}

// restoreFrom runs a command with standard input.
func restoreFrom(t *testing.T, input string, want int, args ...string) {
	t.Helper()
	root := newRootCommand()
	var out bytes.Buffer
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); (err != nil) != (want != 0) {
		t.Fatalf("%q: %v", args, err)
	}
}

func TestRestore_AtAMoment(t *testing.T) {
	t.Parallel()
	rows := storetest.WholeRows(t, rand.New(rand.NewPCG(9, 9)))
	for i, change := range rows.Changes { // one minute apart
		change.Time = rows.Time.Add(time.Duration(i-len(rows.Changes)) * time.Minute)
	}
	database := sqliteWith(t, rows)
	file := filepath.Join(t.TempDir(), "byre.zst")
	succeed(t, "backup", "--endpoint", database, file)
	middle := rows.Changes[len(rows.Changes)/2]
	then, err := backup.At(rows.Snapshot(), middle.Revision)
	if err != nil {
		t.Fatal(err)
	}
	want := restoredDigest(t, then)
	for _, at := range []string{
		fmt.Sprint(middle.Revision), middle.Time.Format(time.RFC3339Nano),
		middle.Time.Add(59 * time.Second).In(time.FixedZone("", 3600)).Format(time.RFC3339Nano),
	} {
		for _, source := range [][]string{{file}, {"--from", database}} {
			target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
			succeed(t, append([]string{"restore", "--endpoint", target, "--at", at}, source...)...)
			// Where the author of an object is not known the digest has the time of the
			// snapshot: compare without it.
			if got, header := digestOf(t, target); got.Objects != want.Objects || got.Changes != want.Changes ||
				got.ChangeSum != want.ChangeSum || header.Revision != middle.Revision+bumpRevision {
				t.Errorf("at %s from %v: %v, %+v; want %v", at, source, got, header, want)
			}
		}
	}
	target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
	for at, want := range map[string]string{
		fmt.Sprint(rows.Revision + 1): "is not within the history",
		"1990-01-01T00:00:00Z":        "is not within the history",
		"2190-01-01T00:00:00Z":        "is not within the history",
	} {
		expectFailure(t, want, "restore", "--endpoint", target, "--at", at, file)
	}
	status, out, errOut := call("restore", "--endpoint", target, "--at", "-3650d", file)
	if lines := strings.Split(errOut, "\n"); status == 0 || out != "" || len(lines) != 3 ||
		!strings.HasPrefix(lines[0], "--at -3650d is 20") || !strings.Contains(lines[1], "is not within the history") {
		t.Errorf("status %d, %q, %q", status, out, errOut)
	}
	for at, want := range map[string]string{"0": "there is no revision 0", "-1": "is neither a revision nor a time",
		"soon": "is neither a revision nor a time"} {
		expectFailure(t, want, "restore", "--endpoint", target, "--at", at,
			filepath.Join(t.TempDir(), "not read"))
	}
	if _, err := os.Stat(strings.TrimPrefix(target, "sqlite://")); !os.IsNotExist(err) {
		t.Errorf("a restore that was refused left %v", err)
	}
}

func TestBackup_Refusals(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(10, 10)))
	database := sqliteWith(t, rows)
	dir := t.TempDir()
	file := filepath.Join(dir, "byre.zst")
	succeed(t, "backup", "--endpoint", database, file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	expectFailure(t, "exists already: name another file, or replace it with --force", "backup", "--endpoint", database,
		file)
	succeed(t, "backup", "--endpoint", database, "--force", file)
	expectFailure(t, "not a regular file", "backup", "--endpoint", database, "--force", dir)
	expectFailure(t, "there is no directory "+filepath.Join(dir, "no"), "backup", "--endpoint", database,
		filepath.Join(dir, "no", "dir"))
	expectFailure(t, "want s3://BUCKET/KEY", "backup", "--endpoint", database, "s3://bucket")
	expectFailure(t, "accepts 1 arg", "backup", "--endpoint", database)

	target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
	for name, spoilt := range map[string][]byte{
		"truncated": content[:len(content)-10], "half": content[:len(content)/2], "empty": nil,
		"foreign": []byte("SQLite format 3"),
		"flipped": append(append([]byte{}, content[:len(content)/2]...),
			append([]byte{content[len(content)/2] ^ 1}, content[len(content)/2+1:]...)...),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, spoilt, 0o600); err != nil {
			t.Fatal(err)
		}
		expectFailure(t, path+": snapshot is broken: ", "restore", "--endpoint", target, path)
	}
	expectFailure(t, "no such file", "restore", "--endpoint", target, filepath.Join(dir, "nothing"))
	expectFailure(t, "--bump-revision", "restore", "--endpoint", target, "--bump-revision", "0", file)
	expectFailure(t, "unknown command", "restore", "--endpoint", target, "--from", database, file)
	if _, err := os.Stat(strings.TrimPrefix(target, "sqlite://")); !os.IsNotExist(err) {
		t.Errorf("a restore that was refused left %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			t.Errorf("%s is left", entry.Name())
		}
	}
}

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
		server := startServer(t, dir,
			append([]string{"--backup-schedule=@every 1s", "--backup-keep=2", "--backup-to", to}, flags...)...)
		storetest.Eventually(t, "a server makes backups", func() bool { return len(backupsIn(t, to)) == 2 })
		first := backupsIn(t, to)[0]
		storetest.Eventually(t, "a server deletes the oldest backup", func() bool {
			_, err := os.Stat(filepath.Join(to, first.Name))
			return os.IsNotExist(err)
		})
		status, body := server.mustGet(t, "/metrics")
		metric := regexp.MustCompile(`(?m)^byre_store_last_backup_timestamp_seconds\{location="` + regexp.QuoteMeta(to) +
			`/byre-\d{8}T\d{6}Z.zst",revision="\d+"\} `)
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
	storetest.Eventually(t, "the source has made backups meanwhile", func() bool {
		return len(backupsIn(t, elsewhere)) >= 3
	})
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
		if status := p.wait(t); status != 1 || !strings.HasPrefix(p.log.String(), "byre: "+want) ||
			strings.Count(p.log.String(), "\n") != 1 {
			t.Errorf("%q: status %d, %q, want %q", args, status, p.log, want)
		}
	}
}

// Clusters may share a directory: exactly the newest backups of each stay. Those of programs that did not write down
// their cluster are known by their epoch.
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
			all = append(all,
				storedBackup{Name: fmt.Sprint(i), Cluster: cluster, header: &sqlstore.Header{Cluster: cluster, Epoch: epoch}})
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
	for name, text := range map[string][]byte{"cut.zst": content[:len(content)-9], "foreign.zst": []byte("something else"),
		"note.txt": nil} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (all string) {
		for _, b := range backupsIn(t, dir) {
			all += strings.TrimSuffix(b.Name, ".zst") + " "
			if isForeign := b.Name == "foreign.zst"; (b.Error != "") != isForeign ||
				(b.Revision > 0 && b.Objects > 0 && b.SizeBytes > 0 && !b.Time.IsZero() && b.Program != "") == isForeign {
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
	if !regexp.MustCompile(`(?m)^c.zst +\d{4}-\S+Z +\d+ +\d+ +\d+\.\d MiB +\S+$`).MatchString(out) ||
		!strings.Contains(out, "foreign.zst  -") || strings.Contains(out, "note") {
		t.Errorf("it lists\n%s", out)
	}
	status, out, errOut := call("backup", "verify", dir)
	if status != 2 || strings.Count(out, ": complete, revision ") != 3 ||
		!strings.Contains(out, "cut.zst: snapshot is broken: ") ||
		!strings.Contains(out, "foreign.zst: snapshot is broken: ") ||
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
	if out := answer("n\n"); !strings.Contains(out, "delete 1 of 4 backups:\n") || !strings.Contains(out, "\nc.zst ") ||
		strings.Contains(out, "\na.zst") || names() != all {
		t.Errorf("an answer of no: %s, %q", out, names())
	}
	if out := answer("y\n"); !strings.HasSuffix(out, "deleted 1 backups\n") || names() != "foreign a b cut " {
		t.Errorf("an answer of yes: %s, %q", out, names())
	}
	if out := answer(""); !strings.Contains(out, "nothing to delete") {
		t.Errorf("of three: %s", out)
	}
	if status, _, errOut := call("backup", "prune", dir, "--keep=1"); status != 1 ||
		errOut != "byre: nothing done: nobody answered; use --yes\n" {
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
	succeed(t, "backup", "--endpoint", sqliteWith(t, storetest.RandomRows(t, rand.New(rand.NewPCG(1, 1)))),
		"s3://backups/cluster/first")
	if out, _ := succeed(t, "backup", "verify", "s3://backups/cluster/first"); !strings.HasPrefix(out,
		"s3://backups/cluster/first: complete, revision ") {
		t.Errorf("it says %q", out)
	}
	expectFailure(t, "s3://backups/elsewhere: ", "backup", "verify", "s3://backups/elsewhere")
}

// A backup says by which program it was written: what it says does not move the cursor of a terminal.
func TestBackups_ShowNoControlCharacters(t *testing.T) {
	t.Parallel()
	dir, rows := t.TempDir(), storetest.RandomRows(t, rand.New(rand.NewPCG(1, 1)))
	if err := (bucket.Directory{Name: dir}).File("a.zst").Write(t.Context(), func(w io.Writer) error {
		return backup.Write(w, rows.Snapshot(), "byre\x1b[2J")
	}); err != nil {
		t.Fatal(err)
	}
	if out, _ := succeed(t, "backup", "list", dir); strings.Contains(out, "\x1b") || !strings.Contains(out, "byre·[2J") {
		t.Errorf("it lists %q", out)
	}
}

// writeFile writes a file of a test, and returns its path.
func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A server with --age-recipient writes its certificates and keys beside its backups and its continuous copy, from each
// of which one command brings back a server for its clients. They go with the backup that they lie beside.
func TestBackup_OfAScheduleAndCopiesHaveTheKeys(t *testing.T) {
	t.Parallel()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	key := writeFile(t, identity.String()+"\n")
	backups, copies := t.TempDir(), t.TempDir()
	server := startServer(t, t.TempDir(), "--age-recipient", identity.Recipient().String(), "--backup-schedule=@every 1s",
		"--backup-to", backups,
		"--backup-keep=2", "--replicate-to=file://"+copies)
	config := server.config(t)
	storetest.Eventually(t, "the copy is there, and old backups are gone", func() bool {
		server.mustRun(t)
		files, err := filepath.Glob(filepath.Join(copies, "*"))
		return err == nil && len(files) == 2 && strings.Count(server.log.String(), `"backup: made"`) > 3
	})
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status %d", status)
	}
	made, err := filepath.Glob(filepath.Join(backups, "*"+bucket.Suffix))
	if err != nil || len(made) != 2 {
		t.Fatalf("backups: %q, %v", made, err)
	}
	if keys, err := filepath.Glob(filepath.Join(backups, "*"+bucket.KeysSuffix)); err != nil || len(keys) != 2 {
		t.Errorf("beside them: %q, %v", keys, err)
	}
	for _, from := range [][]string{{made[0]}, {"--from", "file://" + copies}} {
		restored := filepath.Join(t.TempDir(), "new")
		succeed(t, append([]string{"restore", "--data-dir", restored, "--with-pki", "--age-identity-file", key}, from...)...)
		again := startServer(t, restored)
		config.Host = again.config(t).Host
		if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Get(t.Context(), "default",
			metav1.GetOptions{}); err != nil {
			t.Errorf("a client of before: %v", err)
		}
		again.stop(t)
	}
}

// A backup brings back the keys in another directory, by each kind of secret.
// TestBackup_OfAScheduleAndCopiesHaveTheKeys starts servers with what is restored.
func TestBackup_WithPKIBringsBackTheKeys(t *testing.T) {
	t.Parallel()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	passphrase := writeFile(t, "correct horse\nnot this\n")
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "byre.zst")
	startServer(t, dir, "--controllers=").stop(t)
	out, _ := succeed(t, "backup", "--data-dir", dir, "--with-pki", "--age-recipient", identity.Recipient().String(), file)
	if !strings.HasSuffix(out, file+".pki.age: the certificates and keys, encrypted\n") {
		t.Error(out)
	}
	bySecret := filepath.Join(t.TempDir(), "byre.zst")
	succeed(t, "backup", "--data-dir", dir, "--with-pki", "--age-passphrase-file", passphrase, bySecret)
	for backup, flag := range map[string][]string{
		file: {"--age-identity-file", writeFile(t, identity.String()+"\n")}, bySecret: {"--age-passphrase-file", passphrase},
	} {
		restored := filepath.Join(t.TempDir(), "new")
		out, _ := succeed(t, append([]string{"restore", "--data-dir", restored, "--with-pki", backup}, flag...)...)
		if !strings.Contains(out, "files into "+filepath.Join(restored, "pki")+"\n") {
			t.Error(out)
		}
		if info, err := os.Stat(filepath.Join(restored, "pki", "ca.key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of a key: %v, %v", info, err)
		}
		for _, name := range []string{"ca.crt", "sa.key"} {
			expectSameFile(t, filepath.Join(dir, "pki", name), filepath.Join(restored, "pki", name))
		}
		expectFailure(t, "has files", append([]string{"restore", "--data-dir", restored, "--with-pki", backup}, flag...)...)
	}
	if removed, _ := succeed(t, "backup", "prune", filepath.Dir(bySecret), "--keep", "1"); !strings.Contains(removed,
		"nothing to delete") {
		t.Error(removed)
	}
	succeed(t, "backup", "--data-dir", dir, filepath.Join(filepath.Dir(bySecret), "later.zst"))
	succeed(t, "backup", "prune", filepath.Dir(bySecret), "--keep", "1", "--yes")
	if left, err := filepath.Glob(filepath.Dir(bySecret) + "/*"); err != nil || len(left) != 1 {
		t.Errorf("left of two backups, of which the first has its certificates beside it: %v, %v", left, err)
	}
	t.Run("refused", func(t *testing.T) { testPKIIsRefused(t, dir) })
}

// testPKIIsRefused: what can't be decrypted, or was changed, restores nothing, and flags that do not belong together
// are refused.
func testPKIIsRefused(t *testing.T, dir string) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	key, recipient := writeFile(t, identity.String()), identity.Recipient().String()
	file := filepath.Join(t.TempDir(), "byre.zst")
	backup := func(flags ...string) []string {
		return append([]string{"backup", "--data-dir", dir, file}, flags...)
	}
	expectFailure(t, "--with-pki needs --age-recipient, or else --age-passphrase-file", backup("--with-pki")...)
	expectFailure(t, "are for --with-pki", backup("--age-recipient", recipient)...)
	expectFailure(t, `--age-recipient "age1"`, backup("--with-pki", "--age-recipient", "age1")...)
	expectFailure(t, "its first line is empty", backup("--with-pki", "--age-passphrase-file", writeFile(t, ""))...)
	expectFailure(t, "no such file", backup("--with-pki", "--age-recipient", recipient, "--cert-dir", "/nowhere")...)
	expectFailure(t, "has no files", backup("--with-pki", "--age-recipient", recipient, "--cert-dir", t.TempDir())...)
	expectFailure(t, "a backup that has a name", "backup", "--data-dir", dir, "--with-pki", "--age-recipient", recipient,
		"-")
	if _, err := os.Stat(file); err == nil {
		t.Error("there is a backup")
	}

	succeed(t, backup("--with-pki", "--age-recipient", recipient)...)
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(t.TempDir(), "new")
	restore := func(flags ...string) []string {
		return append([]string{"restore", "--data-dir", restored, "--with-pki"}, flags...)
	}
	expectFailure(t, "nothing was restored", restore(file, "--age-identity-file", writeFile(t, other.String()))...)
	expectFailure(t, "--with-pki is for a backup", restore("--from", "sqlite:///nowhere", "--age-identity-file", key)...)
	content, err := os.ReadFile(file + bucket.KeysSuffix)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range [][]byte{content[:len(content)-1],
		append(bytes.Clone(content[:len(content)-1]), content[len(content)-1]^1)} {
		if err := os.WriteFile(file+bucket.KeysSuffix, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		expectFailure(t, "nothing was restored", restore(file, "--age-identity-file", key)...)
	}
	if _, err := os.Stat(restored); err == nil {
		t.Error("something was restored")
	}
}

// tar reads what age decrypts.
func TestBackup_PKIIsATarArchive(t *testing.T) {
	t.Parallel()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "key")
	if err := errors.Join(os.WriteFile(elsewhere, []byte("a key"), 0o600),
		os.Symlink(elsewhere, filepath.Join(dir, "ca.key"))); err != nil {
		t.Fatal(err)
	}
	var encrypted bytes.Buffer
	if err := pki.WriteArchive(&encrypted, dir, identity.Recipient()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(encrypted.String(), "a key") {
		t.Error("it is not encrypted")
	}
	decrypted, err := age.Decrypt(&encrypted, identity)
	if err != nil {
		t.Fatal(err)
	}
	tar := exec.CommandContext(t.Context(), "tar", "-xO", "ca.key")
	tar.Stdin = decrypted
	if out, err := tar.CombinedOutput(); err != nil || string(out) != "a key" {
		t.Errorf("%q, %v", out, err)
	}
}
