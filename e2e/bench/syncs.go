package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// checkpointing is held while this process copies a log back.
var checkpointing sync.Mutex

// syncCounter counts the calls of fsync and fdatasync that a process makes, by strace.
type syncCounter struct {
	cmd  *exec.Cmd
	file string
}

// countSyncs begins to count. Without strace, or the right to use it, nothing is counted.
func countSyncs(pid int, file string) *syncCounter {
	c := &syncCounter{file: file, cmd: exec.Command("strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", file, "-p", strconv.Itoa(pid))}
	if err := c.cmd.Start(); err != nil {
		c.cmd = nil
	}
	return c
}

func (c *syncCounter) stop() error {
	if c.cmd == nil {
		return nil
	}
	err := c.cmd.Process.Signal(syscall.SIGINT)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	// It says by its exit status that it was interrupted.
	_ = c.cmd.Wait()
	return err
}

// count ends the counting; it is negative where nothing was counted.
func (c *syncCounter) count() (int64, error) {
	if c.cmd == nil {
		return -1, nil
	}
	if err := c.stop(); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(c.file)
	if err != nil {
		return -1, nil
	}
	// A call that is interrupted by another thread's has a second line, "resumed".
	return int64(strings.Count(string(text), "sync(") + strings.Count(string(text), "sync_file_range(")), errors.Join(os.Remove(c.file))
}
