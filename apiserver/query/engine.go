package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"

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
	errTooLarge   = errors.New("the query needs more memory than --sql-memory, or a row is larger than 16 MiB: select fewer rows or columns")
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
}

// newEngine makes an engine. ctx ends what it runs, memory is in bytes, and requests counts those for which it makes
// way. The caller closes the engine.
func newEngine(ctx context.Context, memory int64, log *changes.Log, requests *atomic.Int64) (*engine, error) {
	e := &engine{ctx: ctx, budget: &budget{memory}}
	e.past = &past{ctx: ctx, log: log, budget: e.budget, cause: &e.cause, revisions: map[string]int64{}}
	if err := e.open(memory, requests); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *engine) open(memory int64, requests *atomic.Int64) (err error) {
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
	e.conn.SetInterrupt(newPace(e.ctx, requests))
	return e.conn.CreateFunction("ago", 1, sqlite3.DETERMINISTIC, ago(time.Now()))
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
	v := &view{Table: t, name: name, ctx: e.ctx, budget: e.budget, past: e.past, cause: &e.cause, then: map[string]*selection{}}
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
