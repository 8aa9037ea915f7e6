package main

import (
	"context"
	stdsql "database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	integrity "byre/cmd/byre/status"
	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// A database in use has no findings. Each row that was changed without byre is reported
// with the reason. A flag makes the check repair a gap in the history.
func TestCheck_FindsWhatIsBroken(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		dir := t.TempDir()
		testCheck(t, dir, nil, func(statement string) {
			db, err := stdsql.Open("sqlite", migrations.SQLiteDSN(filepath.Join(dir, "byre.db")))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("postgres", func(t *testing.T) {
		dsn := pgtest.DSN(t)
		testCheck(t, t.TempDir(), []string{"--endpoint", dsn}, func(statement string) {
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func testCheck(t *testing.T, dir string, flags []string, exec func(string)) {
	p := startServer(t, dir, flags...)
	kube := kubernetes.NewForConfigOrDie(p.config(t))
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := kube.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	check := func(args ...string) (int, string) {
		t.Helper()
		status, out, errOut := call(append([]string{"check", "--data-dir", dir}, append(flags, args...)...)...)
		return status, out + errOut
	}
	if status, out := check(); status != 0 || !strings.Contains(out, " 0 findings") {
		t.Errorf("while byre runs: %d %s", status, out)
	}
	if status := p.stop(t); status != 0 {
		t.Fatalf("stopped with %d", status)
	}
	if status, out := check(); status != 0 || !strings.Contains(out, " 0 findings") {
		t.Errorf("while byre is stopped: %d %s", status, out)
	}

	exec(`DELETE FROM undo_log WHERE revision = 5`)
	exec(`DELETE FROM current_objects WHERE resource_id = (SELECT id FROM resources WHERE resource = 'ipaddresses')`)
	exec(`UPDATE current_objects SET value = replace(value, '"name":"kube-node-lease"', '"name":"other"') WHERE resource_id = (SELECT id FROM resources WHERE resource = 'namespaces') AND name = 'kube-node-lease'`)
	if len(flags) == 0 { // otherwise the checksum is the only finding
		exec(`UPDATE current_objects SET record_sum = NULL`)
	}
	status, out := check()
	for _, want := range []string{
		"revisions 5 to 5 are missing",
		"services default/web: has the cluster IP",
		`namespaces kube-node-lease: its value is that of "other"`,
		"is the last change of its object, which is not there",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the check does not say %q: %s", want, out)
		}
	}
	if status != statusDamaged {
		t.Errorf("exit status %d", status)
	}
	if status, out := check("--repair"); status != statusDamaged || !strings.Contains(out, "repaired: the history is compacted up to revision 5") {
		t.Errorf("repair: %d %s", status, out)
	}
	status, out = check("-o", "json")
	var result integrity.CheckResult
	if err := json.Unmarshal([]byte(out[:strings.LastIndex(out, "}")+1]), &result); err != nil || status != statusDamaged || result.MissingUpTo != 0 || len(result.Findings) == 0 {
		t.Errorf("after the repair: %d %v %s", status, err, out)
	}
	if status, out := check("-o", "yaml"); status != 1 || !strings.Contains(out, "must be text or json") {
		t.Errorf("another format: %d %s", status, out)
	}
}

// Everything is encrypted, but for ConfigMaps, with a key of each test's own.
const checkedEncryption = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [configmaps]
  providers:
  - aescbc: {keys: [{name: %[1]s, secret: %[2]s}]}
  - identity: {}
- resources: ["*.*"]
  providers:
  - aesgcm: {keys: [{name: %[1]s, secret: %[2]s}]}
`

// With the keys the check decrypts and decodes every value, whatever its resource. It
// reports each value that a server with these keys could not read, in the history too.
func TestCheck_DecryptsValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := func(name, key string) string {
		path := filepath.Join(t.TempDir(), "encryption.yaml")
		text := fmt.Sprintf(checkedEncryption, name, base64.StdEncoding.EncodeToString([]byte(key)))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--encryption-provider-config=" + path
	}
	right := config("key1", "0123456789abcdef")
	p := startServer(t, dir, right)
	rest := p.config(t)
	kube := kubernetes.NewForConfigOrDie(rest)
	defineWidgets(t, dynamic.NewForConfigOrDie(rest))
	for _, name := range []string{"a", "b"} {
		if _, err := kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := kube.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if status := p.stop(t); status != 0 {
		t.Fatalf("stopped with %d", status)
	}
	check := func(args ...string) (int, integrity.CheckResult) {
		t.Helper()
		p := command(t, dir, append([]string{"check", "--data-dir", dir, "-o", "json"}, args...)...) // it replaces its process's logger
		status := p.wait(t)
		var result integrity.CheckResult
		// What it writes to standard error, that there are findings, follows the result.
		text := strings.NewReader(progressLines.ReplaceAllString(p.log.String(), ""))
		if err := json.NewDecoder(text).Decode(&result); err != nil {
			t.Fatalf("%d %v %s", status, err, p.log)
		}
		return status, result
	}
	if status, r := check(); status != 0 || r.Encrypted == 0 || r.Decrypted != 0 {
		t.Errorf("without keys: %d %+v", status, r)
	}
	if status, r := check(right); status != 0 || r.Encrypted == 0 || r.Decrypted != r.Encrypted {
		t.Errorf("with the keys: %d %+v", status, r)
	}
	if status, r := check(config("key2", "0123456789abcdef")); status != statusDamaged || r.Decrypted != 0 ||
		!strings.Contains(fmt.Sprint(r.Findings), "objects: secrets default/a: its value does not decrypt: no matching key was found") {
		t.Errorf("with a key of another name: %d %.2000s", status, fmt.Sprint(r))
	}
	if status, r := check(config("key1", "fedcba9876543210")); status != statusDamaged || r.Decrypted != 0 {
		t.Errorf("with another key: %d %.2000s", status, fmt.Sprint(r))
	}

	db, err := stdsql.Open("sqlite", migrations.SQLiteDSN(filepath.Join(dir, "byre.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		// Sealed values are bound to their names.
		`UPDATE current_objects SET record_sum = NULL, value = (SELECT value FROM objects WHERE resource = 'secrets' AND name = 'b') WHERE resource_id = (SELECT id FROM resources WHERE resource = 'secrets') AND name = 'a'`,
		`UPDATE undo_log SET record_sum = NULL, value = substr(value, 1, length(value) - 9) || '"' WHERE revision = (SELECT max(revision) FROM undo_log WHERE op = 'update' AND value LIKE '"%')`,
		`UPDATE current_objects SET record_sum = NULL, value = '{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"builder","namespace":"default","uid":"' || uid || '"}}' WHERE resource_id = (SELECT id FROM resources WHERE resource = 'serviceaccounts') AND namespace = 'default' AND name = 'builder'`,
	} {
		if result, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		} else if n, err := result.RowsAffected(); err != nil || n != 1 {
			t.Fatalf("%s: %d rows, %v", statement, n, err)
		}
	}
	if status, r := check(); status != 0 {
		t.Errorf("without keys, after the damage: %d %+v", status, r)
	}
	status, r := check(right)
	text := fmt.Sprint(r.Findings)
	for _, want := range []string{
		"objects: secrets default/a: its value does not decrypt: ",
		"changes: revision ",
		// Not encrypted, and its resource has no provider "identity".
		"objects: serviceaccounts default/builder: its value does not decrypt: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the check does not say %q: %s", want, text)
		}
	}
	if status != statusDamaged || len(r.Findings) != 3 {
		t.Errorf("after the damage: %d %+v", status, r)
	}
}
