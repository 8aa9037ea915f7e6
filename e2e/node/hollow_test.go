package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"byre/apiserver/envtest/standin"
	"byre/e2e/operator"
	"byre/e2e/programs"
)

// TestNode_RunsHollowPods: upstream's hollow kubelets join byre as real ones do and take Pods.
// A hollow kubelet is the kubelet before a fake of a container runtime, of mounts and of probes:
// no process runs in its Pods, and its server has no TLS, so that byre cannot connect to it.
func TestNode_RunsHollowPods(t *testing.T) {
	if !*hollow {
		t.Skip("a real node is tested, or none")
	}
	n := startServer(t, "hollow-1", "hollow-2")
	n.host.EditScript(t, "join.sh", operator.WithoutSystemctl)
	n.host.Type(t, n.steps[2])
	for _, name := range n.names {
		n.startHollowKubelet(t, name)
	}
	for _, name := range n.names {
		n.awaitHollowNode(t, name)
	}
	// The fake of the runtime has no image before a kubelet has pulled it.
	n.runWeb(t, strings.ReplaceAll(web, "imagePullPolicy: Never", "imagePullPolicy: IfNotPresent"))
	n.scale(t, 4)
	// The fake of the probes reports a container as ready before it runs.
	waitFor(t, "the Pods run", func() error {
		if running := len(n.pods(t)); running != 4 {
			return fmt.Errorf("%d run", running)
		}
		return nil
	})
	for _, step := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Leases are renewed", n.awaitRenewals},
		{"restart of byre under running Pods", func(t *testing.T) { n.restart(t); n.scale(t, 6) }},
		{"a deleted Pod is replaced", n.testReplacement},
		{"drain", n.testHollowDrain},
	} {
		if !t.Run(step.name, step.test) {
			return
		}
	}
}

// startHollowKubelet starts a hollow kubelet that has nothing but a bootstrap token.
func (n *node) startHollowKubelet(t *testing.T, name string) {
	t.Helper()
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(n.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// It leaves its directory and the socket of its fake runtime in /tmp, and logs the names. A
	// cleanup that is registered before that of start runs after the process has ended.
	t.Cleanup(func() {
		log, _ := os.ReadFile(filepath.Join(dir, "kubemark.log")) // absent if it was not started
		for _, left := range regexp.MustCompile(`/tmp/(kubelet_remote_\d+\.sock|hollow-kubelet\.\d+)`).FindAll(log, -1) {
			if err := os.RemoveAll(string(left)); err != nil {
				t.Error(err)
			}
		}
	})
	start(t, dir, programs.Kubemark.Path(), "--morph=kubelet", "--name", name, "--bootstrap-kubeconfig", n.bootstrap(),
		"--kubeconfig", filepath.Join(dir, "kubeconfig"), "--cert-dir", filepath.Join(dir, "pki"),
		"--kubelet-port", port, "--kubelet-read-only-port=0", "--use-host-image-service=false", "-v=3")
}

// awaitHollowNode waits until a node is ready, and checks that it joined by a certificate of its
// own.
func (n *node) awaitHollowNode(t *testing.T, name string) {
	t.Helper()
	waitFor(t, name+" joins", func() error {
		_, err := n.tryKubectl(t, "", "get", "node", name)
		return err
	})
	n.kubectl(t, "wait", "--for=condition=Ready", "node/"+name, "--timeout=5m")
	who := n.kubectl(t, "--kubeconfig", filepath.Join(n.dir, name, "kubeconfig"), "auth", "whoami", "-o",
		"jsonpath={.status.userInfo.username} {.status.userInfo.groups}")
	if want := "system:node:" + name + ` ["system:nodes","system:authenticated"]`; who != want {
		t.Errorf("%s is %s, not %s", name, who, want)
	}
	issued := n.kubectl(t, "get", "csr", "--field-selector=spec.signerName=kubernetes.io/kube-apiserver-client-kubelet",
		"-o", `jsonpath={range .items[*]}{.spec.username} {.status.conditions[*].type};{end}`)
	if got, want := strings.Count(issued, "system:bootstrap:abcdef Approved;"), len(n.names); got < 1 || got > want {
		t.Errorf("the certificate signing requests are %q", issued)
	}
}

// places returns the node of each running Pod of web.
func (n *node) places(t *testing.T) []string {
	t.Helper()
	return strings.Fields(n.kubectl(t, "get", "pods", "--selector=app=web", "--field-selector=status.phase=Running",
		"-o", `go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.spec.nodeName}} {{end}}{{end}}`))
}

// testReplacement deletes a Pod: its kubelet ends it, and a Deployment makes another.
func (n *node) testReplacement(t *testing.T) {
	pod := n.pods(t)[0]
	n.kubectl(t, "delete", "pod", pod, "--timeout=5m") // which waits until it is gone
	n.kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
}

// testHollowDrain evicts the Pods of one node, which then run on the other.
func (n *node) testHollowDrain(t *testing.T) {
	first, second := n.names[0], n.names[1]
	n.kubectl(t, "drain", first, "--delete-emptydir-data", "--timeout=5m")
	n.kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
	waitFor(t, "all Pods run on "+second, func() error {
		if places := strings.Join(n.places(t), " "); places != strings.TrimSpace(strings.Repeat(second+" ", 6)) {
			return fmt.Errorf("they run on %q", places)
		}
		return nil
	})
	n.kubectl(t, "uncordon", first)
	n.scale(t, 12)
	waitFor(t, "new Pods run on "+first, func() error {
		if places := strings.Join(n.places(t), " "); !strings.Contains(places, first) {
			return errors.New(places)
		}
		return nil
	})
	n.deleteWeb(t)
}
