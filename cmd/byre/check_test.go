package main

import (
	"bytes"
	"context"
	stdsql "database/sql"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/integrity"
	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// A database in use has no findings. Each row that was changed without byre is reported
// with the reason. A flag makes the check repair a gap in the history.
func TestCheck_FindsWhatIsBroken(t *testing.T) {
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
		var out, errOut bytes.Buffer
		args = append([]string{"check", "--data-dir", dir}, append(flags, args...)...)
		status := run(args, &out, &errOut)
		return status, out.String() + errOut.String()
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

	exec(`DELETE FROM changes WHERE revision = 5`)
	exec(`DELETE FROM objects WHERE resource = 'ipaddresses'`)
	exec(`UPDATE objects SET value = replace(value, '"name":"kube-node-lease"', '"name":"other"') WHERE resource = 'namespaces' AND name = 'kube-node-lease'`)
	if len(flags) == 0 { // otherwise the checksum is the only finding
		exec(`UPDATE objects SET record_sum = NULL`)
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
	var result integrity.Result
	if err := json.Unmarshal([]byte(out[:strings.LastIndex(out, "}")+1]), &result); err != nil || status != statusDamaged || result.MissingUpTo != 0 || len(result.Findings) == 0 {
		t.Errorf("after the repair: %d %v %s", status, err, out)
	}
	if status, out := check("-o", "yaml"); status != 1 || !strings.Contains(out, "must be text or json") {
		t.Errorf("another format: %d %s", status, out)
	}
}
