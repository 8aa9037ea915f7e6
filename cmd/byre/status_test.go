package main

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"byre/cmd/byre/status"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestStatus_OfAServerAndOfItsDatabase compares the status of a running server with the
// status of its database after the server has stopped.
func TestStatus_OfAServerAndOfItsDatabase(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir := t.TempDir()
		server := startServer(t, dir, append([]string{"--database-quota=1Gi", "--retention=77m"}, flags...)...)
		client := kubernetes.NewForConfigOrDie(server.config(t))
		if _, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		kind, args := "sqlite", append([]string{"status", "--data-dir", dir}, flags...)
		if len(flags) > 0 {
			kind = "postgres"
		}
		var live status.Status
		storetest.Eventually(t, "the server tells of its Lease", func() bool {
			live = readJSONStatus(t, args...)
			return len(live.Replicas) == 1
		})
		d := live.Database
		if live.Server == nil || !live.Server.Ready || live.Server.Watchers == 0 || live.Replicas[0].Expired ||
			len(live.Certificates) != 6 || len(live.Alarms) != 0 {
			t.Errorf("the server tells %+v", live)
		}
		if d.Kind != kind || d.Schema == 0 || d.SizeBytes == 0 || d.Revision == 0 || d.Retention != "1h17m0s" ||
			d.RetentionChanges != "1000000" || d.QuotaBytes != 1<<30 {
			t.Errorf("the server tells of its database %+v", d)
		}
		code, text, _ := call(args...)
		for _, want := range []string{`Server +https://127.0.0.1:\d+, ready, Kubernetes API v1\.37`,
			`Database +` + kind + `, .+, schema \d+, \d+\.\d MiB`, `Revision +\d+`,
			`Replica +\S+ apiserver-\S+, last seen \S+ ago`, `Certificate +apiserver until \d{4}-\d\d-\d\d \(364d\)`,
			`Alarms +none`} {
			if !regexp.MustCompile(`(?m)^` + want).MatchString(text) {
				t.Errorf("status %d, no line %s in\n%s", code, want, text)
			}
		}

		// One server on SQLite runs the controllers without a Lease.
		if kind == "sqlite" && (len(live.Leaders) > 0 || strings.Contains(text, "Leader")) {
			t.Errorf("on SQLite there are leaders %+v:\n%s", live.Leaders, text)
		}
		if d.LastBackup != nil || !strings.Contains(text, "Last backup  none is recorded") {
			t.Errorf("before the first backup it tells of %+v:\n%s", d.LastBackup, text)
		}
		var file string
		for _, name := range []string{"first.zst", "second.zst"} { // the second record replaces the first
			file = filepath.Join(t.TempDir(), name)
			if code, _, errOut := call(append([]string{"backup", "--data-dir", dir, file}, flags...)...); code != 0 ||
				errOut != "" {
				t.Fatalf("byre backup: %d, %s", code, errOut)
			}
			expectBackup(t, file, args...)
		}

		server.stop(t)
		expectBackup(t, file, args...)
		stopped := readJSONStatus(t, args...)
		s := stopped.Database
		if stopped.Server != nil || len(stopped.Alarms) != 1 ||
			!strings.HasPrefix(stopped.Alarms[0], "no server answers, and the database was read instead (") {
			t.Errorf("without the server it tells %+v", stopped)
		}
		if s.Kind != d.Kind || s.Schema != d.Schema || s.Revision < d.Revision || s.SizeBytes == 0 || kind == "postgres" &&
			s.Address != d.Address {
			t.Errorf("the database tells %+v, the server told %+v", s, d)
		}
		if _, text, _ := call(args...); !strings.Contains(text, "ALARM") || strings.Contains(text, "password") {
			t.Errorf("of a stopped server:\n%s", text)
		}
	})
}

