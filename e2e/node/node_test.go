package node

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"byre/e2e/operator"
	"byre/e2e/programs"
)

const nodeName = "node-1"

// node is byre with one real node, or with hollow ones.
type node struct {
	// host is where docs/operations/one-host.md is typed.
	host *operator.Host
	// steps are the page's commands for an edge node.
	steps []string
	// dir has what the page does not speak of.
	dir string
	// names are those of the nodes.
	names []string
}

// kubeconfig is the administrator's, bootstrap one with a bootstrap token.
func (n *node) kubeconfig() string { return n.host.Path("var/lib/byre/admin.kubeconfig") }
func (n *node) bootstrap() string  { return n.host.Path("etc/kubernetes/bootstrap.kubeconfig") }

// TestNode_RunsPods: byre with its scheduler and controllers, and a kubelet, are a cluster.
func TestNode_RunsPods(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("make node-test runs a real node")
	}
	n := startCluster(t)
	n.runWeb(t, web)
	first := n.startAgent(t)
	for _, step := range []struct {
		name string
		test func(*testing.T)
	}{
		{"logs", n.testLogs},
		{"exec", n.testExec},
		{"attach", n.testAttach},
		{"cp", n.testCopy},
		{"port-forward", n.testPortForward},
		{"ephemeral container", n.testEphemeral},
		{"projected token", n.testToken},
		{"probes", n.testProbes},
		{"restart of byre under running Pods", n.testRestart},
		{"drain", n.testDrain},
	} {
		if !t.Run(step.name, step.test) {
			return
		}
	}
	if *awaitRenewal {
		t.Run("renewed token", func(t *testing.T) { n.testRenewal(t, first) })
	}
}

// startServer starts byre with its scheduler and controllers, and lets nodes join by a bootstrap
// token, as docs/operations/one-host.md says.
func startServer(t *testing.T, names ...string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "byre-node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{dir: dir, names: names, host: operator.NewHost(t, nodeName),
		steps: operator.Commands(t, "one-host.md", "An edge node", 4)}
	n.host.Package(t, programs.Byre.Path(), "1.0.0")
	for _, step := range n.steps[:2] {
		n.host.Type(t, step)
	}
	return n
}

// startCluster has a node join by a bootstrap token and certificate signing requests, which byre approves.
func startCluster(t *testing.T) *node {
	t.Helper()
	n := startServer(t, nodeName)
	startContainerd(t, n.dir)
	n.installKubelet(t)
	n.host.EditScript(t, "join.sh", func(script string) string {
		before, after, found := strings.Cut(script, "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n")
		if !found {
			t.Fatal("the script has no configuration of the kubelet:\n" + script)
		}
		return before + "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n" + kubeletConfig + after
	})
	n.host.Type(t, n.steps[2])
	n.host.Type(t, n.steps[3])
	return n
}

