package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"byre/apiserver/query"
)

// sqlShell reads statements from a terminal, and prints their answers.
type sqlShell struct {
	cmd      *cobra.Command
	client   *sqlClient
	output   *Output
	query    func(statement string) *query.Query
	history  *sqlHistory
	names    *sqlNames
	terminal *term.Terminal
	keys     *interruptReader
	// fd is the terminal, and cooked its state before the shell. It is in raw mode, but while a query runs.
	fd     int
	cooked *term.State
	// statement is what was read of a statement that does not end yet.
	statement string
}

const shellHelp = `A statement ends with a semicolon; it may have several lines.
.tables            list the tables
.columns TABLE     list the columns of a table
.output FORMAT     print answers as table, csv, json, ndjson or yaml
.quit              end the shell, as Ctrl-D does
Tab completes keywords, tables, and the columns of the tables that the statement names.
Ctrl-C drops the statement, and cancels a query.
`

// errInterrupted says that the user has pressed Ctrl-C.
var errInterrupted = errors.New("interrupted")

// runSQLShell runs a shell, which asks the queries of newQuery, on the terminal of the process until its user ends it.
func runSQLShell(cmd *cobra.Command, client *sqlClient, output *Output, newQuery func(statement string) *query.Query) (err error) {
	s := &sqlShell{
		cmd: cmd, client: client, output: output, query: newQuery,
		history: newSQLHistory(cmd.ErrOrStderr()), names: &sqlNames{client: client},
	}
	defer s.history.close()
	s.reset()
	s.fd = int(os.Stdin.Fd())
	signal.Ignore(os.Interrupt) // Ctrl-C is a key; ask listens to the signal
	if s.cooked, err = term.MakeRaw(s.fd); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, term.Restore(s.fd, s.cooked)) }()
	ctx := cmd.Context()
	// Nothing interrupts the read of a terminal, so SIGTERM ends the process here.
	defer context.AfterFunc(ctx, func() {
		_ = term.Restore(s.fd, s.cooked)
		os.Exit(1) //nolint:revive // nothing deferred is waited for
	})()
	fmt.Fprintln(s.terminal, "SQL on", strings.TrimSuffix(client.url, query.Path)+": .help says how, Ctrl-D ends.")
	for {
		line, err := s.readLine()
		switch {
		case errors.Is(err, errInterrupted):
			s.statement = ""
			s.reset()
			fmt.Fprintln(s.terminal, "^C")
		case errors.Is(err, io.EOF):
			fmt.Fprintln(s.terminal)
			return nil
		case err != nil:
			return err
		default:
			if s.take(ctx, line) {
				return nil
			}
		}
	}
}

// reset makes a terminal without what was typed.
func (s *sqlShell) reset() {
	s.keys = &interruptReader{Reader: os.Stdin}
	s.terminal = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{s.keys, s.cmd.OutOrStdout()}, "")
	s.terminal.History = s.history
	s.terminal.AutoCompleteCallback = s.complete
}

// readLine reads a line.
func (s *sqlShell) readLine() (line string, err error) {
	if width, height, err := term.GetSize(s.fd); err == nil && width > 0 {
		_ = s.terminal.SetSize(width, height) // it can't fail
	}
	defer s.terminal.SetBracketedPasteMode(false)
	s.terminal.SetBracketedPasteMode(true) // a pasted tab completes nothing
	prompt := "byre> "
	if s.statement != "" {
		prompt = " ...> "
	}
	s.terminal.SetPrompt(prompt)
	line, err = s.terminal.ReadLine()
	switch {
	case errors.Is(err, term.ErrPasteIndicator):
		err = nil
	case errors.Is(err, io.EOF) && s.keys.interrupted:
		err = errInterrupted
	}
	return line, err
}

// interruptReader remembers whether Ctrl-C was read, which the terminal does not tell from Ctrl-D.
type interruptReader struct {
	io.Reader
	interrupted bool
}

