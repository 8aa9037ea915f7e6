package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/migrations"
	"byre/sqlstore/bucket"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}

// The copy that a database's own tool makes is a whole store; restore turns it into one
// that clients can continue with.
func TestRestore_FromCopiesOfTheDatabasesTools(t *testing.T) {
	t.Parallel()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(13, 13)))
	first := sqliteWith(t, rows)
	path := strings.TrimPrefix(first, "sqlite://")
	dir := t.TempDir()
	// byre has the file open while the tool copies it.
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tool(t, "sqlite3", path, "VACUUM INTO '"+filepath.Join(dir, "vacuumed.db")+"'")
	tool(t, "sqlite3", path, ".backup '"+filepath.Join(dir, "backup.db")+"'")
	driver.Close()

	dumped, restored := pgtest.DSN(t), pgtest.DSN(t)
	succeed(t, "copy", "--from", first, "--to", dumped)
	dump, err := pgtest.Program("pg_dump")
	if err != nil {
		t.Fatal(err)
	}
	restore, err := pgtest.Program("pg_restore")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "byre.dump")
	tool(t, dump, "--format=custom", "--file", archive, dumped)
	tool(t, restore, "--no-owner", "--exit-on-error", "--dbname", restored, archive)

	want, wantHeader := digestOf(t, first)
	for _, endpoint := range []string{"sqlite://" + filepath.Join(dir, "vacuumed.db"),
		"sqlite://" + filepath.Join(dir, "backup.db"), restored} {
		if got, header := digestOf(t, endpoint); got != want || !reflect.DeepEqual(header, wantHeader) {
			t.Errorf("%s: %v, %+v; want %v, %+v", endpoint, got, header, want, wantHeader)
		}
		if state, err := migrations.Status(t.Context(), endpoint); err != nil || state.Current != state.Latest {
			t.Errorf("%s: schema %+v, %v", endpoint, state, err)
		}
		target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
		succeed(t, "restore", "--endpoint", target, "--from", endpoint)
		if got, header := digestOf(t, target); got != restoredDigest(t, rows.Snapshot()) ||
			header.Revision != rows.Revision+bumpRevision {
			t.Errorf("restored from %s: %v, %+v", endpoint, got, header)
		}
	}
}

// A server on a restored database has the history of before for SQL, also where it has become older than
// its retention meanwhile, and nothing resumes into it. The database passes "byre check". Each kind of database is
// restored to the other one.
func TestRestore_HistoryIsForSQL(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir, file := t.TempDir(), filepath.Join(t.TempDir(), "byre.zst")
		first := startServer(t, dir, append([]string{"--controllers=", "--compaction-interval=100ms"}, flags...)...)
		configMaps := kubernetes.NewForConfigOrDie(first.config(t)).CoreV1().ConfigMaps("default")
		made, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := configMaps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		endpoint := "sqlite://" + dir + "/byre.db"
		if len(flags) > 0 {
			endpoint = flags[1]
		}
		storetest.EventuallyDone(t, "the retention is recorded", func(context.Context) (bool, error) {
			_, retainedFor := changesOf(t, endpoint, "configmaps")
			return retainedFor == 7*24*time.Hour, nil
		})
		want, _ := changesOf(t, endpoint, "configmaps")
		succeed(t, "backup", "--endpoint", endpoint, file)
		first.stop(t)
		for name, target := range emptyDatabases(t) {
			if strings.HasPrefix(endpoint, name) {
				continue
			}
			succeed(t, "restore", "--endpoint", target, file)
			succeed(t, "check", "--endpoint", target)
			// With a retention of a second, all of the history is older.
			second := startServer(t, dir, "--controllers=", "--compaction-interval=100ms", "--retention=1s", "--endpoint",
				target)
			configMaps := kubernetes.NewForConfigOrDie(second.config(t)).CoreV1().ConfigMaps("default")
			at := metav1.ListOptions{ResourceVersion: made.ResourceVersion,
				ResourceVersionMatch: metav1.ResourceVersionMatchExact}
			if _, err := configMaps.List(t.Context(), at); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: list at a revision of before: %v", name, err)
			}
			watching, err := configMaps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
			if err == nil {
				event := <-watching.ResultChan()
				err = apierrors.FromObject(event.Object)
				watching.Stop()
			}
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: watch from a revision of before: %v", name, err)
			}
			storetest.EventuallyDone(t, "the log has what will be deleted", func(context.Context) (bool, error) {
				return strings.Contains(second.log.String(), `kept for longer before`), nil
			})
			if got, _ := changesOf(t, target, "configmaps"); got < want || want < 2 {
				t.Errorf("%s: %d changes of ConfigMaps are in the history, want %d", name, got, want)
			}
			second.stop(t)
		}
	})
}