// A restored database has had no backup, whatever is known of those of the database that the
// backup was made of: its record is a row on PostgreSQL, a file beside the database on SQLite.
func TestStatus_RestoredHasNoBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rows := sqliteWith(t, storetest.RandomRows(t, rand.New(rand.NewPCG(14, 14))))
	source, file := pgtest.DSN(t), filepath.Join(dir, "second.zst")
	succeed(t, "copy", "--from", rows, "--to", source)
	succeed(t, "backup", "--endpoint", source, filepath.Join(dir, "first.zst"))
	succeed(t, "backup", "--endpoint", source, file)
	expectBackup(t, file, "status", "--data-dir", dir, "--endpoint", source)

	path := filepath.Join(dir, "byre.db")
	sqlite, postgres := "sqlite://"+path, pgtest.DSN(t)
	succeed(t, "copy", "--from", source, "--to", sqlite)
	succeed(t, "backup", "--endpoint", sqlite, filepath.Join(dir, "third.zst"))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	again := pgtest.DSN(t)
	for _, restore := range [][]string{{sqlite, file}, {postgres, file}, {again, "--from", sqlite}} {
		succeed(t, append([]string{"restore", "--endpoint"}, restore...)...)
		args := []string{"status", "--data-dir", dir, "--endpoint", restore[0]}
		if last := readJSONStatus(t, args...).Database.LastBackup; last != nil {
			t.Errorf("status of %s tells of a backup %+v", restore[0], last)
		}
		if _, text, _ := call(args...); !strings.Contains(text, "Last backup  none is recorded") {
			t.Errorf("no line of the last backup in\n%s", text)
		}
	}
	succeed(t, "backup", "--endpoint", postgres, filepath.Join(dir, "fourth.zst"))
	expectBackup(t, filepath.Join(dir, "fourth.zst"), "status", "--data-dir", dir, "--endpoint", postgres)
}

// expectBackup has status tell of a backup that was just made.
func expectBackup(t *testing.T, file string, args ...string) {
	t.Helper()
	last := readJSONStatus(t, args...).Database.LastBackup
	if last == nil || last.Location != file || last.Revision == 0 || time.Since(last.Time) < 0 ||
		time.Since(last.Time) > time.Hour {
		t.Errorf("the last backup is %+v, want %s", last, file)
	}
	if _, text, _ := call(args...); !regexp.MustCompile(`(?m)^Last backup +\S+ \(\S+ ago\), revision \d+, to ` +
		file).MatchString(text) {
		t.Errorf("no line of the last backup in\n%s", text)
	}
}

func readJSONStatus(t *testing.T, args ...string) (s status.Status) {
	t.Helper()
	code, out, errOut := call(append(args, "--output=json")...)
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("byre status: %d, %v, %s%s", code, err, out, errOut)
	}
	if want := map[bool]int{false: 0, true: statusAlarms}[len(s.Alarms) > 0]; code != want {
		t.Errorf("byre status: exit status %d with the alarms %q, want %d", code, s.Alarms, want)
	}
	return s
}

// byre status leaves the epoch as it is. Where the database is a copy, or a standby has taken
// over, the next server begins a new epoch.
func TestStatus_WritesNothing(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if code, _, errOut := call("migrate", "up", "--endpoint", dsn); code != 0 {
		t.Fatal(errOut)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "UPDATE store SET epoch = 'one@another server'"); err != nil {
		t.Fatal(err)
	}
	const stored = "SELECT revision || ' ' || epoch FROM store"
	var before, after string
	if err := conn.QueryRow(t.Context(), stored).Scan(&before); err != nil {
		t.Fatal(err)
	}
	readJSONStatus(t, "status", "--data-dir", t.TempDir(), "--endpoint", dsn)
	if err := conn.QueryRow(t.Context(), stored).Scan(&after); err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Errorf("revision and epoch are %q after byre status, %q before", after, before)
	}
}

