package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"byre/e2e/namespaces"
	"byre/e2e/programs"
)

// wanted asks for the test, inside says that the process is in the namespaces.
const (
	wanted = "E2E_NODE"
	inside = "E2E_NODE_INSIDE"
)

// noContainers is the exit status of a process that cannot prepare its namespaces.
const noContainers = 77

// errNoContainers means that this machine cannot run containers.
var errNoContainers = errors.New("this machine can't run containers")

var (
	awaitRenewal = flag.Bool("renewal", false, "wait until the kubelet has renewed a projected token: ten minutes")
	hollow       = flag.Bool("hollow", false, "run upstream's hollow kubelets, also where the machine can run containers")
)

func TestMain(m *testing.M) {
	flag.Parse()
	switch {
	case os.Getenv(wanted) == "":
		fmt.Println("make node-test runs a real node")
		os.Exit(m.Run()) // which skips
	case os.Getenv(inside) != "":
		if err := prepareNamespaces(); err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			os.Exit(noContainers)
		}
		os.Exit(m.Run())
	case *hollow:
		os.Exit(runHollow(m))
	}
	status, err := runInside()
	if errors.Is(err, errNoContainers) {
		fmt.Fprintf(os.Stderr, "node: %v: upstream's hollow kubelets run instead\n", err)
		os.Exit(runHollow(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

// runHollow runs the test that needs no containers.
func runHollow(m *testing.M) (status int) {
	*hollow = true
	if err := programs.Build(context.Background(), programs.Byre, programs.Kubectl, programs.Kubemark); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	return m.Run()
}

// system are the programs of the system that a node needs, and their packages in Debian.
var system = map[string]string{
	"containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2",
	busyboxPath: "busybox-static", cniPath + "/bridge": "containernetworking-plugins",
}

// runInside runs this program again in namespaces of its own.
func runInside() (status int, err error) {
	if os.Geteuid() != 0 {
		return 0, fmt.Errorf("%w without root: they need namespaces and cgroups", errNoContainers)
	}
	for program, pkg := range system {
		if _, err := exec.LookPath(program); err != nil {
			return 0, fmt.Errorf("%w: there is no %s: install the package %s", errNoContainers, program, pkg)
		}
	}
	if err := programs.Build(context.Background(), programs.Byre, programs.Kubectl, programs.Kubelet); err != nil {
		return 0, err
	}
	switch status, err := namespaces.Run(inside); {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errNoContainers, err)
	case status == noContainers:
		return 0, errNoContainers // the process has said why
	default:
		return status, nil
	}
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
	if err := namespaces.Prepare("/run", "/var/lib/kubelet", "/var/lib/cni", "/var/log", "/etc/cni"); err != nil {
		return err
	}
	if err := unix.Mount("", "/var/lib/kubelet", "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("/var/lib/kubelet: %w", err)
	}
	return namespaces.IP(
		"link set lo up",
		"link add node0 type bridge", "addr add "+nodeAddress+"/24 dev node0", "link set node0 up",
		"route add default dev node0",
	)
}
