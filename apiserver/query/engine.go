package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"
	"k8s.io/apimachinery/pkg/util/sets"

	"byre/apiserver/storage/changes"
)

// The bounds of SQLite for one statement. maxValue bounds a row too, which is copied from the engine as a whole.
const (
	maxSQL   = 100 << 10
	maxValue = 16 << 20
	// mostEscape is the length of the escape of a byte in JSON, in bytes.
	mostEscape = 6
	// One call of json_extract reads a value once for each argument, and nothing ends it.
	maxArguments = 32
)

// Errors of a statement.
var (
	// errTooLarge means that a statement, a value, or what a query needs in memory, is too large.
	errTooLarge = errors.New(
		"the query needs more memory than --sql-memory, or a row is larger than 16 MiB: select fewer rows or columns")
	errTooDeep    = errors.New("the statement, or a path of JSON in it, is nested too deeply")
	errEmpty      = errors.New("no statement")
	errParameters = errors.New("wrong number of parameters")
	errSeveral    = errors.New("more than one statement: ask one query a request")
)

// budget is the memory that a query may still take outside the engine, in bytes.
type budget struct{ left int64 }

func (b *budget) take(n int) error {
	if b.left -= int64(n); b.left < 0 {
		return errTooLarge
	}
	return nil
}

// cause keeps the first error of a virtual table: SQLite keeps its text only.
type cause struct{ err error }

func (c *cause) keep(err error) error {
	if c.err == nil {
		c.err = err
	}
	return err
}

// engine runs one statement. It is a connection of SQLite to an empty database in memory, in which
// tables are virtual. One goroutine uses it.
//
// Invariant: a statement can read the tables, and nothing else: no file, no other database, no
// setting. authorize keeps this, from prepare on. SQLite has a memory of its own, from which sorts and temporary tables
// come too, and can take no more; budget bounds what the rows, their hashes and the answer take beside.
type engine struct {
	ctx  context.Context
	conn *sqlite3.Conn
	stmt *sqlite3.Stmt
	// views are the tables that the statement names.
	views  []*view
	budget *budget
	past   *past
	cause  cause
	// cancel ends ctx, and with it what runs.
	cancel context.CancelFunc
}

// newEngine makes an engine. ctx ends what it runs, and memory is in bytes. The caller closes the engine.
func newEngine(ctx context.Context, memory int64, log *changes.Log) (*engine, error) {
	ctx, cancel := context.WithCancel(ctx)
	e := &engine{ctx: ctx, cancel: cancel, budget: &budget{memory}}
	e.past = &past{ctx: ctx, log: log, budget: e.budget, cause: &e.cause, revisions: map[string]int64{},
		times: &times{began: time.Now().UTC(), refuse: e.refuse, known: map[string]time.Time{}}}
	if err := e.open(memory); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *engine) open(memory int64) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	if e.conn, err = sqlite3.OpenContext(sqlite3.WithMaxMemory(e.ctx, memory), ":memory:"); err != nil {
		return err
	}
	// Otherwise sorts write files.
	if err := e.conn.Exec("PRAGMA temp_store = MEMORY"); err != nil {
		return err
	}
	for limit, value := range map[sqlite3.LimitCategory]int{
		sqlite3.LIMIT_LENGTH:          maxValue,
		sqlite3.LIMIT_SQL_LENGTH:      maxSQL,
		sqlite3.LIMIT_ATTACHED:        0,
		sqlite3.LIMIT_EXPR_DEPTH:      200,
		sqlite3.LIMIT_COMPOUND_SELECT: 100,
		sqlite3.LIMIT_FUNCTION_ARG:    maxArguments,
		sqlite3.LIMIT_TRIGGER_DEPTH:   1,
		sqlite3.LIMIT_WORKER_THREADS:  0,
	} {
		e.conn.Limit(limit, value)
	}
	e.conn.SetInterrupt(e.ctx)
	if err := e.conn.CreateCollation(timeCollation, e.past.times.compare); err != nil {
		return err
	}
	return e.conn.CreateFunction("ago", 1, sqlite3.DETERMINISTIC, ago(e.past.times.began))
}