// A server whose database does not answer tells what it knows without it.
func TestStatus_WithoutTheDatabase(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	dir := t.TempDir()
	startServer(t, dir, "--endpoint", proxy.DSN())
	storetest.Eventually(t, "the server tells of its Lease", func() bool {
		return len(readJSONStatus(t, "status", "--data-dir", dir).Replicas) == 1
	})
	for _, fault := range []string{"silent", "unreachable"} {
		if proxy.Blackhole(); fault == "unreachable" {
			proxy.Cut()
		}
		var s status.Status
		storetest.Eventually(t, "the server is not ready", func() bool {
			s = readJSONStatus(t, "status", "--data-dir", dir)
			return s.Server != nil && !s.Server.Ready
		})
		if len(s.Replicas) != 1 || s.Database.Kind != "postgres" || s.Database.Revision == 0 {
			t.Errorf("%s: the status is %+v", fault, s)
		}
	}
}

// The file that a move to PostgreSQL has left is not taken for the servers' database, nor is a
// server taken for that of another database.
func TestStatus_GuessesNoDatabase(t *testing.T) {
	t.Parallel()
	dir, dsn := t.TempDir(), pgtest.DSN(t)
	startServer(t, dir).stop(t)
	server := startServer(t, dir, "--endpoint", dsn)
	file := "sqlite://" + filepath.Join(dir, "byre.db")
	if s := readJSONStatus(t, "status", "--data-dir", dir, "--endpoint", file); s.Database.Kind != "postgres" ||
		!strings.Contains(strings.Join(s.Alarms, "\n"), "not that of sqlite ") {
		t.Errorf("of a server with another database: %+v", s)
	}
	if s := readJSONStatus(t, "status", "--data-dir", dir, "--endpoint", dsn); len(s.Alarms) > 0 {
		t.Errorf("of a server with its own database: %+v", s)
	}
	server.stop(t)
	for _, read := range [][]string{
		{"status"}, {"check"}, {"backup", filepath.Join(t.TempDir(), "backup.zst")},
		{"export", "etcd", filepath.Join(t.TempDir(), "etcd.db")},
		{"migrate", "up"}, {"migrate", "down"},
	} {
		expectFailure(t, "its servers use postgres ", append(read, "--data-dir", dir)...)
	}
	if s := readJSONStatus(t, "status", "--data-dir", dir, "--endpoint", file); s.Database.Kind != "sqlite" {
		t.Errorf("of the file that is named: %+v", s)
	}
	startServer(t, dir).stop(t)
	if s := readJSONStatus(t, "status", "--data-dir", dir); s.Database.Kind != "sqlite" {
		t.Errorf("after a move back: %+v", s)
	}
}

func TestStatus_ShowsNoPassword(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), "open-sesame")
	for _, endpoint := range []string{u.String(), "postgres://byre:open-sesame@127.0.0.1:1/byre"} {
		_, out, errOut := call("status", "--data-dir", t.TempDir(), "--endpoint", endpoint)
		if text := out + errOut; strings.Contains(text, "open-sesame") || text == "" {
			t.Errorf("the status of a database without the schema is %s", text)
		}
	}
}

func TestStatus_OfNothingIsAnError(t *testing.T) {
	dir := t.TempDir()
	code, _, errOut := call("status", "--data-dir", dir)
	if code != 1 || !strings.HasPrefix(errOut, "byre: no server answers (") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("status %d, %q", code, errOut)
	}
	if _, err := os.Stat(filepath.Join(dir, "byre.db")); err == nil {
		t.Error("status has made a database")
	}
}

// A server that refuses, as a standby does, is asked once, and its database is not read instead.
func TestStatus_TellsWhatAStandbyAnswers(t *testing.T) {
	t.Parallel()
	dir, asked := t.TempDir(), new(atomic.Int64)
	startServer(t, dir, "--controllers=").stop(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"this server is the standby: a serves","reason":"ServiceUnavailable","code":503}`)
	}))
	defer server.Close()
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"byre": {Server: server.URL}},
		Contexts: map[string]*clientcmdapi.Context{"byre": {Cluster: "byre"}}, CurrentContext: "byre",
	}, filepath.Join(dir, "admin.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	expectFailure(t, "/admin.kubeconfig answers: this server is the standby: a serves", "status", "--data-dir", dir)
	if n := asked.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}