// The patterns of what commands print.
const (
	aTime    = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`
	aFolder  = `\d{8}T\d{6}\.\d{6}Z`
	holds    = `revision \d+, [1-9]\d* objects, [1-9]\d* changes`
	backedUp = `: ` + holds + `, \d+ bytes\nsha256 [0-9a-f]{64}\n`
	verified = `complete, revision \d+ of ` + aTime + `, [1-9]\d* objects, [1-9]\d* changes\n`
	restored = `restored and verified [1-9]\d* objects of revision \d+, and [1-9]\d* changes of history; the next revision is 100\d{7}\n`
	sayKeys  = `next, before a start: %s must be the pki/ of the server that was backed up; a start with other keys is refused\n`
	withKeys = `restored 1\d files into /var/lib/byre/pki\n`
	sound    = `checked [1-9]\d* objects and [1-9]\d* changes at revision \d+, 0 values encrypted, 0 of them decrypted: 0 findings; the last change: ` + aTime + `\n`
	inCopies = `s3://backups/cluster-1/` + aFolder + `: `
	listHead = `NAME +TIME +REVISION +OBJECTS +SIZE +PROGRAM\n`
)

// recoveryCommand is a command of docs/operations about backups and what they bring back.
type recoveryCommand struct {
	// command is what the page has, and want is a pattern of all that it prints.
	command, want string
	// fresh is a path, or an endpoint, in whose place the command gets an empty one.
	fresh string
}

