package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	stdsql "database/sql"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"byre/migrations"
	"byre/sqlstore/storetest"
)

// A server whose pki/ was lost reports it, and can continue with new keys.
func TestTrust_LostKeysAreReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startServer(t, dir).stop(t)
	if err := os.RemoveAll(filepath.Join(dir, "pki")); err != nil {
		t.Fatal(err)
	}
	expectRefusedKeys(t, dir)
	startServer(t, dir, "--accept-new-keys").stop(t)
	startServer(t, dir)
}

// A replica with other keys does not join.
func TestTrust_ReplicaWithOtherKeysIsRefused(t *testing.T) {
	t.Parallel()
	expectRefusedKeys(t, t.TempDir(), "--endpoint", sharedServer(t, "postgres").endpoint)
}

// TestTrust_FollowsARotationByReloads: a CA is replaced in steps while the server runs, and then the server starts again.
func TestTrust_FollowsARotationByReloads(t *testing.T) {
	t.Parallel()
	newCA := func(name string) []byte {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: ca.Raw})
	}
	before, after := newCA("before"), newCA("after")
	dir, file := t.TempDir(), writeFile(t, string(before))
	server := startServer(t, dir, "--client-ca-file", file, "--requestheader-client-ca-file", file, "--requestheader-allowed-names=front")
	if log := server.log.String(); !strings.Contains(log, "by --proxy-client-cert-file") {
		t.Errorf("no warning that the server's own front proxy is not trusted: %s", log)
	}
	database, err := stdsql.Open("sqlite", migrations.SQLiteDSN(filepath.Join(dir, "byre.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	expectPublished(t, server, string(before))
	for _, authorities := range [][]byte{slices.Concat(before, after), after} {
		count := strings.Count(string(authorities), "BEGIN")
		if err := os.WriteFile(file, authorities, 0o600); err != nil {
			t.Fatal(err)
		}
		storetest.EventuallyDone(t, "the keys are recorded", func(ctx context.Context) (bool, error) {
			var recorded int
			err := database.QueryRowContext(ctx, `SELECT json_array_length(value, '$.clientCAs') FROM objects WHERE resource = 'trusts' AND name = 'trust'`).Scan(&recorded)
			return recorded == count, err
		})
		expectPublished(t, server, string(after))
	}
	server.stop(t)
	startServer(t, dir, "--client-ca-file", file)
}

// expectPublished waits for the CA in what extension API servers read. Without a reload that is written once a minute.
func expectPublished(t *testing.T, server *serverProcess, ca string) {
	t.Helper()
	maps := kubernetes.NewForConfigOrDie(server.config(t)).CoreV1().ConfigMaps("kube-system")
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		published, err := maps.Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil && strings.Contains(published.Data["client-ca-file"], ca) && strings.Contains(published.Data["requestheader-client-ca-file"], ca), nil
	})
	if err != nil {
		t.Errorf("the CA is not published: %v", err)
	}
}

func expectRefusedKeys(t *testing.T, dir string, args ...string) {
	t.Helper()
	args = append([]string{"serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0"}, args...)
	p := command(t, dir, args...)
	status := p.wait(t)
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	said := lines[len(lines)-1]
	if status != 1 || !strings.HasPrefix(said, "byre: there is no "+filepath.Join(dir, "pki", "ca.crt")+", and the database was served with the key sha256:") || !strings.Contains(said, filepath.Join(dir, "pki")) || !strings.Contains(said, "--accept-new-keys") {
		t.Errorf("status %d, %s", status, said)
	}
	if made, _ := filepath.Glob(filepath.Join(dir, "pki", "*")); len(made) > 0 {
		t.Errorf("a start that is refused has made %q", made)
	}
}
