package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// asServer makes the test binary call Raise, as a server does.
const asServer = "TIMERSLACK_TEST_AS_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		Raise()
		report()
		return
	}
	os.Exit(m.Run())
}

// report writes the process's ID, its arguments, and the slack of a new thread.
func report() {
	runtime.LockOSThread() // the goroutine runs on another thread
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		fmt.Println(os.Getpid(), os.Args[1:], current())
	}()
	<-done
}

// After Raise all threads have the slack. The process is the one that was started, with its
// arguments. A greater slack stays.
func TestRaise(t *testing.T) {
	for before, want := range map[uintptr]string{50_000: "1ms", 1_000_000: "1ms", 3_000_000: "3ms"} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			runtime.LockOSThread() // and never unlocks, because the slack of the thread changes
			if err := unix.Prctl(unix.PR_SET_TIMERSLACK, before, 0, 0, 0); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "serve", "a b")
			cmd.Env = append(os.Environ(), asServer+"=1")
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintln(cmd.Process.Pid, []string{"serve", "a b"}, want); string(out) != want {
				t.Errorf("it wrote %q, want %q", out, want)
			}
		})
	}
}