// whileServing are executed while a server uses the SQLite file and copies it to S3, and afterwards those that
// need the database for themselves, or PostgreSQL.
var (
	whileServing = []recoveryCommand{
		{`byre backup --data-dir /var/lib/byre /backup/byre-$(date +%F).zst`, `/backup/byre-2026-03-01\.zst` + backedUp, ""},
		{
			`byre backup --with-pki --age-recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p /backup/byre.zst`,
			`/backup/byre\.zst` + backedUp + `/backup/byre\.zst\.pki\.age: the certificates and keys, encrypted\n`, "",
		},
		{`byre backup --data-dir /var/lib/byre /var/backups/byre/$(date +%F-%H%M%S).zst`,
			`/var/backups/byre/2026-03-01\.zst` + backedUp, ""},
		{`byre backup list /backup`, listHead + `(byre\S*\.zst +` + aTime + ` +\d+ +[1-9]\d* +\d+\.\d MiB +\S+\n){2}`, ""},
		{`byre backup verify /backup`, `(/backup/byre\S*\.zst: ` + verified + `){2}`, ""},
		{`byre backup prune /backup --keep 14`, `there are 2 backups: nothing to delete\n`, ""},
		{`byre backup list s3://backups/cluster-1`,
			listHead + `(` + aFolder + ` +` + aTime + ` +- +- +\d+\.\d MiB +continuous copy, up to transaction [1-9]\d*\n){2}`,
			""},
		{`byre backup verify s3://backups/cluster-1`, `(` + inCopies + verified + `){2}`, ""},
		{`byre check --data-dir /var/lib/byre`, sound, ""},
		{`byre check`, sound, ""},
		{`byre fork --data-dir /var/lib/byre --at -2h --to /srv/fork`,
			`forked and verified [1-9]\d* objects of revision \d+, .*; serve it from a directory of its own\n`, ""},
		{`byre restore --with-pki --age-identity-file key.txt --data-dir /var/lib/byre /backup/byre.zst`, restored + withKeys,
			"/var/lib/byre"},
		{`byre restore --data-dir /var/lib/byre-new /backup/byre-2026-03-01.zst`,
			restored + fmt.Sprintf(sayKeys, "/var/lib/byre-new/pki"), "/var/lib/byre-new"},
		{`byre restore --data-dir /var/lib/byre-new --at 2026-03-01T11:59:00Z /backup/byre-2026-03-01.zst`,
			restored + fmt.Sprintf(sayKeys, "/var/lib/byre-new/pki"), "/var/lib/byre-new"},
		{`byre restore --data-dir /var/lib/byre-new --at 41977 --from sqlite:///var/lib/byre/byre.db`,
			restored + fmt.Sprintf(sayKeys, "/var/lib/byre-new/pki"), "/var/lib/byre-new"},
		{`byre restore --data-dir /var/lib/byre "$backup"`, restored + fmt.Sprintf(sayKeys, "/var/lib/byre/pki"),
			"/var/lib/byre"},
		{`byre restore --from s3://backups/cluster-1 --with-pki --age-identity-file key.txt --data-dir /var/lib/byre`,
			restored + withKeys, "/var/lib/byre"},
	}
	whileStopped = []recoveryCommand{
		{`byre copy --from sqlite:///var/lib/byre/byre.db --to postgres://byre@db.example.com/byre`,
			`copied and verified [1-9]\d* objects.*, at revision \d+\n`, ""},
		{`byre check --endpoint "$endpoint"`, sound, ""},
		{`byre check --endpoint postgres://user@host/database -o json`, `(?s)\{.*"findingCount": 0.*\}\n`, ""},
		{`byre backup --endpoint postgres://byre@db.example.com/byre s3://backups/byre-$(date +%F).zst`,
			`s3://backups/byre-2026-03-01\.zst` + backedUp, ""},
		{`byre backup --endpoint "$endpoint" /var/backups/byre/$(date +%F-%H%M%S).zst`,
			`/var/backups/byre/2026-03-02\.zst` + backedUp, ""},
		{`byre restore --endpoint "$endpoint" "$backup"`,
			restored + fmt.Sprintf(sayKeys, `pki/ in the --data-dir of each server`), `"$endpoint"`},
		{`byre restore --endpoint NEW-ENDPOINT byre.zst`,
			restored + fmt.Sprintf(sayKeys, `pki/ in the --data-dir of each server`), "NEW-ENDPOINT"},
	}
	// withHole are executed when a file of the last continuous copy is missing.
	withHole = []recoveryCommand{
		{`byre restore --from s3://backups/cluster-1 --up-to 41977 --data-dir /var/lib/byre`,
			restored + fmt.Sprintf(sayKeys, "/var/lib/byre/pki"), "/var/lib/byre"},
		{`byre restore --from s3://backups/cluster-1 --folder 20260301T030000.000000Z --data-dir /var/lib/byre`,
			restored + fmt.Sprintf(sayKeys, "/var/lib/byre/pki"), "/var/lib/byre"},
	}
)

// testedElsewhere are commands that other programs and machines are needed for.
var testedElsewhere = regexp.MustCompile(`^byre (import|export|takeover) `) // e2e/transfer, e2e/machines

// documentedRecoveries returns the commands of the pages of docs/operations, each once.
func documentedRecoveries(t *testing.T) (commands []string) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "operations", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	block := regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```$")
	line := regexp.MustCompile(
		`(?m)^ *(?:runuser -u byre -- )?(byre (?:backup|restore|check|copy|fork|import|export|takeover)\b.*?)(?: +#.*)?$`)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range block.FindAllSubmatch(text, -1) {
			for _, l := range line.FindAllSubmatch(b[1], -1) {
				if command := string(l[1]); !testedElsewhere.MatchString(command) && !slices.Contains(commands, command) {
					commands = append(commands, command)
				}
			}
		}
	}
	return commands
}

// recoveryShell types commands in a shell, in which byre is this program.
type recoveryShell struct {
	dir string
	// places has, for what the pages name, what there is here.
	places map[string]string
	env    []string
}

