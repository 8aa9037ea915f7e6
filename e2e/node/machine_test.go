package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"byre/e2e/programs"
)

const (
	goarch  = runtime.GOARCH
	cniPath = "/usr/lib/cni"
	socket  = "/run/containerd/containerd.sock"
	// patience bounds each wait; a loaded machine is slow.
	patience = 5 * time.Minute
)

// waitFor calls try until it returns nil.
func waitFor(t *testing.T, what string, try func() error) {
	t.Helper()
	timeout := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-timeout:
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a program whose log is shown if the test fails.
func start(t *testing.T, dir, program string, args ...string) *exec.Cmd {
	t.Helper()
	logName := filepath.Join(dir, filepath.Base(program)+".log")
	log, err := os.Create(logName)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		done := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer done.Stop()
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
		if text, err := os.ReadFile(logName); err == nil && t.Failed() {
			const most = 8 << 10
			t.Logf("%s:\n%s", logName, text[max(0, len(text)-most):])
		}
	})
	return cmd
}

// containerdConfig: the scores of the out-of-memory killer may not be lowered in some
// virtual machines and containers.
const containerdConfig = `
version = 2
root = "DIR/containerd"
state = "/run/containerd"
[grpc]
  address = "` + socket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + image + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniPath + `"
    conf_dir = "/etc/cni/net.d"
`

const networkConfig = `{
  "cniVersion": "0.4.0", "name": "node", "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podNetwork + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}`

// startContainerd starts containerd with the image.
func startContainerd(t *testing.T, dir string) {
	t.Helper()
	writeFile(t, "/etc/cni/net.d/10-node.conflist", networkConfig)
	config := writeFile(t, filepath.Join(dir, "containerd.toml"), strings.ReplaceAll(containerdConfig, "DIR", dir))
	start(t, dir, "containerd", "--config", config)
	archive := writeImage(t)
	waitFor(t, "containerd takes the image", func() error {
		out, err := exec.CommandContext(t.Context(), "ctr", "--address", socket, "--namespace", "k8s.io", "images", "import",
			archive).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// kubeletConfig is what the configuration of the page lacks: what a kubelet needs in a namespace,
// and shorter intervals.
const kubeletConfig = `
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: 10Mi, nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
resolvConf: ""
`

// installKubelet installs the kubelet.
func (n *node) installKubelet(t *testing.T) {
	t.Helper()
	n.host.Args["kubelet"] = []string{"--node-ip=" + nodeAddress}
	if err := os.Symlink(programs.Kubelet.Path(), n.host.Path("usr/bin/kubelet")); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs kubectl as the administrator and returns what it prints.
func (n *node) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := n.tryKubectl(t, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (n *node) tryKubectl(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Kubectl.Path(),
		append([]string{"--kubeconfig", n.kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, &errOut, &out)
	}
	return out.String(), nil
}
