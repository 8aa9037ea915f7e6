package e2e

import (
	"bufio"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestKubectl_Watches changes an object while kubectl watches it.
func TestKubectl_Watches(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openDatabase(t, name)
			testKubectlWatch(t, startByre(t, db))
		})
	}
}

func testKubectlWatch(t *testing.T, s *servers.Server) {
	const ns = "watched"
	c := client(t, s)
	createNamespace(t, c, ns)
	cms := c.CoreV1().ConfigMaps(ns)
	create := func(name string, labels map[string]string) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := cms.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch := func(name, patch string) {
		if _, err := cms.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("first", map[string]string{"kind": "widget"})

	lines := startKubectl(t, s, "get", "configmaps", "-n", ns, "-l", "kind=widget", "-w", "--output-watch-events",
		"--no-headers")
	expect := func(pattern string) {
		t.Helper()
		expectLine(t, lines, pattern)
	}
	expect(`^ADDED +first +0 `)
	create("second", map[string]string{"kind": "widget"})
	expect(`^ADDED +second +0 `)
	create("third", map[string]string{"kind": "gadget"})
	patch("first", `{"data":{"a":"1","b":"2"}}`)
	expect(`^MODIFIED +first +2 `)
	// It starts to match, and stops to.
	patch("third", `{"metadata":{"labels":{"kind":"widget"}}}`)
	expect(`^ADDED +third +0 `)
	patch("second", `{"metadata":{"labels":{"kind":"gadget"}}}`)
	expect(`^DELETED +second +0 `)
	if err := cms.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(`^DELETED +first +2 `)
}

// TestKubectl_Proxies reads through kubectl's proxy.
func TestKubectl_Proxies(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testKubectlProxy(t, startByre(t, openDatabase(t, name)))
		})
	}
}

func testKubectlProxy(t *testing.T, s *servers.Server) {
	lines := startKubectl(t, s, "proxy", "--port", "0")
	match := expectLine(t, lines, `^Starting to serve on (127\.0\.0\.1:\d+)`)
	for path, want := range map[string]string{
		"/api/v1/namespaces/default": `"kind": ?"Namespace"`,
		"/readyz":                    `^ok$`,
		"/apis/apps/v1":              `"deployments/scale"`,
	} {
		res, err := http.Get("http://" + match[1] + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK || !regexp.MustCompile(want).Match(body) {
			t.Errorf("%s answers %s:\n%s", path, res.Status, body)
		}
	}
}

// startKubectl runs kubectl in the background until the test ends.
func startKubectl(t *testing.T, s *servers.Server, args ...string) <-chan string {
	t.Helper()
	return followKubectl(t, kubectlCommand(t, s, args...))
}

// kubectlCommand returns a kubectl with an empty discovery cache.
func kubectlCommand(t *testing.T, s *servers.Server, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), programs.Kubectl.Path(),
		append([]string{"--kubeconfig", s.Kubeconfig, "--cache-dir", t.TempDir()}, args...)...)
}

// runKubectl runs kubectl, which must succeed, and returns what it prints.
func runKubectl(t *testing.T, s *servers.Server, args ...string) string {
	t.Helper()
	out, complaints, err := tryKubectl(t, s, "", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, complaints)
	}
	return out
}

// tryKubectl runs kubectl with an input, and returns what it prints.
func tryKubectl(t *testing.T, s *servers.Server, input string, args ...string) (out, complaints string, err error) {
	t.Helper()
	cmd := kubectlCommand(t, s, args...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// followKubectl starts the command and returns the lines that it prints. It must
// end with the test's context.
func followKubectl(t *testing.T, cmd *exec.Cmd) <-chan string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			case <-t.Context().Done():
			}
		}
	}()
	t.Cleanup(func() {
		<-done
		// The end of the test killed it, so that its exit status says nothing.
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("kubectl said: %s", complaints.String())
		}
	})
	return lines
}

func expectLine(t *testing.T, lines <-chan string, pattern string) []string {
	t.Helper()
	select {
	case line := <-lines:
		match := regexp.MustCompile(pattern).FindStringSubmatch(line)
		if match == nil {
			t.Fatalf("kubectl printed %q, not %s", line, pattern)
		}
		return match
	case <-time.After(storetest.Patience):
		t.Fatalf("kubectl did not print %s", pattern)
		return nil
	}
}