func newRecoveryShell(t *testing.T) *recoveryShell {
	t.Helper()
	s := &recoveryShell{dir: t.TempDir(), places: map[string]string{}}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(os.Environ(), asProgram+"=1", "PATH="+s.in("bin")+":"+os.Getenv("PATH"))
	for _, dir := range []string{"bin", "backup", "var/backups/byre", "var/lib/byre"} {
		if err := os.MkdirAll(s.in(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(executable, s.in("bin/byre")),
		os.Symlink(s.in("var/lib/byre"), s.in("byre-data"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/var/lib/byre-new", "/var/lib/byre", "/var/backups/byre", "/backup", "/srv/fork"} {
		s.places[path] = s.in(path)
	}
	s.places["s3://backups"] = "s3://backups" // it has a place's name in it
	return s
}

func (s *recoveryShell) in(path string) string { return filepath.Join(s.dir, path) }

// typed executes a command, and returns its exit status and what it prints, with the places that the pages name.
func (s *recoveryShell) typed(t *testing.T, command, fresh string) (status int, out, errOut string) {
	t.Helper()
	there, back := []string{}, []string{}
	names := make([]string, 0, len(s.places))
	for name := range s.places {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) }) // the longest first
	for _, name := range names {
		place := s.places[name]
		if name == fresh {
			if place = filepath.Join(t.TempDir(), "new"); !strings.HasPrefix(name, "/") {
				place = pgtest.DSN(t)
			}
		}
		there = append(there, name, place)
		if strings.HasPrefix(name, "/") {
			back = append(back, place, name)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.NewReplacer(there...).Replace(command))
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, s.env, &stdout, &stderr
	_ = cmd.Run() // ProcessState has the status
	return cmd.ProcessState.ExitCode(), strings.NewReplacer(back...).Replace(stdout.String()),
		strings.NewReplacer(back...).Replace(stderr.String())
}

func (s *recoveryShell) expect(t *testing.T, commands []recoveryCommand) {
	t.Helper()
	for _, c := range commands {
		status, out, errOut := s.typed(t, c.command, c.fresh)
		if status != 0 || !regexp.MustCompile(`^`+c.want+`$`).MatchString(out) {
			t.Errorf("%s\nstatus %d, prints\n%s\nwant\n%s\nstandard error:\n%s", c.command, status, out, c.want, errOut)
		}
	}
}

// Every command of docs/operations by which a backup is made, looked at and brought back does, as typed, what the
// page says, with a directory, S3 and PostgreSQL. (e2e/packages and e2e/machines follow the pages step by step.)
func TestRecovery_DocumentedCommandsWorkAsTyped(t *testing.T) {
	all := slices.Concat(whileServing, whileStopped, withHole)
	documented := documentedRecoveries(t)
	for _, command := range documented {
		if !slices.ContainsFunc(all, func(c recoveryCommand) bool { return c.command == command }) {
			t.Errorf("no test executes %q of docs/operations", command)
		}
	}
	for _, c := range all {
		if !slices.Contains(documented, c.command) {
			t.Errorf("docs/operations does not have %q", c.command)
		}
	}
	if testing.Short() {
		t.Skip("starts byre")
	}

	storetest.ServeS3Here(t, storetest.NewS3(t, "backups"))
	shell := newRecoveryShell(t)
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(shell.in("key.txt"), []byte(identity.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const copies = "s3://backups/cluster-1"
	serve := func() *serverProcess {
		t.Helper()
		server := startServer(t, shell.in("var/lib/byre"), "--controllers=", "--replicate-to", copies, "--age-recipient",
			identity.Recipient().String())
		var revision string
		for i := range 3 {
			made, err := kubernetes.NewForConfigOrDie(server.config(t)).CoreV1().ConfigMaps("default").Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("object-%d-", i)}},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			revision = made.ResourceVersion
			awaitCopy(t, server)
		}
		shell.places["41977"] = revision
		return server
	}
	serve().stop(t)
	// Otherwise the next process goes on in the same folder.
	if err := replication.Forget(shell.in("var/lib/byre/byre.db")); err != nil {
		t.Fatal(err)
	}
	server := serve()
	shell.places["age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"] = identity.Recipient().String()
	shell.places["-2h"] = "-1ms"
	shell.places["$(date +%F)"], shell.places["$(date +%F-%H%M%S)"] = "2026-03-01", "2026-03-01"
	shell.places["2026-03-01T11:59:00Z"] = time.Now().UTC().Format(time.RFC3339Nano)
	shell.places[`"$backup"`] = shell.in("backup/byre.zst")
	shell.expect(t, whileServing)
	server.stop(t)

	shell.places["$(date +%F-%H%M%S)"] = "2026-03-02"
	database := pgtest.DSN(t)
	for _, name := range []string{"postgres://byre@db.example.com/byre", "postgres://user@host/database", `"$endpoint"`} {
		shell.places[name] = "'" + database + "'"
	}
	shell.places["NEW-ENDPOINT"] = ""
	if err := os.Link(shell.in("backup/byre.zst"), shell.in("byre.zst")); err != nil {
		t.Fatal(err)
	}
	shell.expect(t, whileStopped)

	folders, err := replication.Copies(t.Context(), copies, bucket.S3{})
	if err != nil || len(folders) != 2 {
		t.Fatal(folders, err)
	}
	last := folders[1]
	eachFile(t, last, func(client *bucket.Client, key string, from, to uint64) error {
		if from == 1 || to != last.Last-1 {
			return nil
		}
		return client.Delete(t.Context(), key)
	})
	shell.expectHole(t)

	// A file of which the service has lost the end.
	eachFile(t, folders[0], func(client *bucket.Client, key string, from, _ uint64) error {
		if from != 1 {
			return nil
		}
		_, err := client.Put(t.Context(), key, strings.NewReader("LTX1"))
		return err
	})
	if status, out, errOut := shell.typed(t, "byre backup verify s3://backups/cluster-1", ""); status != statusDamaged ||
		!strings.Contains(errOut, "2 of 2 backups can't be restored") {
		t.Errorf("verify of a broken file: status %d, %s, %s", status, out, errOut)
	}
	command := "byre restore --from s3://backups/cluster-1 --folder " + folders[0].Folder + " --data-dir /var/lib/byre"
	if status, _, errOut := shell.typed(t, command, "/var/lib/byre"); status != 1 ||
		!strings.Contains(errOut, folders[0].Folder+": ") || !strings.Contains(errOut, ": nothing was restored") {
		t.Errorf("restore of a broken file: status %d, %s", status, errOut)
	}
}

// expectHole follows what the errors say.
func (s *recoveryShell) expectHole(t *testing.T) {
	t.Helper()
	const hole = `files are missing after transaction \d+, of \d+`
	if status, out, errOut := s.typed(t, "byre backup verify s3://backups/cluster-1", ""); status != statusDamaged ||
		!regexp.MustCompile(
			`^`+inCopies+verified+inCopies+hole+`: it can be restored up to revision \d+ of `+aTime+
				`, \d+ objects, \d+ changes: make a new copy: .*\n$`).MatchString(out) {
		t.Errorf("verify: status %d, %s, %s", status, out, errOut)
	}
	if status, out, errOut := s.typed(t, "byre backup list s3://backups/cluster-1", ""); status != 0 ||
		!regexp.MustCompile(
			`\n`+aFolder+` +`+aTime+` +- +- +\d+\.\d MiB +`+hole+`\n$`).MatchString(out) {
		t.Errorf("list: status %d, %s, %s", status, out, errOut)
	}
	status, _, errOut := s.typed(t, "byre restore --from s3://backups/cluster-1 --data-dir /var/lib/byre", "/var/lib/byre")
	named := regexp.MustCompile(hole + `: nothing was restored; restore what is left, up to revision \d+ of ` + aTime +
		`, with --up-to (\d+); or restore an older copy, of ` +
		aTime + `, with --folder (` + aFolder + `)\n$`).FindStringSubmatch(errOut)
	if status != 1 || named == nil {
		t.Fatalf("restore: status %d, %s", status, errOut)
	}
	s.places["41977"], s.places["20260301T030000.000000Z"] = named[1], named[2]
	s.expect(t, withHole)
	for flag, want := range map[string]string{"--up-to 4000000": "reaches up to revision " + named[1] + ", not 4000000",
		"--folder none": "has no folder none"} {
		if status, _, errOut := s.typed(t, "byre restore --from s3://backups/cluster-1 "+flag+" --data-dir /var/lib/byre",
			"/var/lib/byre"); status != 1 || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, %s", flag, status, errOut)
		}
	}
}

// eachFile calls do with the key and the transactions of each file of a copy in S3.
func eachFile(t *testing.T, c replication.Copy, do func(client *bucket.Client, key string, first, last uint64) error) {
	t.Helper()
	client, err := bucket.S3{}.Open("s3://backups")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := client.List(t.Context(), "cluster-1/"+c.Folder+"/", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		var first, last uint64
		_, err := fmt.Sscanf(filepath.Base(object.Name), "%016x-%016x.ltx", &first, &last)
		if err == nil {
			err = do(client, object.Name, first, last)
		}
		if err != nil {
			t.Fatal(object.Name, err)
		}
	}
}
