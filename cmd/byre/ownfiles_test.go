package main

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/storage"
	"byre/sqlstore/storetest"
)

// A serving pair of another CA in pki/ is served and not replaced. With --root-ca-file
// admin.kubeconfig, Pods and "byre status" verify the server by it.
func TestOwnFiles_AServingPairOfAnotherCA(t *testing.T) {
	t.Parallel()
	other, dir := newAuthority(t, "byre.example.com"), t.TempDir()
	own := filepath.Join(dir, "pki")
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	pair := map[string]string{other.ServingCert: "apiserver.crt", other.ServingKey: "apiserver.key"}
	for from, name := range pair {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		replaceFile(t, filepath.Join(own, name), string(data))
	}
	// The server is ready once admin.kubeconfig verifies it, though it is reached at 127.0.0.1.
	server := startServer(t, dir, "--root-ca-file", other.CACert)
	for from, name := range pair {
		expectSameFile(t, from, filepath.Join(own, name))
	}
	expectRootCA(t, server, other.CACert)
	if status, out, _ := call("certs", "status", "--data-dir", dir); status != 0 || !externallyManaged(out, "apiserver ") || externallyManaged(out, "front-proxy-client ") {
		t.Errorf("certs status: %d\n%s", status, out)
	}
	if status, out, errOut := call("certs", "renew", "all", "--data-dir", dir); status != 0 || !strings.Contains(out, "apiserver not renewed: it is externally managed\n") || !strings.Contains(out, "front-proxy-client renewed\n") {
		t.Errorf("certs renew: %d, %q, %q", status, out, errOut)
	}
	if _, out, errOut := call("status", "--data-dir", dir); !strings.Contains(out, ", ready,") {
		t.Errorf("status: %q, %q", out, errOut)
	}
	if log := server.log.String(); !strings.Contains(log, `byre did not issue and does not renew" directory="`+own+`" files=["apiserver.crt"]`) {
		t.Error("the log does not say that the certificate is another's")
	}
}

func externallyManaged(table, name string) bool {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, name) {
			return strings.Contains(line, "yes")
		}
	}
	return false
}

func expectSameFile(t *testing.T, one, other string) {
	t.Helper()
	a, err := os.ReadFile(one)
	b, otherErr := os.ReadFile(other)
	if err != nil || otherErr != nil || !bytes.Equal(a, b) {
		t.Errorf("%s has not the content of %s (%v, %v)", other, one, err, otherErr)
	}
}

func expectRootCA(t *testing.T, server *serverProcess, file string) {
	t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(server.config(t))
	storetest.EventuallyDone(t, "the root CA is published", func(ctx context.Context) (bool, error) {
		published, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil && published.Data["ca.crt"] == string(want), err
	})
}

// A root CA that does not verify the certificate is refused before anything is written.
func TestOwnFiles_TheChainIsChecked(t *testing.T) {
	t.Parallel()
	other, dir := newAuthority(t, "127.0.0.1"), filepath.Join(t.TempDir(), "new")
	pair := []string{"--tls-cert-file", other.ServingCert, "--tls-private-key-file", other.ServingKey}
	wrong := newAuthority(t, "127.0.0.1")
	p := command(t, dir, serveArgs(dir, append(pair, "--root-ca-file", wrong.CACert)...)...)
	if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), "byre: --root-ca-file: ") {
		t.Errorf("status %d, %s", status, p.log)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

// A first start that fails leaves no keys in the database: a server with others may start.
func TestOwnFiles_AStartThatFailsRecordsNoKeys(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flags(t)
			if name == "sqlite" {
				flags = []string{"--endpoint", "sqlite://" + filepath.Join(t.TempDir(), "byre.db")}
			}
			file := filepath.Join(t.TempDir(), "policy.yaml")
			replaceFile(t, file, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
			first := t.TempDir()
			// The log can't be made, which is found after the database was opened.
			p := command(t, first, serveArgs(first, append(flags, "--audit-policy-file", file, "--audit-log-path", filepath.Join(file, "log"))...)...)
			if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), "--audit-log-path") {
				t.Fatalf("status %d, %s", status, p.log)
			}
			startServer(t, t.TempDir(), flags...)
		})
	}
}

