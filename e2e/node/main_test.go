package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"byre/e2e/programs"
)

// wanted asks for the test, inside says that the process is in the namespaces.
const (
	wanted = "E2E_NODE"
	inside = "E2E_NODE_INSIDE"
)

var awaitRenewal = flag.Bool("renewal", false, "wait until the kubelet has renewed a projected token: ten minutes")

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(wanted) == "" {
		fmt.Println("make node-test runs a real node")
		os.Exit(m.Run()) // which skips
	}
	if os.Getenv(inside) != "" {
		if err := prepareNamespaces(); err != nil {
			fmt.Fprintln(os.Stderr, "node: this machine can't run containers:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	status, err := runInside()
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

// system are the programs of the system that a node needs, and their packages in Debian.
var system = map[string]string{
	"containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2",
	busyboxPath: "busybox-static", cniPath + "/bridge": "containernetworking-plugins",
}

// runInside runs this program again in namespaces of its own.
func runInside() (status int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("run it as root: containers need namespaces and cgroups")
	}
	for program, pkg := range system {
		if _, err := exec.LookPath(program); err != nil {
			return 0, fmt.Errorf("there is no %s: install the package %s", program, pkg)
		}
	}
	if err := programs.Build(context.Background(), programs.Byre, programs.Kubectl, programs.Kubelet); err != nil {
		return 0, err
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// nodeAddress is that of the node, in a network for documentation (RFC 5737) that leads
// nowhere; podNetwork is that of the Pods.
const (
	nodeAddress = "192.0.2.10"
	podNetwork  = "198.51.100.0/24"
)

// prepareNamespaces mounts private directories where the kubelet and containerd write, and
// creates a network.
func prepareNamespaces() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib/kubelet", "/var/lib/cni", "/var/log", "/etc/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if err := unix.Mount("", "/var/lib/kubelet", "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("/var/lib/kubelet: %w", err)
	}
	for _, command := range []string{
		"link set lo up",
		"link add node0 type bridge", "addr add " + nodeAddress + "/24 dev node0", "link set node0 up",
		"route add default dev node0",
	} {
		if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", command, err, out)
		}
	}
	return nil
}
