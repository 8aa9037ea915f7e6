package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asServer makes the test binary call Raise, as a server does.
const asServer = "TIMERSLACK_TEST_AS_SERVER"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asServer) == "":
		os.Exit(m.Run())
	case os.Args[1] == "work":
		work()
	default:
		Raise()
		report()
	}
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
func TestRaise_SetsTheSlackOfAllThreads(t *testing.T) {
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

// BenchmarkRaise reports the processor time of a second of a program that has a few hundred small
// tasks to do in it, with the default slack and with that of a server.
func BenchmarkRaise(b *testing.B) {
	for _, before := range []time.Duration{50 * time.Microsecond, slack} {
		b.Run(before.String(), func(b *testing.B) {
			runtime.LockOSThread()
			if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before.Nanoseconds()), 0, 0, 0); err != nil {
				b.Fatal(err)
			}
			var used time.Duration
			for b.Loop() {
				cmd := exec.CommandContext(b.Context(), os.Args[0], "work")
				cmd.Env = append(os.Environ(), asServer+"=1")
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
				used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			}
			b.ReportMetric(float64(used.Milliseconds())/float64(b.N)/workTime.Seconds(), "cpu-ms/s")
		})
	}
}

const workTime = 2 * time.Second

// work passes small tasks from goroutine to goroutine, with pauses between them.
func work() {
	tasks, done := make(chan int), make(chan int)
	go func() {
		for n := range tasks {
			done <- fib(n)
		}
	}()
	for end := time.Now().Add(workTime); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		tasks <- 27
		<-done
	}
}

func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}
