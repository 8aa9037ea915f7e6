package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/process/pki"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

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
	if c.Cluster, err = (pgtest.Config{Settings: []string{"listen_addresses='" + c.address + "'"}}).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() }) // its status tells of SIGQUIT
	c.authority = newAuthority(t, c.address)
	c.write(t, "server.crt", c.authority.ServingCert)
	c.write(t, "server.key", c.authority.ServingKey)
	c.write(t, "clients.crt", c.authority.CACert)
	if err := c.WriteFile("pg_hba.conf", []byte("local all byre trust\nhostssl all secret all scram-sha-256\nhostssl all certified all cert\n")); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`ALTER SYSTEM SET ssl_ca_file = 'clients.crt'`, `ALTER SYSTEM SET ssl = on`, `SELECT pg_reload_conf()`,
		`CREATE ROLE secret LOGIN PASSWORD 'first'`, `CREATE ROLE certified LOGIN`,
		`CREATE DATABASE secret OWNER secret`, `CREATE DATABASE file OWNER secret`, `CREATE DATABASE certified OWNER certified`,
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
	u := url.URL{Scheme: "postgres", User: url.User(user), Host: c.address, Path: "/" + database, RawQuery: parameters.Encode()}
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
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}, metav1.CreateOptions{})
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
func (c *tlsCluster) rotatePassword(t *testing.T, database, path string, line func(password string) string, endpoint string) {
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
			pki.Config{Dir: filepath.Dir(authority.CACert), Server: "https://unused", Kubeconfig: filepath.Join(dir, "none"), Now: time.Now()},
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
	server := startServer(t, t.TempDir(), "--endpoint", c.endpoint("certified", "certified", url.Values{"sslcert": {cert}, "sslkey": {key}}))
	client := kubernetes.NewForConfigOrDie(server.config(t))
	next := newAuthority(t, c.address)
	issue(next)
	c.write(t, "clients.crt", next.CACert)
	c.mustExec(t, `SELECT pg_reload_conf()`)
	awaitWrite(t, client, "a connection that exists is used")
	c.disconnect(t, "certified")
	awaitWrite(t, client, "new connections use the new certificate")
}
