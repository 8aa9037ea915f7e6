package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/process/pki"
	"byre/apiserver/server"
	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// Every command accepts the schema as a flag or in the endpoint's search_path.
func TestDatabaseSchema_OfEveryCommand(t *testing.T) {
	t.Parallel()
	dsn, dir := pgtest.DSN(t), t.TempDir()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(4, 4)))
	source := sqliteWith(t, rows)
	in := func(schema string) string {
		named, err := migrations.WithSchema(dsn, schema)
		if err != nil {
			t.Fatal(err)
		}
		return named
	}
	mustCall := func(want string, args ...string) {
		t.Helper()
		if status, out, errOut := call(args...); status != 0 || !strings.Contains(out, want) {
			t.Fatalf("%q: status %d, %q, %q; want %q", args, status, out, errOut, want)
		}
	}
	if status, _, _ := call("migrate", "status", "--endpoint", dsn, "--database-schema=one"); status != statusBehind {
		t.Errorf("status of a missing schema: %d", status)
	}
	mustCall("copied and verified", "copy", "--from", source, "--to", dsn, "--to-schema=one")
	mustCall("schema", "migrate", "status", "--endpoint", dsn, "--database-schema=one")
	mustCall("restored and verified", "restore", "--from", in("one"), "--endpoint", dsn, "--database-schema=three")
	// The values of random rows are not objects: this test ignores what the check finds.
	if status, out, errOut := call("check", "--endpoint", dsn, "--database-schema=three"); status != statusDamaged ||
		!strings.Contains(out, fmt.Sprintf("checked %d objects", len(rows.Objects))) {
		t.Errorf("check: status %d, %q, %q", status, out, errOut)
	}
	mustCall("schema", "migrate", "up", "--endpoint", dsn, "--database-schema=four")
	mustCall("copied and verified", "copy", "--from", dsn, "--from-schema=one", "--to", in("five"))
	want, _ := digestOf(t, source)
	for _, schema := range []string{"one", "five"} {
		if got, _ := digestOf(t, in(schema)); got != want {
			t.Errorf("schema %s holds %v, want %v", schema, got, want)
		}
	}
	// Last, because it records the backup in the schema.
	file := filepath.Join(dir, "backup.zst")
	mustCall("", "backup", "--endpoint", dsn, "--database-schema=one", file)
	mustCall("restored and verified", "restore", "--endpoint", in("two"), file)
	if status, _, _ := call("migrate", "status", "--endpoint", dsn); status != statusBehind {
		t.Errorf("status of the schema public, which nobody named: %d", status)
	}
	expectFailure(t, "needs PostgreSQL", "check", "--data-dir", dir, "--database-schema=one")
	expectFailure(t, "does not begin with the schema", "check", "--endpoint", in("one"), "--database-schema=two")
	expectFailure(t, "PostgreSQL's own", "migrate", "up", "--endpoint", dsn, "--database-schema=pg_one")
	expectFailure(t, `schema "one"`, "copy", "--from", source, "--to", dsn, "--to-schema=one")
}

