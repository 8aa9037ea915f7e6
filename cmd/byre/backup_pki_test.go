package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/process/pki"
	"byre/sqlstore/bucket"
	"byre/sqlstore/storetest"
)

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
	server := startServer(t, t.TempDir(), "--age-recipient", identity.Recipient().String(), "--backup-schedule=@every 1s", "--backup-to", backups,
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
		if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
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
	if removed, _ := succeed(t, "backup", "prune", filepath.Dir(bySecret), "--keep", "1"); !strings.Contains(removed, "nothing to delete") {
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
	expectFailure(t, "a backup that has a name", "backup", "--data-dir", dir, "--with-pki", "--age-recipient", recipient, "-")
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
	for _, broken := range [][]byte{content[:len(content)-1], append(bytes.Clone(content[:len(content)-1]), content[len(content)-1]^1)} {
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
	if err := errors.Join(os.WriteFile(elsewhere, []byte("a key"), 0o600), os.Symlink(elsewhere, filepath.Join(dir, "ca.key"))); err != nil {
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
