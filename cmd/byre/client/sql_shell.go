package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"byre/apiserver/query"
)

// sqlShell reads statements from a terminal, and prints their answers.
type sqlShell struct {
	cmd      *cobra.Command
	client   *Client
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
func runSQLShell(
	cmd *cobra.Command, client *Client, output *Output, newQuery func(statement string) *query.Query,
) (err error) {
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
	fmt.Fprintln(s.terminal, "SQL on", client.server+": .help says how, Ctrl-D ends.")
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
// Invariant: Ctrl-C is a signal only while it is listened to. The terminal leaves raw mode after NotifyContext, and
// enters it before the signal is ignored again, so that no Ctrl-C is lost, and none ends the process.
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

// sqlKeywords are the words of a SELECT that Tab completes.
const sqlKeywords = `ALL AND AS ASC BETWEEN BY CASE CAST CROSS DESC DISTINCT ELSE END EXCEPT EXISTS FILTER FROM FULL GLOB GROUP
	HAVING IN INNER INTERSECT IS JOIN LEFT LIKE LIMIT NATURAL NOT NULL NULLS OFFSET ON OR ORDER OUTER OVER PARTITION
	RECURSIVE RIGHT SELECT THEN UNION USING VALUES WHEN WHERE WINDOW WITH`

// sqlNames are the tables and columns that can be completed. They are asked for when they are first needed. One
// goroutine uses it.
type sqlNames struct {
	client  *Client
	tables  []string
	columns map[string][]string
}

func (n *sqlNames) allTables(ctx context.Context) []string {
	if n.tables == nil {
		n.tables = n.client.texts(ctx, `SELECT table_name FROM byre_tables`)
	}
	return n.tables
}

// columnsIn returns the columns of the tables that a text names.
func (n *sqlNames) columnsIn(ctx context.Context, text string) (columns []string) {
	tables := n.allTables(ctx)
	for token := range strings.FieldsFuncSeq(text, func(r rune) bool { return !isNameRune(r) && r != '-' && r != '~' }) {
		first, _, _ := strings.Cut(token, ".")
		for _, name := range []string{strings.ToLower(token), strings.ToLower(first)} {
			if !slices.Contains(tables, name) {
				continue
			}
			if n.columns[name] == nil {
				if n.columns == nil {
					n.columns = map[string][]string{}
				}
				n.columns[name] = n.client.texts(ctx, `SELECT name FROM byre_columns WHERE table_name = ?1`, name)
			}
			columns = append(columns, n.columns[name]...)
		}
	}
	return columns
}

func isNameRune(r rune) bool {
	return r == '_' || r == '.' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// complete implements the callback of a terminal: at Tab, it completes the word before the cursor, or shows the words
// that it may become.
func (s *sqlShell) complete(line string, pos int, key rune) (newLine string, newPos int, ok bool) {
	if key != '\t' {
		return "", 0, false
	}
	word, words := s.candidates(line, line[:pos])
	completed := commonPrefix(words)
	switch {
	case len(words) == 1:
		completed += " "
	case len(completed) <= len(word):
		const shown = 60
		text := strings.Join(words[:min(len(words), shown)], "  ")
		if len(words) > shown {
			text += fmt.Sprintf("  and %d more", len(words)-shown)
		}
		if text != "" {
			_, _ = fmt.Fprintln(s.terminal, text) // the terminal reports it at the next line
		}
		return line, pos, true
	}
	before := line[:pos-len(word)] + completed
	return before + line[pos:], len(before), true
}

// candidates returns the word that a text ends with, and what it may become.
func (s *sqlShell) candidates(line, before string) (word string, words []string) {
	ctx := s.cmd.Context()
	word = before[strings.LastIndexFunc(before, func(r rune) bool { return !isNameRune(r) })+1:]
	start := strings.TrimSpace(strings.TrimSuffix(before, word))
	switch {
	case s.statement == "" && start == "" && strings.HasPrefix(word, "."):
		return word, withPrefix([]string{".columns", ".help", ".output", ".quit", ".tables"}, word)
	case s.statement == "" && start == ".columns":
		return word, withPrefix(s.names.allTables(ctx), word)
	case s.statement == "" && start == ".output":
		return word, withPrefix(s.output.Allowed, word)
	case strings.Count(before, `"`)%2 == 1:
		word = before[strings.LastIndexByte(before, '"'):]
		return word, withPrefix(quoteAll(s.names.allTables(ctx)), word)
	}
	columns := s.names.columnsIn(ctx, s.statement+line)
	if dot := strings.LastIndexByte(word, '.'); dot >= 0 { // of a table, or of its alias
		word = word[dot+1:]
		return word, unique(withPrefix(columns, strings.ToLower(word)))
	}
	if word == "" && columns != nil {
		return word, unique(columns)
	}
	keywords := sqlKeywords
	if strings.ToUpper(word) != word {
		keywords = strings.ToLower(keywords)
	}
	plain := slices.DeleteFunc(slices.Clone(s.names.allTables(ctx)), func(name string) bool {
		return strings.Contains(name, ".")
	})
	words = unique(append(withPrefix(strings.Fields(keywords), word),
		withPrefix(append(columns, plain...), strings.ToLower(word))...))
	if len(words) == 0 && word != "" { // a name that needs quotes
		words = quoteAll(withPrefix(s.names.allTables(ctx), word))
	}
	return word, words
}

func quoteAll(names []string) (quoted []string) {
	for _, name := range names {
		quoted = append(quoted, `"`+name+`"`)
	}
	return quoted
}

func unique(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}

func commonPrefix(words []string) string {
	if len(words) == 0 {
		return ""
	}
	prefix := words[0]
	for _, word := range words {
		for !strings.HasPrefix(word, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	return prefix
}

// maxHistory is how many lines a shell remembers, and the file of its history has at least.
const maxHistory = 1000

// sqlHistory implements term.History: the lines of all shells of a user, in a file that only this user reads. One
// goroutine uses it.
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