// A wrong encryption configuration is found before the database is made.
func TestOwnFiles_AWrongEncryptionConfigWritesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	p := command(t, dir, serveArgs(dir, "--encryption-provider-config=/nonexistent")...)
	if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), "--encryption-provider-config") {
		t.Errorf("status %d, %s", status, p.log)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

// What root's commands leave in the directory of another user belongs to that user.
func TestOwnFiles_OfRootBelongToTheOwnerOfTheDirectory(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const other = 65534
	dir := t.TempDir()
	if err := os.Chown(dir, other, other); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, dir)
	succeed(t, "backup", "--data-dir", dir, filepath.Join(t.TempDir(), "backup.zst"))
	succeed(t, "certs", "renew", "all", "--data-dir", dir)
	expectOwners(t, dir, other)
	server.stop(t)
	backup, snapshot := filepath.Join(t.TempDir(), "backup.zst"), filepath.Join(t.TempDir(), "etcd.db")
	succeed(t, "backup", "--data-dir", dir, backup)
	succeed(t, "export", "etcd", snapshot, "--data-dir", dir)
	succeed(t, "restore", backup, "--data-dir", filepath.Join(dir, "new", "restored"))
	succeed(t, "import", "etcd", snapshot, "--data-dir", filepath.Join(dir, "imported"))
	expectOwners(t, dir, other)
}

func expectOwners(t *testing.T, dir string, want uint32) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		seen++
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != want || owner.Gid != want {
			t.Errorf("%s belongs to %d and group %d", path, owner.Uid, owner.Gid)
		}
		return nil
	})
	if err != nil || seen < 15 {
		t.Errorf("%d files, %v", seen, err)
	}
}

// An object that was stored with other feature gates has the defaults of the present ones, as
// on a stock server.
func TestEncoding_AFeatureGateThatIsTurnedOn(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, flags := t.TempDir(), flags(t)
			server := startServer(t, dir, append(flags, "--feature-gates=MaxUnavailableStatefulSet=false")...)
			labels := map[string]string{"app": "set"}
			set := &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Name: "set"},
				Spec: appsv1.StatefulSetSpec{
					Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{Labels: labels},
						Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
					},
				},
			}
			client := kubernetes.NewForConfigOrDie(server.config(t))
			made, err := client.AppsV1().StatefulSets("default").Create(t.Context(), set, metav1.CreateOptions{})
			if err != nil || made.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable != nil {
				t.Fatalf("with the gate off: %+v, %v", made.Spec.UpdateStrategy, err)
			}
			if status := server.stop(t); status != 0 {
				t.Errorf("exit status after SIGTERM is %d", status)
			}
			server = startServer(t, dir, append(flags, "--feature-gates=MaxUnavailableStatefulSet=true")...)
			client = kubernetes.NewForConfigOrDie(server.config(t))
			got, err := client.AppsV1().StatefulSets("default").Get(t.Context(), "set", metav1.GetOptions{})
			if err != nil || got.UID != made.UID || got.ResourceVersion != made.ResourceVersion {
				t.Fatalf("after a restart it is %+v, %v; want %+v", got, err, made)
			}
			if most := got.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; most == nil || most.IntValue() != 1 {
				t.Errorf("with the gate on maxUnavailable is %v", most)
			}
		})
	}
}

// An allocatable that is there and empty is defaulted when it is read, as on a stock server.
func TestEncoding_AnEmptyAllocatable(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(sharedServer(t, "sqlite").config(t))
	body := []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"empty-allocatable"},"status":{"capacity":{"cpu":"4"},"allocatable":{}}}`)
	answer, err := client.CoreV1().RESTClient().Post().AbsPath("/api/v1/nodes").SetHeader("Content-Type", "application/json").Body(body).DoRaw(t.Context())
	if err != nil || !strings.Contains(string(answer), `"allocatable":{"cpu":"4"}`) {
		t.Errorf("the answer of the create is %s, %v", answer, err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "empty-allocatable", metav1.GetOptions{})
	if err != nil || node.Status.Allocatable.Cpu().String() != "4" {
		t.Errorf("allocatable is %v, %v", node.Status.Allocatable, err)
	}
}

// The encoding of what is stored has the patch level of Kubernetes. The test of the package itself
// has no build information to take it from.
func TestEncoding_NamesThePatchLevel(t *testing.T) {
	t.Parallel()
	name := storage.Program(compatibility.DefaultBuildEffectiveVersion())
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+`).MatchString(name) {
		t.Errorf("the program is %s", name)
	}
}
