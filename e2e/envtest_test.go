package e2e

import (
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

	"byre/e2e/programs"
	"byre/sqlstore/eventually"
)

// environments is how many run at the same time.
const environments = 4

// TestEnvtest_RunsInParallelAndLeavesNothing is what a project's tests do: controller-runtime's
// envtest starts byre from the folder of "byre envtest-assets".
func TestEnvtest_RunsInParallelAndLeavesNothing(t *testing.T) {
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
func envtestAssets(t *testing.T) string {
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
		ControlPlaneStartTimeout: eventually.Patience, ControlPlaneStopTimeout: eventually.Patience,
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
		if probeOnce(t, &http.Client{Transport: &http.Transport{TLSClientConfig: trust}}, url) {
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

// probeOnce reports whether a server answers.
func probeOnce(t *testing.T, client *http.Client, url string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return true
}