// Servers share one PostgreSQL database, with a schema each: none sees the objects of
// another, and an idle one has four connections.
func TestServe_SchemaEach(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	names := []string{"tenant-a", "tenant-b"}
	servers := make([]*serverProcess, len(names))
	for i, name := range names {
		endpoint := dsn + "&application_name=" + name
		dir := t.TempDir()
		servers[i] = command(t, dir, "serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0", "--endpoint",
			endpoint, "--database-schema", name)
	}
	clients := make([]kubernetes.Interface, len(names))
	for i, server := range servers {
		awaitReady(t, server)
		var err error
		if clients[i], err = kubernetes.NewForConfig(server.config(t)); err != nil {
			t.Fatal(err)
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: names[i]}}
		if _, err := clients[i].CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, client := range clients {
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), names[1-i],
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s sees the namespace of %s: %v", names[i], names[1-i], err)
		}
	}
	admin, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	for _, name := range names {
		storetest.EventuallyDone(t, "four connections of "+name, func(ctx context.Context) (bool, error) {
			rows, err := admin.Query(ctx, `SELECT query FROM pg_stat_activity WHERE application_name = $1`, name)
			if err != nil {
				return false, err
			}
			queries, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err == nil && len(queries) > 4 {
				err = fmt.Errorf("there are %d: %q", len(queries), queries)
			}
			return err == nil && len(queries) > 0, err
		})
	}
	if _, err := admin.Exec(t.Context(), `DROP SCHEMA "tenant-a" CASCADE`); err != nil {
		t.Fatal(err)
	}
	if status, body := servers[1].mustGet(t, "/readyz"); status != 200 {
		t.Errorf("a server beside a schema that was dropped: %d %s", status, body)
	}
	if _, err := clients[1].CoreV1().Namespaces().Get(t.Context(), names[1], metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// A server whose role has only the rights that docs/operations/postgresql.md grants serves, runs controllers
// and compacts the history. With the same role the database is backed up and checked.
func TestRole_WithFewRightsServes(t *testing.T) {
	t.Parallel()
	owner, dir := pgtest.DSN(t), t.TempDir()
	succeed(t, "migrate", "up", "--endpoint", owner)
	dsn := pgtest.FewRights(t, owner)
	server := startServer(t, dir, "--endpoint", dsn, "--retention-changes=1", "--compaction-interval=100ms",
		"--retention-for=configmaps=1h")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	configMap, err := client.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configMap.Data = map[string]string{"a": "b"}
	if _, err := client.CoreV1().ConfigMaps("default").Update(t.Context(), configMap, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	makeAndDeleteNamespace(t, client, "deleted")
	status := []string{"status", "--data-dir", dir, "--endpoint", dsn}
	storetest.Eventually(t, "the history is compacted", func() bool {
		return readJSONStatus(t, status...).Database.CompactedRevision > 1
	})
	succeed(t, "backup", "--endpoint", dsn, filepath.Join(t.TempDir(), "backup.zst"))
	succeed(t, "check", "--endpoint", dsn)
	if last := readJSONStatus(t, status...).Database.LastBackup; last == nil {
		t.Error("the backup is not recorded")
	}
	if code := server.stop(t); code != 0 {
		t.Errorf("stopped with %d", code)
	}
	if strings.Contains(server.log.String(), "permission denied") {
		t.Error("it lacks a right: see its log")
	}
	expectSchemaAskedFor(t, owner, dsn, dir)
}

// expectSchemaAskedFor starts a server that may not make the schema of its views. It says what to run, serves, and
// makes the views once it may.
func expectSchemaAskedFor(t *testing.T, owner, dsn, dir string) {
	t.Helper()
	server := startServer(t, dir, "--endpoint", dsn, "--sql-schema=k8s")
	h := &chronicle{T: t, endpoint: owner, config: server.config(t)}
	db := h.openSchema("k8s")
	for i, statement := range []string{`CREATE SCHEMA "k8s" AUTHORIZATION byre_server`,
		`GRANT CREATE, USAGE ON SCHEMA "k8s" TO byre_server`} {
		storetest.Eventually(t, "the log has the statement", func() bool {
			return strings.Contains(server.log.String(), ": "+statement)
		})
		if i == 0 {
			statement = "CREATE SCHEMA k8s" // the other way: a schema of the owner
		}
		h.execute(db, statement)
		h.define(fmt.Sprintf("things%d", i), `"size":{"type":"integer"}`) // it tries again, before the minute is over
	}
	h.awaitOne(db, "default", `SELECT string_agg(name, ',') FROM namespaces`)
	if n := strings.Count(server.log.String(), "permission denied for database"); n != 1 {
		t.Errorf("%d lines that it may not make the schema", n)
	}
	if code := server.stop(t); code != 0 { // the role can be dropped once no statement of the server runs
		t.Errorf("stopped with %d", code)
	}
}

// byre refuses a PostgreSQL server that may lose commits unless --allow-unsafe-durability
// is set.
func TestServe_RefusesUnsafeDurability(t *testing.T) {
	store := server.StoreOptions{DataDir: t.TempDir(), Endpoint: pgtest.DSN(t) + "&options=-c%20synchronous_commit%3Doff"}
	if _, err := openDatabase(t.Context(), store); err == nil ||
		!strings.Contains(err.Error(), "synchronous_commit is off") {
		t.Errorf("without --allow-unsafe-durability: %v", err)
	}
	store.AllowUnsafeDurability = true
	database, err := openDatabase(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	if err := database.Driver.Close(); err != nil {
		t.Error(err)
	}
}

// tlsCluster is a PostgreSQL server that accepts TLS connections only: of the user "secret"
// with a password and of the user "certified" with a client certificate.
type tlsCluster struct {
	*pgtest.Cluster
	address string
	// authority is the CA of the server's certificate and, at first, of the clients'.
	authority pki.Files
}

// startTLSCluster listens on a loopback address that no other process of the tests uses,
// because the servers of all tests have PostgreSQL's default port.
func startTLSCluster(t *testing.T) *tlsCluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	if _, err := pgtest.Program("initdb"); err != nil {
		t.Skip(err)
	}
	pid := os.Getpid()
	c := &tlsCluster{address: fmt.Sprintf("127.%d.%d.%d", 100+pid>>15%100, pid>>7%256, 1+pid%128)}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", c.address+":5432")
	if err != nil {
		t.Skipf("needs an address of the loopback network: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if c.Cluster, err = (pgtest.Config{Settings: []string{"listen_addresses='" + c.address + "'"}}).Start(
		t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() }) // its status tells of SIGQUIT
	c.authority = newAuthority(t, c.address)
	c.write(t, "server.crt", c.authority.ServingCert)
	c.write(t, "server.key", c.authority.ServingKey)
	c.write(t, "clients.crt", c.authority.CACert)
	if err := c.WriteFile("pg_hba.conf",
		[]byte("local all byre trust\nhostssl all secret all scram-sha-256\nhostssl all certified all cert\n")); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`ALTER SYSTEM SET ssl_ca_file = 'clients.crt'`, `ALTER SYSTEM SET ssl = on`, `SELECT pg_reload_conf()`,
		`CREATE ROLE secret LOGIN PASSWORD 'first'`, `CREATE ROLE certified LOGIN`,
		`CREATE DATABASE secret OWNER secret`, `CREATE DATABASE file OWNER secret`,
		`CREATE DATABASE certified OWNER certified`,
	} {
		c.mustExec(t, statement)
	}
	return c
}

// newAuthority creates a CA and a certificate for a server at the address.
func newAuthority(t *testing.T, address string) pki.Files {
	t.Helper()
	files, _, err := pki.Ensure(pki.Config{Dir: t.TempDir(), Hosts: []string{address}, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// write copies a file into the server's folder.
func (c *tlsCluster) write(t *testing.T, name, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WriteFile(name, data); err != nil {
		t.Fatal(err)
	}
}

func (c *tlsCluster) mustExec(t *testing.T, statement string) {
	t.Helper()
	if err := c.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// endpoint returns the URL of a user's database over TLS, with additional parameters.
func (c *tlsCluster) endpoint(user, database string, parameters url.Values) string {
	parameters.Set("sslmode", "verify-full")
	// The tests use connections that exist after the credentials have changed.
	parameters.Set("pool_max_conn_idle_time", "1h")
	parameters.Set("sslrootcert", c.authority.CACert)
	u := url.URL{Scheme: "postgres", User: url.User(user), Host: c.address, Path: "/" + database,
		RawQuery: parameters.Encode()}
	return u.String()
}

// disconnect ends all sessions on the database, so that the next ones authenticate again.
func (c *tlsCluster) disconnect(t *testing.T, database string) {
	t.Helper()
	c.mustExec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+database+`'`)
}

func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// awaitWrite waits until the server accepts a write. One may fail while another request uses
// the connection that works.
func awaitWrite(t *testing.T, client kubernetes.Interface, what string) {
	t.Helper()
	storetest.EventuallyDone(t, what, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}, metav1.CreateOptions{})
		return err == nil, err
	})
}

// TestRotation_OfPostgresCredentials changes the password and the client certificate of a
// running server, in PostgreSQL and in the files that the endpoint names. Existing
// connections continue; new ones use the new credentials.
func TestRotation_OfPostgresCredentials(t *testing.T) {
	t.Parallel()
	c := startTLSCluster(t)
	t.Run("passfile", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "pgpass")
		line := func(password string) string { return c.address + ":5432:secret:secret:" + password + "\n" }
		c.rotatePassword(t, "secret", path, line, c.endpoint("secret", "secret", url.Values{"passfile": {path}}))
	})
	t.Run("passwordfile", func(t *testing.T) {
		c.mustExec(t, `ALTER ROLE secret PASSWORD 'first'`)
		path := filepath.Join(t.TempDir(), "token")
		line := func(password string) string { return password + "\n" }
		c.rotatePassword(t, "file", path, line, c.endpoint("secret", "file", url.Values{"passwordfile": {path}}))
	})
	t.Run("client certificate", c.rotateCertificate)
}

