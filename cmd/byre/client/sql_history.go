package client

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxHistory is how many lines a shell remembers, and the file of its history has at least.
const maxHistory = 1000

// sqlHistory implements term.History: the lines of all shells of a user, in a file that only this user reads. One goroutine
// uses it.
type sqlHistory struct {
	lines []string // the last one is the newest
	file  *os.File // nil if lines are not kept
}

// newSQLHistory reads the history. If it can't be kept, it says so on errOut.
func newSQLHistory(errOut io.Writer) *sqlHistory {
	h := &sqlHistory{}
	if err := h.open(); err != nil {
		fmt.Fprintln(errOut, "Warning: the history of this shell is not kept:", err)
	}
	return h
}

func (h *sqlHistory) open() error {
	dir := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // the specification has such a value ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return err
		}
		dir = filepath.Join(home, ".local", "state")
	}
	dir = filepath.Join(dir, "byre")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "sql_history"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Chmod(0o600), h.read(file)); err != nil {
		return errors.Join(err, file.Close())
	}
	h.file = file
	return nil
}

// read reads the lines of the file. It removes old ones from a file that has grown.
func (h *sqlHistory) read(file *os.File) error {
	text, err := io.ReadAll(file)
	all := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	h.lines = all[max(0, len(all)-maxHistory):]
	if err == nil && len(all) >= 2*maxHistory {
		if err = file.Truncate(0); err == nil {
			_, err = file.WriteString(strings.Join(h.lines, "\n") + "\n")
		}
	}
	return err
}

// close ends the history.
func (h *sqlHistory) close() {
	if h.file != nil {
		_ = h.file.Close() // each line was written
	}
}

// Add implements term.History.
func (h *sqlHistory) Add(line string) {
	if strings.TrimSpace(line) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
	if h.file != nil {
		_, _ = h.file.WriteString(line + "\n") // the shell goes on when the disk is full
	}
}

// Len implements term.History.
func (h *sqlHistory) Len() int { return len(h.lines) }

// At implements term.History.
func (h *sqlHistory) At(i int) string { return h.lines[len(h.lines)-1-i] }