// refuse ends the statement with an error: a collation can't fail.
func (e *engine) refuse(err error) {
	_ = e.cause.keep(err) // run returns it
	e.cancel()
}

// authorize allows what a SELECT does.
func authorize(action sqlite3.AuthorizerActionCode, _, function, _, _ string) sqlite3.AuthorizerReturnCode {
	switch action {
	case sqlite3.AUTH_SELECT, sqlite3.AUTH_READ, sqlite3.AUTH_RECURSIVE:
		return sqlite3.AUTH_OK
	case sqlite3.AUTH_FUNCTION:
		if functions.Has(strings.ToLower(function)) {
			return sqlite3.AUTH_OK
		}
	}
	return sqlite3.AUTH_DENY
}

// declare makes a table known under a name.
func (e *engine) declare(name string, t *Table) error {
	return addModule(e, name, ddl(t.Columns), func() virtualTable { return virtualTable{e.view(name, t)} })
}

// addModule makes a virtual table known under a name, which connect makes when a statement names it.
func addModule[T sqlite3.VTab](e *engine, name, ddl string, connect func() T) error {
	return sqlite3.CreateModule(e.conn, name, nil, func(conn *sqlite3.Conn, _, _, _ string, _ ...string) (T, error) { //nolint:staticcheck // the method that replaces it needs Go 1.27
		return connect(), conn.DeclareVTab(ddl)
	})
}

// view makes a view, which fill fills.
func (e *engine) view(name string, t *Table) *view {
	v := &view{Table: t, name: name, ctx: e.ctx, budget: e.budget, past: e.past, cause: &e.cause,
		then: map[string]*selection{}}
	e.views = append(e.views, v)
	return v
}

// prepare compiles the statement. Then views has the tables that it names.
func (e *engine) prepare(sql string) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	if err := e.conn.SetAuthorizer(authorize); err != nil {
		return err
	}
	stmt, tail, err := e.conn.Prepare(sql)
	switch {
	case err != nil:
		return cmp.Or(e.cause.err, err)
	case stmt == nil:
		return errEmpty
	}
	e.stmt = stmt
	rest, _, err := e.conn.Prepare(tail)
	if err != nil || rest != nil {
		return errors.Join(errSeveral, rest.Close())
	}
	return nil
}

