package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// patience bounds how long a program takes to start or to stop. It is long, because a loaded
// machine is slow: only a failing test reaches it.
const patience = 5 * time.Minute

// Process is a running program.
type Process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the program has ended and been waited for
	err  error         // how it ended; read after done
}

func startProcess(dir, name, path string, args ...string) (*Process, error) {
	return startProcessWith(nil, dir, name, path, args...)
}

// startProcessWith starts a program with further variables in its environment.
func startProcessWith(env []string, dir, name, path string, args ...string) (*Process, error) {
	p := &Process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// The kernel kills the program when the process of the test ends.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Signal sends a signal to the program.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Done is closed once the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop asks the program to end and waits for it: up to 5 minutes, then it is killed.
// The error is how it ended; nil is exit status 0.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.name, patience)
	}
}

// Kill ends the program at once, as a power failure would, and waits for its end.
func (p *Process) Kill() {
	// An error means that the program has ended by itself already.
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

// State says in words whether the program runs, or how it ended.
func (p *Process) State() string {
	select {
	case <-p.done:
		return "ended by itself: " + p.cmd.ProcessState.String()
	default:
		return "runs"
	}
}

// Log is what the program logged, and what was logged before it by others with the same name and
// directory.
func (p *Process) Log() string {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(log)
}

// LogTail is the end of Log: up to 16 KiB, which hold the start of a panic too.
func (p *Process) LogTail() string {
	const most = 16 << 10
	log := p.Log()
	return log[max(0, len(log)-most):]
}

// Dump ends the program and returns the stacks of its goroutines, as far as Go programs
// write them.
func (p *Process) Dump() string {
	before, _ := os.ReadFile(p.log) // An unreadable log is one without stacks.
	if err := p.Signal(syscall.SIGQUIT); err != nil {
		return err.Error()
	}
	select {
	case <-p.done:
	case <-time.After(time.Minute):
	}
	after, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(after[min(len(before), len(after)):])
}

// await calls ready until it succeeds, the program ends, or ctx does.
func (p *Process) await(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = ready(ctx); last == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %w\n%s", p.name, p.err, p.LogTail())
		case <-ctx.Done():
			tail := p.LogTail()
			return fmt.Errorf("%s is not ready: %w; %w\n%s\n%s", p.name, ctx.Err(), last, tail, p.Dump())
		case <-tick.C:
		}
	}
}
