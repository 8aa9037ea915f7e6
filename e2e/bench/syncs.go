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

// checkpointing is locked while this process copies a log back.
var checkpointing sync.Mutex

// syncCounter counts a process's calls of fsync and fdatasync with strace.
type syncCounter struct {
	cmd  *exec.Cmd
	file string
}

// countSyncs begins to count. It counts nothing without strace or without the right to use
// it.
func countSyncs(pid int, file string) *syncCounter {
	c := &syncCounter{file: file,
		cmd: exec.Command("strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", file, "-p",
			strconv.Itoa(pid))}
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
	// Its exit status says that it was interrupted.
	_ = c.cmd.Wait()
	return err
}

// count ends the counting and returns the number of calls; it is negative if nothing was
// counted.
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
	// strace prints a call that another thread's call interrupts on two lines; the second
	// one has "resumed".
	return int64(strings.Count(string(text), "sync(") + strings.Count(string(text), "sync_file_range(")),
		errors.Join(os.Remove(c.file))
}
