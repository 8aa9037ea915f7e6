package e2e

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"byre/apiserver/envtest/standin"
	"byre/apiserver/process/pki"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// environments is how many run at the same time.
const environments = 4

// TestEnvtest_RunsInParallelAndLeavesNothing is what a project's tests do: controller-runtime's
// envtest starts byre from the folder of "byre envtest-assets".
func TestEnvtest_RunsInParallelAndLeavesNothing(t *testing.T) {
	programs.Night(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("KUBECTL", programs.Kubectl.Path())
	assets := envtestAssets(t)
	t.Run("environments", func(t *testing.T) {
		for range environments {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				tryEnvironment(t, assets)
			})
		}
	})
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// envtestAssets is the folder for KUBEBUILDER_ASSETS.
func envtestAssets(t testing.TB) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Byre.Path(), "envtest-assets")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func tryEnvironment(t *testing.T, assets string) {
	env := &envtest.Environment{
		BinaryAssetsDirectory:    assets,
		CRDDirectoryPaths:        []string{filepath.Join("testdata", "envtest")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: storetest.Patience, ControlPlaneStopTimeout: storetest.Patience,
	}
	// Projects enable features that are off by default this way.
	env.ControlPlane.GetAPIServer().Configure().Append("runtime-config", "resource.k8s.io/v1beta1=true")
	started := time.Now()
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("an environment took %v to start", time.Since(started).Round(time.Millisecond))
	useEnvironment(t, env, config)
	apiServer, etcd := config.Host, env.ControlPlane.Etcd.URL.String()
	started = time.Now()
	if err := env.Stop(); err != nil {
		t.Error(err)
	}
	t.Logf("and %v to stop", time.Since(started).Round(time.Millisecond))
	trust, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{apiServer + "healthz", etcd + "/health"} {
		if statusOf(t, &http.Client{Transport: &http.Transport{TLSClientConfig: trust}}, url) != 0 {
			t.Errorf("%s answers after the stop", url)
		}
	}
}

// useEnvironment uses each facility of envtest once: definitions, users with few rights, and
// kubectl.
func useEnvironment(t *testing.T, env *envtest.Environment, config *rest.Config) {
	t.Helper()
	c, err := runtimeclient.New(config, runtimeclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "same-name"}}
	if err := c.Create(t.Context(), object); err != nil {
		t.Error(err)
	}
	user, err := env.AddUser(envtest.User{Name: "alice", Groups: []string{"staff"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	asAlice, err := runtimeclient.New(user.Config(), runtimeclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := asAlice.Get(t.Context(), runtimeclient.ObjectKeyFromObject(object), object); !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights reads a ConfigMap: %v", err)
	}
	admin, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := admin.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	out, problems, err := kubectl.Run("get", "sprockets.envtest.example.com,resourceclaims", "--all-namespaces")
	if err != nil {
		said, _ := io.ReadAll(problems) // a buffer
		t.Errorf("kubectl: %v: %s", err, said)
	}
	_, _ = io.Copy(io.Discard, out)
}

// statusOf returns the status that a server answers with, and 0 if it does not answer.
func statusOf(t testing.TB, client *http.Client, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// BenchmarkEnvtest_Start reports how long envtest takes to start an environment, with byre's
// programs and with kube-apiserver and etcd.
func BenchmarkEnvtest_Start(b *testing.B) {
	b.Setenv("KUBECTL", programs.Kubectl.Path())
	for name, assets := range map[string]string{"byre": envtestAssets(b),
		"stock": filepath.Dir(programs.APIServer.Path())} {
		b.Run(name, func(b *testing.B) {
			var took time.Duration
			for b.Loop() {
				env := &envtest.Environment{BinaryAssetsDirectory: assets}
				started := time.Now()
				if _, err := env.Start(); err != nil {
					b.Fatal(err)
				}
				took += time.Since(started)
				if err := env.Stop(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms-to-start")
		})
	}
}

// BenchmarkEnvtest_KubeAPIServer reports how long byre takes, started as kube-apiserver beside its
// etcd, from exec to a 200 of /readyz. As in envtest there are a certificate and keys.
func BenchmarkEnvtest_KubeAPIServer(b *testing.B) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // a certificate of this benchmark's
	var took time.Duration
	for b.Loop() {
		dir := b.TempDir()
		files, _, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), Hosts: []string{"127.0.0.1"}, Now: time.Now()})
		if err != nil {
			b.Fatal(err)
		}
		etcdURL, port := "http://127.0.0.1:"+freePort(b), freePort(b)
		etcd, err := servers.InPlace{Dir: dir, Name: "etcd", Args: []string{
			"--data-dir", filepath.Join(dir, "data"), "--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL,
		}}.Start(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		storetest.Eventually(b, "etcd answers", func() bool {
			return statusOf(b, client, etcdURL+"/health") == http.StatusOK
		})
		started := time.Now()
		server, err := servers.InPlace{Dir: dir, Name: "kube-apiserver", Args: []string{
			"--etcd-servers", etcdURL, "--cert-dir", filepath.Join(dir, "pki"), "--bind-address=127.0.0.1", "--secure-port",
			port,
			"--service-account-issuer=https://127.0.0.1/", "--service-account-key-file", files.ServiceAccount,
			"--service-account-signing-key-file", files.ServiceAccountKey,
			"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
		}}.Start(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for statusOf(b, client, "https://127.0.0.1:"+port+"/readyz") != http.StatusOK {
			if time.Since(started) > storetest.Patience {
				b.Fatalf("not ready; the log ends with:\n%s", server.LogTail())
			}
			time.Sleep(5 * time.Millisecond)
		}
		took += time.Since(started)
		client.CloseIdleConnections()
		server.Kill()
		etcd.Kill()
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms-to-ready")
}

func freePort(t testing.TB) string {
	t.Helper()
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
