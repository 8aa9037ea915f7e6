package standin_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"byre/apiserver/envtest/standin"
)

// many is more than a block, so that Take reserves several.
const many = 250

// childVariable makes the test binary take ports, print them, and wait for the end of its input.
const childVariable = "FREEPORT_TEST_CHILD"

// takePorts takes ports, prints them, and waits for the end of its input.
func takePorts() int {
	for range many {
		port, err := standin.TakePort()
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(port)
	}
	fmt.Println("end")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

func TestTake_NoPortTwice(t *testing.T) {
	seen := map[string]string{}
	for _, child := range []string{"first process", "second process"} {
		for _, port := range portsOfChild(t) {
			if other := seen[port]; other != "" {
				t.Fatalf("port %s is of the %s and of the %s", port, other, child)
			}
			seen[port] = child
		}
	}
	for range many {
		port, err := standin.TakePort()
		if err != nil {
			t.Fatal(err)
		}
		if other := seen[port]; other != "" {
			t.Fatalf("port %s is of the %s and of this process", port, other)
		}
		seen[port] = "this process"
	}
	if want := 3 * many; len(seen) != want {
		t.Errorf("%d ports, want %d", len(seen), want)
	}
}

// portsOfChild are the ports that another process took, which runs until the test ends.
func portsOfChild(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var ports []string
	for {
		var line string
		if _, err := fmt.Fscanln(out, &line); err != nil {
			t.Fatalf("after %d ports: %v", len(ports), err)
		}
		if line == "end" {
			return ports
		}
		if strings.Trim(line, "0123456789") != "" {
			t.Fatalf("not a port: %q", line)
		}
		ports = append(ports, line)
	}
}

func TestTake_PassesOverPortsInUse(t *testing.T) {
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	following := fmt.Sprint(number + 1)
	if inUse, err := net.Listen("tcp", "127.0.0.1:"+following); err == nil { // otherwise another program uses it
		defer inUse.Close()
	}
	if port, err = standin.TakePort(); err != nil || port == following {
		t.Errorf("port %s, %v: want one that is not in use", port, err)
	}
}