// rotatePassword starts a server whose password is in a file, and changes the password.
// line formats the content of the file.
func (c *tlsCluster) rotatePassword(
	t *testing.T, database, path string, line func(password string) string, endpoint string,
) {
	t.Helper()
	replaceFile(t, path, line("first"))
	server := startServer(t, t.TempDir(), "--endpoint", endpoint)
	client := kubernetes.NewForConfigOrDie(server.config(t))
	c.mustExec(t, `ALTER ROLE secret PASSWORD 'second'`)
	awaitWrite(t, client, "a connection that exists is used")
	replaceFile(t, path, line("second"))
	c.disconnect(t, database)
	awaitWrite(t, client, "new connections use the new password")
}

// rotateCertificate makes PostgreSQL trust only another CA, after the server got a
// certificate of that CA.
func (c *tlsCluster) rotateCertificate(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	issue := func(authority pki.Files) {
		kubeconfig, err := pki.NewKubeconfig(
			pki.Config{Dir: filepath.Dir(authority.CACert), Server: "https://unused", Kubeconfig: filepath.Join(dir, "none"),
				Now: time.Now()},
			pki.User{Name: "certified", Lifetime: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		replaceFile(t, key, string(config.KeyData))
		replaceFile(t, cert, string(config.CertData))
	}
	issue(c.authority)
	server := startServer(t, t.TempDir(), "--endpoint",
		c.endpoint("certified", "certified", url.Values{"sslcert": {cert}, "sslkey": {key}}))
	client := kubernetes.NewForConfigOrDie(server.config(t))
	next := newAuthority(t, c.address)
	issue(next)
	c.write(t, "clients.crt", next.CACert)
	c.mustExec(t, `SELECT pg_reload_conf()`)
	awaitWrite(t, client, "a connection that exists is used")
	c.disconnect(t, "certified")
	awaitWrite(t, client, "new connections use the new certificate")
}