func (n *node) apply(t *testing.T, manifests string) {
	t.Helper()
	if _, err := n.tryKubectl(t, manifests, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: ` + image + `
        imagePullPolicy: Never
        command: [sh, -c, "echo first; echo second; echo hello > /www/index.html; httpd -f -p 8080 -h /www"]
        volumeMounts: [{name: www, mountPath: /www}]
        readinessProbe: {httpGet: {port: 8080, path: /}, periodSeconds: 1}
        livenessProbe: {exec: {command: [test, -e, /www/index.html]}, periodSeconds: 1, failureThreshold: 2}
      volumes: [{name: www, emptyDir: {}}]
`

func (n *node) runWeb(t *testing.T, manifest string) {
	t.Helper()
	waitFor(t, "the service account of Pods", func() error {
		_, err := n.tryKubectl(t, "", "get", "serviceaccount", "default")
		return err
	})
	n.apply(t, manifest)
	n.kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
}

// pods are the names of the Pods of web that are not being deleted.
func (n *node) pods(t *testing.T) []string {
	t.Helper()
	return strings.Fields(n.kubectl(t, "get", "pods", "--selector=app=web", "--field-selector=status.phase=Running",
		"-o", `go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}} {{end}}{{end}}`))
}

func (n *node) testLogs(t *testing.T) {
	t.Helper()
	for _, pod := range n.pods(t) {
		if got := n.kubectl(t, "logs", pod); got != "first\nsecond\n" {
			t.Errorf("logs of %s: %q", pod, got)
		}
	}
}

func (n *node) testExec(t *testing.T) {
	pod := n.pods(t)[0]
	_, err := n.tryKubectl(t, "", "exec", pod, "--", "sh", "-c", "exit 3")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("exit 3: %v", err)
	}
	for _, protocol := range []string{"true", "false"} { // WebSocket, SPDY
		t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", protocol)
		if out, err := n.tryKubectl(t, "whisper", "exec", "-i", pod, "--", "cat"); err != nil || out != "whisper" {
			t.Errorf("cat, WebSocket is %s: %q, %v", protocol, out, err)
		}
	}
}

func (n *node) testCopy(t *testing.T) {
	pod, text := n.pods(t)[0], strings.Repeat("a line\n", 100_000)
	local, back := writeFile(t, filepath.Join(n.dir, "copy", "there"), text), filepath.Join(n.dir, "copy", "back")
	n.kubectl(t, "cp", local, pod+":/tmp/there")
	n.kubectl(t, "cp", pod+":/tmp/there", back)
	if got, err := os.ReadFile(back); err != nil || string(got) != text {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

func (n *node) testPortForward(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), programs.Kubectl.Path(), "--kubeconfig", n.kubeconfig(), "port-forward",
		"deployment/web", ":8080", "--address=127.0.0.1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // kubectl port-forward does not end by itself
		_ = cmd.Wait()
	}()
	first := make([]byte, 200)
	size, err := out.Read(first)
	match := regexp.MustCompile(`127\.0\.0\.1:\d+`).Find(first[:size])
	if err != nil || match == nil {
		t.Fatalf("kubectl port-forward: %q, %v", first[:size], err)
	}
	waitFor(t, "the port answers", func() error {
		res, err := http.Get("http://" + string(match) + "/") //nolint:noctx // patience bounds it
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); err != nil || string(body) != "hello\n" {
			return fmt.Errorf("%q, %w", body, err)
		}
		return nil
	})
}

func (n *node) testEphemeral(t *testing.T) {
	pod := n.pods(t)[0]
	n.kubectl(t, "debug", pod, "--image="+image, "--image-pull-policy=Never", "--target=web", "--container=debugger", "--",
		"sh", "-c", "echo looking; sleep 1000")
	waitFor(t, "the ephemeral container runs", func() error {
		if logs, err := n.tryKubectl(t, "", "logs", pod, "-c", "debugger"); err != nil || logs != "looking\n" {
			return fmt.Errorf("%q, %w", logs, err)
		}
		return nil
	})
}

// restarts are the restarts of the containers of web by Pod.
func (n *node) restarts(t *testing.T) string {
	t.Helper()
	return n.kubectl(t, "get", "pods", "--selector=app=web", "--sort-by=.metadata.name",
		"-o", "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].containerID}{\"\\n\"}{end}")
}

// testProbes removes the file that both probes read: the kubelet restarts the container.
func (n *node) testProbes(t *testing.T) {
	pod := n.pods(t)[0]
	n.kubectl(t, "exec", pod, "--", "sh", "-c", "/bin/busybox rm /www/index.html")
	waitFor(t, "the container is restarted and ready", func() error {
		state := n.kubectl(t, "get", "pod", pod, "-o",
			"jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
		if !regexp.MustCompile(`^[1-9]\d* true$`).MatchString(state) {
			return errors.New(state)
		}
		return nil
	})
}

// testRestart: while byre is stopped, Pods keep running and the kubelet keeps serving.
func (n *node) testRestart(t *testing.T) {
	n.restart(t)
	n.testLogs(t)
	n.scale(t, 3)
}

// restart restarts byre under running Pods, which must not change.
func (n *node) restart(t *testing.T) {
	t.Helper()
	before := n.restarts(t)
	n.host.Type(t, "systemctl stop byre")
	<-time.After(5 * time.Second) // longer than the kubelet's interval of its status
	n.host.Type(t, "systemctl start byre")
	n.awaitRenewals(t)
	for _, name := range n.names {
		n.kubectl(t, "wait", "--for=condition=Ready", "node/"+name, "--timeout=5m")
	}
	if after := n.restarts(t); after != before {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
}

// awaitRenewals waits until each node has renewed its Lease after now.
func (n *node) awaitRenewals(t *testing.T) {
	t.Helper()
	now := time.Now().Add(-time.Second).UTC()
	for _, name := range n.names {
		waitFor(t, "the node renews its Lease", func() error {
			text, err := n.tryKubectl(t, "", "get", "lease", name, "--namespace=kube-node-lease", "-o",
				"jsonpath={.spec.renewTime}")
			if err != nil {
				return err // a kubelet may be ready before it has a Lease
			}
			renewed, err := time.Parse(time.RFC3339Nano, text)
			if err == nil && renewed.Before(now) {
				err = fmt.Errorf("%s renewed at %v", name, renewed)
			}
			return err
		})
	}
}

func (n *node) scale(t *testing.T, replicas int) {
	t.Helper()
	n.kubectl(t, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
	n.kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
}

// testDrain evicts the Pods of the only node, except that of the DaemonSet; they run again after
// the node is uncordoned.
func (n *node) testDrain(t *testing.T) {
	n.kubectl(t, "drain", nodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m")
	if left := n.pods(t); len(left) > 0 {
		t.Errorf("after the drain %q run", left)
	}
	n.kubectl(t, "uncordon", nodeName)
	n.kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
	n.deleteWeb(t)
}

func (n *node) deleteWeb(t *testing.T) {
	t.Helper()
	n.kubectl(t, "delete", "deployment", "web")
	waitFor(t, "all Pods are gone", func() error {
		if left := n.kubectl(t, "get", "pods", "--selector=app!=agent", "-o", "name"); left != "" {
			return errors.New(left)
		}
		return nil
	})
}
