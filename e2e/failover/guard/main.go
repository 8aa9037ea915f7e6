// Command guard runs a program until standard input ends, and then ends each process that the
// program has started, however deep and in whatever process group. Failover managers start
// PostgreSQL so that it survives them; the guard is the parent of whatever has lost its own (see
// PR_SET_CHILD_SUBREAPER in prctl(2)).
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"byre/e2e/failover/processes"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		os.Exit(1)
	}
}

const setChildSubreaper = 36

func run(program string, args []string) error {
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); err != 0 {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	released := make(chan struct{})
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(released)
	}()
	for {
		select {
		case <-ended:
			reap()
		case <-released:
			return end()
		}
	}
}

// reap waits for the children that have ended.
func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && err != syscall.EINTR {
			return
		}
	}
}

// grace is how long PostgreSQL has for an immediate shutdown, which removes its shared memory.
const grace = 10 * time.Second

// end ends all processes, and returns when none is left.
func end() error {
	deadline := time.Now().Add(grace)
	for {
		all, err := processes.Descendants(os.Getpid())
		if err != nil || len(all) == 0 {
			return err
		}
		for _, p := range all {
			signals := []syscall.Signal{syscall.SIGKILL}
			if p.Name == "postgres" && time.Now().Before(deadline) {
				signals = []syscall.Signal{syscall.SIGQUIT, syscall.SIGCONT}
			}
			for _, s := range signals {
				if err := processes.Signal([]processes.Process{p}, s); err != nil {
					return err
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
		reap()
	}
}
