package machines

import (
	"context"
	"fmt"
	"os"
	"testing"

	"byre/e2e/namespaces"
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
	status, err := namespaces.Run(inside)
	if err != nil {
		fmt.Fprintln(os.Stderr, "machines: this needs root and namespaces:", err)
		return 1
	}
	return status
}

// prepareNamespaces makes a switch, to which the clients and both machines are plugged.
func prepareNamespaces() error {
	if err := namespaces.Prepare("/run"); err != nil {
		return err
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
	return namespaces.IP(commands...)
}