// bind sets the parameters of the statement: nil, bool, float64, int64 or string.
func (e *engine) bind(parameters []any) (err error) {
	if n := e.stmt.BindCount(); n != len(parameters) {
		return fmt.Errorf("%w: the statement has %d, and spec.parameters has %d", errParameters, n, len(parameters))
	}
	for i, p := range parameters {
		switch p := p.(type) {
		case nil:
			err = e.stmt.BindNull(i + 1)
		case bool:
			err = e.stmt.BindBool(i+1, p)
		case int64:
			err = e.stmt.BindInt64(i+1, p)
		case float64:
			err = e.stmt.BindFloat(i+1, p)
		case string:
			err = e.stmt.BindText(i+1, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// columns returns the columns of the result. The type of what is not a column of a table is empty.
func (e *engine) columns() []ResultColumn {
	columns := make([]ResultColumn, e.stmt.ColumnCount())
	for i := range columns {
		columns[i] = ResultColumn{e.stmt.ColumnName(i), Type(e.stmt.ColumnDeclType(i)).Name()}
	}
	return columns
}

// run calls row with the values of each row of the result, until it returns false: nil, or a string,
// int64, float64, bool, []byte or RawJSON. They are valid until row returns.
func (e *engine) run(columns []ResultColumn, row func([]any) (bool, error)) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	values := make([]any, len(columns))
	for e.stmt.Step() {
		size := 0
		for i := range columns {
			values[i] = e.value(i, columns[i].Type)
			size += length(values[i])
			if text, ok := values[i].(string); ok {
				size += escapes(text) // an answer may have six bytes for one
			}
			if size > maxValue {
				return errTooLarge // in the engine all columns may share one text
			}
		}
		if e.cause.err != nil {
			break // a comparison that was refused has no meaning
		}
		if more, err := row(values); !more || err != nil {
			return err
		}
	}
	return cmp.Or(e.cause.err, e.stmt.Err())
}

// escapes returns how many bytes the escapes of JSON add to a text, at most.
func escapes(text string) (n int) {
	for _, r := range text {
		switch {
		case r == '"', r == '\\':
			n++
		case r < ' ', r == '<', r == '>', r == '&', r == utf8.RuneError, r == '\u2028', r == '\u2029':
			n += mostEscape - 1
		}
	}
	return n
}

// length returns the length of a value of a row; 0 if it has a fixed size.
func length(value any) int {
	switch v := value.(type) {
	case string:
		return len(v)
	case RawJSON:
		return len(v)
	case []byte:
		return len(v)
	}
	return 0
}

// value returns a value of the current row.
func (e *engine) value(i int, declared string) any {
	switch e.stmt.ColumnType(i) {
	case sqlite3.INTEGER:
		if declared == Boolean.Name() {
			return e.stmt.ColumnBool(i)
		}
		return e.stmt.ColumnInt64(i)
	case sqlite3.FLOAT:
		return e.stmt.ColumnFloat(i)
	case sqlite3.TEXT:
		raw := e.stmt.ColumnRawText(i)
		if declared == JSON.Name() {
			return RawJSON(raw)
		}
		return string(raw)
	case sqlite3.BLOB:
		return e.stmt.ColumnRawBlob(i)
	}
	return nil
}

// close frees the memory. Conn.Close would not, after a panic has left a statement open or the stack overflowed; what
// it closes first is in that memory, as the database is.
func (e *engine) close() {
	e.cancel()
	if e.conn == nil {
		return
	}
	memory := reflect.ValueOf(e.conn).Elem().FieldByName("wrp")
	_ = reflect.NewAt(memory.Type(), memory.Addr().UnsafePointer()).Elem().Interface().(io.Closer).Close()
}

// recovered converts a panic of the engine to an error. SQLite's Go code panics when its memory is
// used up. Its stack ends at the address 0: an overflow is an index that is negative, as a uint32.
func recovered(cause any) error {
	if cause == nil {
		return nil
	}
	if err, ok := cause.(error); ok {
		switch text := err.Error(); {
		case text == "sqlite3: out of memory":
			return errTooLarge
		case strings.Contains(text, "out of range [42949"):
			return errTooDeep
		}
	}
	return fmt.Errorf("panic: %v", cause)
}

// functions are the functions of SQLite that a statement may call. What is left out reads or writes
// something outside of the query, or tells of the process (load_extension, sqlite_compileoption_get, …). So are unhex
// and json_patch: one call may take the product of the lengths of its arguments, and nothing can end it.
var functions = sets.New(strings.Fields(`
	abs ceil ceiling floor round trunc sign mod pow power sqrt exp ln log log10 log2 pi
	acos acosh asin asinh atan atan2 atanh cos cosh degrees radians sin sinh tan tanh random
	char concat concat_ws format printf glob like hex instr length octet_length lower upper ltrim
	rtrim trim quote replace substr substring unicode unistr zeroblob
	coalesce ifnull iif if nullif likelihood likely unlikely typeof subtype max min
	date time datetime julianday unixepoch strftime timediff current_date current_time current_timestamp
	avg count group_concat string_agg sum total median percentile percentile_cont percentile_disc
	row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
	json json_array json_array_insert json_array_length json_error_position json_extract json_group_array
	json_group_object json_insert json_object json_pretty json_quote json_remove json_replace
	json_set json_type json_valid jsonb -> ->> quantity resource_of ago`)...)

// addFunctions adds the functions that statements use beside SQLite's, and those of SQLite that
// textFunctions replaces.
func (e *engine) addFunctions(known *resources) error {
	for _, f := range append(textFunctions(e.ctx), []function{
		{"quantity", 1, func(result sqlite3.Context, args ...sqlite3.Value) {
			text := args[0].RawText()
			if len(text) > MaxQuantity || args[0].Type() == sqlite3.NULL {
				return // no quantity is so long, and nothing ends the call while it escapes the text
			}
			if value, ok := Quantity.Value(appendJSON(nil, string(text))).(float64); ok {
				result.ResultFloat(value)
			}
		}},
		// resource_of(apiVersion, kind) is the resource of a kind, as detail tables name it.
		{"resource_of", 2, func(result sqlite3.Context, args ...sqlite3.Value) {
			name, ok, err := known.ofKind(args[0].Text(), args[1].Text())
			switch {
			case err != nil:
				result.ResultError(e.cause.keep(err))
			case ok:
				result.ResultText(name)
			}
		}},
	}...) {
		if err := e.conn.CreateFunction(f.name, f.arguments, sqlite3.DETERMINISTIC, f.call); err != nil {
			return err
		}
	}
	return nil
}

type function struct {
	name      string
	arguments int
	call      sqlite3.ScalarFunction
}

// textFunctions are those of SQLite of which one call takes the product of the lengths of two texts: hours, for texts
// of megabytes. SQLite asks whether to go on after 1,000 of its instructions only, which may be hundreds of calls.
// These take the sum of the lengths, or end with the query.
func textFunctions(ctx context.Context) []function {
	return []function{
		{"like", 2, matches(ctx, parseLike)},
		{"like", 3, matches(ctx, parseLike)},
		{"glob", 2, matches(ctx, parseGlob)},
		{"instr", 2, func(result sqlite3.Context, args ...sqlite3.Value) {
			inBytes := args[0].Type() == sqlite3.BLOB && args[1].Type() == sqlite3.BLOB
			ofTexts(func(result sqlite3.Context, in, part string) {
				at := strings.Index(in, part)
				if at > 0 && !inBytes {
					at = utf8.RuneCountInString(in[:at])
				}
				result.ResultInt(at + 1)
			})(result, args...)
		}},
		{"replace", 3, func(result sqlite3.Context, args ...sqlite3.Value) {
			if args[2].Type() == sqlite3.NULL {
				return
			}
			with := args[2].Text()
			ofTexts(func(result sqlite3.Context, in, part string) {
				switch {
				case part == "":
					result.ResultText(in)
				case len(in)+strings.Count(in, part)*(len(with)-len(part)) > maxValue:
					result.ResultError(sqlite3.TOOBIG)
				default:
					result.ResultText(strings.ReplaceAll(in, part, with))
				}
			})(result, args[:2]...)
		}},
		{"trim", 2, trims(strings.TrimFunc)},
		{"ltrim", 2, trims(strings.TrimLeftFunc)},
		{"rtrim", 2, trims(strings.TrimRightFunc)},
	}
}

// ofTexts is a function of two texts, which is NULL if one of them is.
func ofTexts(call func(result sqlite3.Context, a, b string)) sqlite3.ScalarFunction {
	return func(result sqlite3.Context, args ...sqlite3.Value) {
		if args[0].Type() != sqlite3.NULL && args[1].Type() != sqlite3.NULL {
			call(result, args[0].Text(), args[1].Text())
		}
	}
}

func trims(trim func(string, func(rune) bool) string) sqlite3.ScalarFunction {
	return ofTexts(func(result sqlite3.Context, of, characters string) {
		cut := map[rune]bool{}
		for _, r := range characters {
			cut[r] = true
		}
		result.ResultText(trim(of, func(r rune) bool { return cut[r] }))
	})
}

// letter is what a letter of a pattern matches; nil is any number of letters.
type letter func(rune) bool

func isAny(rune) bool { return true }

// maxPattern is the length of a pattern in bytes, that of SQLite's limit. A match takes the product of the lengths.
const maxPattern = 200

var (
	errPattern = errors.New("LIKE or GLOB pattern too complex")
	errEscape  = errors.New("ESCAPE expression must be a single character")
)

// matches is the function that matches a text with a pattern.
func matches(ctx context.Context, parse func(pattern []rune, escape rune) ([]letter, bool)) sqlite3.ScalarFunction {
	return func(result sqlite3.Context, args ...sqlite3.Value) {
		escape := rune(-1)
		if len(args) > 2 {
			if args[2].Type() == sqlite3.NULL {
				return
			}
			of := []rune(args[2].Text())
			if len(of) != 1 {
				result.ResultError(errEscape)
				return
			}
			escape = of[0]
		}
		ofTexts(func(result sqlite3.Context, pattern, text string) {
			if len(pattern) > maxPattern {
				result.ResultError(errPattern)
				return
			}
			letters, ok := parse([]rune(pattern), escape)
			found, err := match(ctx, letters, text)
			result.ResultBool(ok && found)
			result.ResultError(err)
		})(result, args[:2]...)
	}
}

// match reports whether a text matches. It fails if ctx ends.
func match(ctx context.Context, letters []letter, text string) (bool, error) {
	// From many, letters matches what begins at start, or later.
	at, many, start := 0, -1, 0
	for i, steps := 0, 1; i < len(text); steps++ {
		if steps%(1<<16) == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case at < len(letters) && letters[at] == nil:
			many, start = at, i
			at++
		case at < len(letters) && letters[at](r):
			at++
			i += size
		case many < 0:
			return false, nil
		default:
			_, size = utf8.DecodeRuneInString(text[start:])
			start += size
			at, i = many+1, start
		}
	}
	for at < len(letters) && letters[at] == nil {
		at++
	}
	return at == len(letters), nil
}

// parseLike parses a pattern of LIKE. It returns false if that matches nothing.
func parseLike(pattern []rune, escape rune) (letters []letter, ok bool) {
	fold := func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}
	for i := 0; i < len(pattern); i++ {
		switch r := pattern[i]; {
		case r == escape:
			if i++; i == len(pattern) {
				return nil, false
			}
			literal := fold(pattern[i])
			letters = append(letters, func(r rune) bool { return fold(r) == literal })
		case r == '%':
			letters = append(letters, nil)
		case r == '_':
			letters = append(letters, isAny)
		default:
			literal := fold(r)
			letters = append(letters, func(r rune) bool { return fold(r) == literal })
		}
	}
	return letters, true
}

// parseGlob parses a pattern of GLOB. It returns false if that matches nothing.
func parseGlob(pattern []rune, _ rune) (letters []letter, ok bool) {
	for i := 0; i < len(pattern); i++ {
		switch literal := pattern[i]; literal {
		case '*':
			letters = append(letters, nil)
		case '?':
			letters = append(letters, isAny)
		case '[':
			inverted := i+1 < len(pattern) && pattern[i+1] == '^'
			if inverted {
				i++
			}
			first := i + 1 // a ] in this place is a letter of the set
			end := slices.Index(pattern[min(first+1, len(pattern)):], ']')
			if end < 0 {
				return nil, false
			}
			i = first + 1 + end
			set := pattern[first:i]
			letters = append(letters, func(r rune) bool { return isInSet(set, r) != inverted })
		default:
			letters = append(letters, func(r rune) bool { return r == literal })
		}
	}
	return letters, true
}

// isInSet reports whether a letter is in a set of GLOB, such as a-z_.
func isInSet(set []rune, r rune) bool {
	first := 0 // what a range may begin with: no ] in the first place, and no end of another range
	if len(set) > 0 && set[0] == ']' {
		first = 1
	}
	for i := 0; i < len(set); i++ {
		if i > first && set[i] == '-' && i+1 < len(set) {
			if r >= set[i-1] && r <= set[i+1] {
				return true
			}
			i++
			first = i + 1
			continue
		}
		if set[i] == r {
			return true
		}
	}
	return false
}
