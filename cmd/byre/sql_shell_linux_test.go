package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"byre/sqlstore/storetest"
)

// typist types on the terminal of a program.
type typist struct {
	*testing.T
	terminal *os.File
	cmd      *exec.Cmd
	shown    string // since what was expected last
}

// startShell starts a shell on a terminal of its own.
func startShell(t *testing.T, state string, args ...string) *typist {
	t.Helper()
	master, slave := openTerminal(t)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), executable, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.Env = append(os.Environ(), asProgram+"=1", "TERM=xterm", "PAGER=", "XDG_STATE_HOME="+state)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	// os.File.Fd, which openTerminal calls, makes a file that has no deadlines.
	fd, err := unix.Dup(int(master.Fd()))
	if err = errors.Join(err, master.Close(), unix.SetNonblock(fd, true)); err != nil {
		t.Fatal(err)
	}
	terminal := os.NewFile(uintptr(fd), "terminal")
	t.Cleanup(func() { _ = terminal.Close() }) // nothing was written to a file
	if err := errors.Join(cmd.Start(), slave.Close(), terminal.SetDeadline(time.Now().Add(time.Minute))); err != nil {
		t.Fatal(err)
	}
	return &typist{T: t, terminal: terminal, cmd: cmd}
}

// isCooked reports whether the terminal turns Ctrl-C into a signal: no line is read.
func (t *typist) isCooked() (cooked bool) {
	t.Helper()
	conn, err := t.terminal.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) {
			mode, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
			cooked = err == nil && mode.Lflag&unix.ISIG != 0
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return cooked
}

// types sends a text, and waits for what the terminal is to show then.
func (t *typist) types(text, want string) {
	t.Helper()
	if _, err := t.terminal.WriteString(text); err != nil {
		t.Fatal(err)
	}
	t.expect(want)
}

// asks types what the shell answers and then prompts anew. Before that prompt the terminal is not in raw mode yet: what
// is typed there is echoed twice, and a Ctrl-C there drops it.
func (t *typist) asks(text, want string) {
	t.Helper()
	t.types(text, want)
	t.expect("byre> ")
}

// pasteMode removes what a terminal does not show.
var pasteMode = strings.NewReplacer("\r", "", "\x1b[?2004h", "", "\x1b[?2004l", "")

// expect waits until the terminal shows a text.
func (t *typist) expect(want string) {
	t.Helper()
	for chunk := make([]byte, 4096); !strings.Contains(t.shown, want); {
		n, err := t.terminal.Read(chunk)
		t.shown = pasteMode.Replace(t.shown + string(chunk[:n]))
		if err != nil {
			t.Fatalf("%v: the terminal shows %q, want %q", err, t.shown, want)
		}
	}
	_, t.shown, _ = strings.Cut(t.shown, want)
}

// end types Ctrl-D at the prompt, and waits for the end of the shell.
func (t *typist) end() {
	t.Helper()
	if _, err := t.terminal.WriteString("\x04"); err != nil {
		t.Fatal(err)
	}
	for chunk := make([]byte, 4096); ; {
		if _, err := t.terminal.Read(chunk); err != nil {
			break // the shell has closed the terminal
		}
	}
	if err := t.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestSQLShell_AnswersOnATerminal(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts byre")
	}
	h, state := newChronicle(t), t.TempDir()
	kubeconfig := filepath.Join(h.dir, "admin.kubeconfig")
	shell := startShell(t, state, "sql", "--kubeconfig", kubeconfig)
	shell.expect("byre> ")
	shell.types("SELECT name, ';' AS mark FROM namespaces\r", " ...> ")
	shell.types("WHERE name = 'default'; -- all\r", "NAME      MARK\ndefault   ;\n")
	shell.expect(" ...> ") // the comment
	shell.asks("\x03", "^C\n")
	shell.asks("SELECT nam FROM pods;\r", "Error: no such column: nam, at line 1, column 8\n")
	shell.asks("SELECT 1 AS a; SELECT 2 AS b;\r", "A\n1\nB\n2\n")
	shell.types("SELECT x\r", " ...> ")
	shell.asks("y\x03", "^C\n")
	shell.asks(".output csv\r.columns pods\r", "\nrestarts,integer,status.containerStatuses,")
	shell.asks(".tables\r", "\ndeployments.apps,apps,v1,")
	shell.asks(".columns nope\r", "Error: there is no table \"nope\"")
	shell.asks(".output xml\r", "Error: .output takes table, csv, json, ndjson or yaml, not \"xml\"")
	shell.asks(".nope\r", "Error: \".nope\" is no command of the shell: .help lists them")
	shell.asks(".he\t\r", "Ctrl-C drops the statement")
	shell.types("SELECT 1 FROM pods WHERE owner_\t", "owner_kind  owner_name  owner_uid\n")
	shell.asks("\x03", "^C\n")
	shell.asks("sele\t count(*) AS n FROM namesp\tWHERE pha\t= 'none';\r", "\nn\n0\n")

	shell.types("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r;\r", "FROM r;\n")
	storetest.Eventually(t, "the query runs", shell.isCooked)
	shell.asks("\x03", "Error: the query was canceled\n")
	shell.asks("SELECT count(*) AS n FROM \"deployments.a\t;\r", "\nn\n0\n")
	shell.end()

	file := filepath.Join(state, "byre", "sql_history")
	info, err := os.Stat(file)
	h.must(err)
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("the history has mode %o", mode)
	}
	text, err := os.ReadFile(file)
	h.must(err)
	if want := "SELECT count(*) AS n FROM \"deployments.apps\" ;\n"; !strings.HasSuffix(string(text), want) ||
		!strings.Contains(string(text), "\nselect count(*) AS n FROM namespaces WHERE phase = 'none';\n") {
		t.Errorf("the history is %q", text)
	}
	again := startShell(t, state, "sql", "-o", "csv", "--kubeconfig", kubeconfig)
	again.expect("byre> ")
	again.asks("\x1b[A\r", "\nn\n0\n")
	again.end()
	past := startShell(t, state, "sql", "-o", "csv", "--at", "1", "--kubeconfig", kubeconfig)
	past.expect("byre> ")
	past.asks("SELECT count(*) AS n FROM namespaces WHERE name = 'default';\r", "\nn\n0\n")
	past.end()
}
