// Package processes finds the processes that a process has started, by /proc of Linux.
package processes

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Process is a process at a moment.
type Process struct {
	PID    int
	parent int
	// Name is that of the program's file, such as "postgres"; Title is its command line, which
	// PostgreSQL's processes replace by what they do.
	Name, Title string
}

// Descendants returns the processes that a process has started, those that these have started, and so
// on. It leaves out those that have ended and that nobody has waited for.
func Descendants(pid int) ([]Process, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]Process{}
	for _, path := range paths {
		if p, ok := read(path); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	all := children[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].PID]...)
	}
	return all, nil
}

// read reads a file stat; not ok means that the process has ended.
func read(path string) (p Process, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return p, false
	}
	// "PID (NAME) STATE PARENT ..."; the name may have any characters.
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if begin < 0 || end < begin {
		return p, false
	}
	p.Name = string(text[begin+1 : end])
	var state string
	if _, err := fmt.Sscan(string(text[end+1:]), &state, &p.parent); err != nil || state == "Z" || state == "X" {
		return p, false
	}
	if p.PID, err = strconv.Atoi(filepath.Base(filepath.Dir(path))); err != nil {
		return p, false
	}
	title, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
	p.Title = string(bytes.ReplaceAll(title, []byte{0}, []byte{' '}))
	return p, err == nil
}

// Signal sends a signal to processes. One that has ended meanwhile is no error.
func Signal(all []Process, s syscall.Signal) error {
	for _, p := range all {
		if err := syscall.Kill(p.PID, s); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	return nil
}
