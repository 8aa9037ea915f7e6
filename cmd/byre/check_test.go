package main

import (
	"bytes"
	"context"
	stdsql "database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"byre/cmd/byre/status"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
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
	check := func(args ...string) (int, string) {
		t.Helper()
		code, out, errOut := call(append([]string{"check", "--data-dir", dir}, append(flags, args...)...)...)
		return code, out + errOut
	}
	if code, out := check(); code != 0 || !strings.Contains(out, " 0 findings") {
		t.Errorf("while byre runs: %d %s", code, out)
	}
	if code := p.stop(t); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	if code, out := check(); code != 0 || !strings.Contains(out, " 0 findings") {
		t.Errorf("while byre is stopped: %d %s", code, out)
	}

	exec(`DELETE FROM undo_log WHERE revision = 5`)
	exec(`DELETE FROM current_objects WHERE resource_id = (SELECT id FROM resources WHERE resource = 'ipaddresses')`)
	exec(`UPDATE current_objects SET value = replace(value, '"name":"kube-node-lease"', '"name":"other"') WHERE resource_id = (SELECT id FROM resources WHERE resource = 'namespaces') AND name = 'kube-node-lease'`)
	if len(flags) == 0 { // otherwise the checksum is the only finding
		exec(`UPDATE current_objects SET record_sum = NULL`)
	}
	code, out := check()
	for _, want := range []string{
		"revisions 5 to 5 are missing",
		`namespaces kube-node-lease: its value is that of "other"`,
		"is the last change of its object, which is not there",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the check does not say %q: %s", want, out)
		}
	}
	if code != statusDamaged {
		t.Errorf("exit status %d", code)
	}
	if code, out := check("--repair"); code != statusDamaged ||
		!strings.Contains(out, "repaired: the history is compacted up to revision 5") {
		t.Errorf("repair: %d %s", code, out)
	}
	code, out = check("-o", "json")
	var result status.CheckResult
	if err := json.Unmarshal([]byte(out[:strings.LastIndex(out, "}")+1]), &result); err != nil ||
		code != statusDamaged || result.MissingUpTo != 0 || len(result.Findings) == 0 {
		t.Errorf("after the repair: %d %v %s", code, err, out)
	}
	if code, out := check("-o", "yaml"); code != 1 || !strings.Contains(out, "must be text or json") {
		t.Errorf("another format: %d %s", code, out)
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
		if _, err := kube.CoreV1().Secrets("default").Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := kube.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code := p.stop(t); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	check := func(args ...string) (int, status.CheckResult) {
		t.Helper()
		// it replaces its process's logger
		p := command(t, dir, append([]string{"check", "--data-dir", dir, "-o", "json"}, args...)...)
		code := p.wait(t)
		var result status.CheckResult
		// What it writes to standard error, that there are findings, follows the result.
		text := strings.NewReader(progressLines.ReplaceAllString(p.log.String(), ""))
		if err := json.NewDecoder(text).Decode(&result); err != nil {
			t.Fatalf("%d %v %s", code, err, p.log)
		}
		return code, result
	}
	if code, r := check(); code != 0 || r.Encrypted == 0 || r.Decrypted != 0 {
		t.Errorf("without keys: %d %+v", code, r)
	}
	if code, r := check(right); code != 0 || r.Encrypted == 0 || r.Decrypted != r.Encrypted {
		t.Errorf("with the keys: %d %+v", code, r)
	}
	if code, r := check(config("key2", "0123456789abcdef")); code != statusDamaged || r.Decrypted != 0 ||
		!strings.Contains(fmt.Sprint(r.Findings),
			"objects: secrets default/a: its value does not decrypt: no matching key was found") {
		t.Errorf("with a key of another name: %d %.2000s", code, fmt.Sprint(r))
	}
	if code, r := check(config("key1", "fedcba9876543210")); code != statusDamaged || r.Decrypted != 0 {
		t.Errorf("with another key: %d %.2000s", code, fmt.Sprint(r))
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
	if code, r := check(); code != 0 {
		t.Errorf("without keys, after the damage: %d %+v", code, r)
	}
	code, r := check(right)
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
	if code != statusDamaged || len(r.Findings) != 3 {
		t.Errorf("after the damage: %d %+v", code, r)
	}
}

// damageFile changes a row of each table, and destroys a page of each, as a disk may do. It returns
// the keys of the objects that are lost, and the last revision whose change is.
func damageFile(t *testing.T, path string, before storetest.Rows) (lost map[sqlstore.Key]bool, lastLost int64) {
	t.Helper()
	changed, inHistory := before.Objects[len(before.Objects)-1], before.Changes[len(before.Changes)/2]
	tool(t, "sqlite3", path,
		"UPDATE current_objects SET who = who || 'x' WHERE created_revision = "+strconv.FormatInt(changed.Created, 10)+
			"; UPDATE undo_log SET who = who || 'x' WHERE revision = "+strconv.FormatInt(inHistory.Revision, 10)+
			"; PRAGMA wal_checkpoint(TRUNCATE)")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"current_objects", "undo_log"} {
		leaves := strings.Fields(tool(t, "sqlite3", "-readonly", path,
			"SELECT pageno FROM dbstat WHERE name = '"+table+"' AND pagetype = 'leaf' ORDER BY path"))
		page, err := strconv.Atoi(leaves[1])
		if err != nil {
			t.Fatal(err)
		}
		size := int(file[16])<<8 | int(file[17])
		clear(file[(page-1)*size : page*size])
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	lost = map[sqlstore.Key]bool{}
	for _, row := range before.Objects {
		lost[row.Key] = true
	}
	read := map[int64]bool{}
	err = sqlite.ReadDamaged(t.Context(), path, func(s sqlstore.Snapshot) error {
		for row, err := range s.Objects {
			if err == nil {
				delete(lost, row.Key)
			}
		}
		for row, err := range s.Changes {
			if err == nil {
				read[row.Revision] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range before.Changes {
		if !read[row.Revision] {
			lastLost = max(lastLost, row.Revision)
		}
	}
	if !lost[changed.Key] || len(lost) < 2 || len(lost) > len(before.Objects)/2 || lastLost < inHistory.Revision ||
		len(read) < len(before.Changes)/2 {
		t.Fatalf("%d of %d objects are lost, and %d of %d changes are read", len(lost), len(before.Objects), len(read),
			len(before.Changes))
	}
	return lost, lastLost
}

// TestDamage_IsCountedAndLeftOut: a check of a damaged file names each row that can't be read, and
// goes on. A backup fails, unless it is told to leave these rows out; it names them too. What is
// restored from it is everything else.
func TestDamage_IsCountedAndLeftOut(t *testing.T) {
	t.Parallel()
	before := storetest.RandomRows(t, rand.New(rand.NewPCG(21, 21))).WithoutKept()
	database := sqliteWith(t, before)
	lost, lastLost := damageFile(t, strings.TrimPrefix(database, "sqlite://"), before)

	code, out, errOut := call("check", "--endpoint", database)
	if code != statusDamaged || !strings.Contains(out, "checked ") ||
		!strings.Contains(errOut, " findings: keep a copy of the database") {
		t.Errorf("check: %d %s %s", code, out, errOut)
	}
	for key := range lost {
		if strings.Count(out, "current_objects: "+key.Display()+": the row can't be read")+
			strings.Count(out, key.Display()+": the row does not have its checksum") < 1 {
			t.Errorf("the check does not name %s", key.Display())
		}
	}
	if strings.Contains(out, "which is not there") {
		t.Errorf("the check takes damaged rows for missing ones: %s", out)
	}

	if code, _, errOut := call("check", "--endpoint", database, "--repair"); code != statusDamaged ||
		strings.Contains(errOut, "repaired") {
		t.Errorf("repair: %d %s", code, errOut)
	}
	file := filepath.Join(t.TempDir(), "byre.zst")
	expectFailure(t, `"byre backup --skip-damaged" saves what can be read`, "backup", "--endpoint", database, file)
	code, out, errOut = call("backup", "--endpoint", database, "--skip-damaged", file)
	if code != statusDamaged || !strings.Contains(out, "\nsha256 ") ||
		!strings.Contains(errOut, " damaged parts of the database are not in the backup") {
		t.Errorf("backup: %d %s %s", code, out, errOut)
	}
	for key := range lost {
		if !strings.Contains(errOut, key.Display()+": the row ") {
			t.Errorf("the backup does not name %s", key.Display())
		}
	}
	if want := "the history up to revision " + strconv.FormatInt(lastLost, 10); !strings.Contains(errOut, want) {
		t.Errorf("the backup does not say %q: %s", want, errOut)
	}
	target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
	succeed(t, "restore", "--endpoint", target, file)
	held := map[sqlstore.Key][]byte{}
	err := readDatabase(t.Context(), target, func(s sqlstore.Snapshot) error {
		for row, err := range s.Objects {
			if err != nil {
				return err
			}
			held[row.Key] = row.Value
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range before.Objects {
		if value, ok := held[row.Key]; ok == lost[row.Key] || ok && !bytes.Equal(value, row.Value) {
			t.Errorf("%s is restored: %t", row.Display(), ok)
		}
	}
	// The history after the damage is there.
	succeed(t, "restore", "--endpoint", "sqlite://"+filepath.Join(t.TempDir(), "byre.db"), "--at",
		strconv.FormatInt(max(lastLost, before.Compacted), 10), file)

	sound := sqliteWith(t, before)
	if _, errOut := succeed(t, "backup", "--endpoint", sound, "--skip-damaged",
		filepath.Join(t.TempDir(), "byre.zst")); errOut != "" {
		t.Errorf("of a sound database: %s", errOut)
	}
}
