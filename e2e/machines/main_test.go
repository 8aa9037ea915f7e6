package machines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"byre/e2e/programs"
)

// wanted has the folder of keepalived's package, inside says that the process is in the namespaces.
const (
	wanted = "E2E_MACHINES"
	inside = "E2E_MACHINES_INSIDE"
)

// The addresses, of a network for benchmarks (RFC 2544) that leads nowhere: those of the machines, the one that
// moves, and that of the clients and the bucket.
const (
	firstAddress  = "198.18.0.1"
	secondAddress = "198.18.0.2"
	movingAddress = "198.18.0.100"
	clientAddress = "198.18.0.254"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(wanted) == "":
		fmt.Println("make machines-test runs the test")
		os.Exit(m.Run()) // which skips
	case os.Getenv(inside) != "":
		if err := prepareNamespaces(); err != nil {
			fmt.Fprintln(os.Stderr, "machines:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	os.Exit(runInside())
}

// runInside runs this program again in namespaces of its own.
func runInside() int {
	if err := programs.Build(context.Background(), programs.Byre, programs.Kubectl, programs.Kwok); err != nil {
		fmt.Fprintln(os.Stderr, "machines:", err)
		return 1
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(1, exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "machines: this needs root and namespaces:", err)
		return 1
	}
	return 0
}

// prepareNamespaces makes a switch, to which the clients and both machines are plugged.
func prepareNamespaces() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("/run: %w", err)
	}
	commands := []string{
		"link set lo up",
		"link add switch type bridge",
		"address add " + clientAddress + "/24 dev switch",
		"link set switch up",
	}
	for name, address := range map[string]string{"first": firstAddress, "second": secondAddress} {
		commands = append(commands,
			"netns add "+name,
			"link add "+name+" type veth peer name eth0 netns "+name,
			"link set "+name+" master switch up",
			"-n "+name+" link set lo up",
			"-n "+name+" address add "+address+"/24 dev eth0",
			"-n "+name+" link set eth0 up",
		)
	}
	for _, command := range commands {
		if err := ip(command); err != nil {
			return err
		}
	}
	return nil
}

// ip runs a command of iproute2.
func ip(command string) error {
	if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", command, err, out)
	}
	return nil
}