// Read implements io.Reader.
func (r *interruptReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.interrupted = r.interrupted || bytes.IndexByte(p[:n], 3) >= 0
	return n, err
}

// take takes a line, and runs the command or the statements that end in it. It returns true at the end of the shell.
func (s *sqlShell) take(ctx context.Context, line string) (quit bool) {
	if words := strings.Fields(line); s.statement == "" && len(words) > 0 && words[0][0] == '.' {
		return s.command(ctx, words)
	}
	s.statement += line + "\n"
	for {
		end := endOfStatement(s.statement)
		if end < 0 {
			break
		}
		statement := strings.TrimSpace(s.statement[:end])
		s.statement = s.statement[end+1:]
		if statement != "" {
			s.ask(ctx, func(ctx context.Context) error {
				_, err := s.client.print(ctx, s.cmd, s.query(statement), s.output)
				return err
			})
		}
	}
	if strings.TrimSpace(s.statement) == "" {
		s.statement = ""
	}
	return false
}

// command runs a command of the shell. It returns true for the one that ends it.
func (s *sqlShell) command(ctx context.Context, words []string) (quit bool) {
	switch name, arguments := words[0], len(words)-1; {
	case (name == ".quit" || name == ".exit") && arguments == 0:
		return true
	case name == ".help" && arguments == 0:
		fmt.Fprint(s.terminal, shellHelp)
	case name == ".tables" && arguments == 0:
		s.ask(ctx, func(ctx context.Context) error { return s.client.describe(ctx, s.cmd, s.output, selectTables) })
	case name == ".columns" && arguments == 1:
		table := strings.Trim(words[1], `"`)
		s.ask(ctx, func(ctx context.Context) error { return s.client.describe(ctx, s.cmd, s.output, selectColumns, table) })
	case name == ".output" && arguments == 1:
		if !slices.Contains(s.output.Allowed, words[1]) {
			s.report(fmt.Errorf(".output takes %s, not %q", OneOf(s.output.Allowed), words[1]))
			break
		}
		s.output.Format = words[1]
	default:
		s.report(fmt.Errorf("%q is no command of the shell: .help lists them", strings.Join(words, " ")))
	}
	return false
}

// ask asks a query, which Ctrl-C cancels, and reports its error.
//
// Invariant: Ctrl-C is a signal only while it is listened to. The terminal leaves raw mode after NotifyContext, and enters
// it before the signal is ignored again, so that no Ctrl-C is lost, and none ends the process.
func (s *sqlShell) ask(ctx context.Context, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	defer signal.Ignore(os.Interrupt) // before stop, which would let the signal end the process
	err := term.Restore(s.fd, s.cooked)
	if err == nil {
		err = run(ctx)
	}
	_, rawErr := term.MakeRaw(s.fd)
	if err != nil && ctx.Err() != nil {
		err = errors.New("the query was canceled")
	}
	s.report(errors.Join(err, rawErr))
	s.names = &sqlNames{client: s.client} // what is defined meanwhile is completed
}

func (s *sqlShell) report(err error) {
	if err == nil {
		return
	}
	for _, line := range Messages(err) {
		fmt.Fprintln(s.terminal, "Error:", line)
	}
}

// endOfStatement returns the index of the semicolon that ends the first statement; -1 if there is none.
func endOfStatement(sql string) int {
	for i := 0; i < len(sql); i++ {
		closing, length := "", 1
		switch rest := sql[i:]; {
		case rest[0] == ';':
			return i
		case strings.IndexByte("'\"`", rest[0]) >= 0: // a doubled quote ends a text, and begins the next
			closing = rest[:1]
		case rest[0] == '[':
			closing = "]"
		case strings.HasPrefix(rest, "--"):
			closing, length = "\n", 2
		case strings.HasPrefix(rest, "/*"):
			closing, length = "*/", 2
		default:
			continue
		}
		end := strings.Index(sql[i+length:], closing)
		if end < 0 {
			return -1
		}
		i += length + end + len(closing) - 1
	}
	return -1
}
