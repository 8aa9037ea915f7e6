package query

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
	"byre/watch"
)

// view is a table as the statement of one query names it. One goroutine uses it.
type view struct {
	*Table
	// name is the one that the statement uses.
	name string
	// detail is the detail table that reads the table; empty if the statement or a view of the engine names it.
	detail string
	ctx    context.Context
	budget *budget
	past   *past
	cause  *cause
	// snapshot is what the watch cache has at the revision of the query, with all rows.
	snapshot watch.Snapshot
	// now is what the table shows where the statement names no moment. Both are set before the first
	// step of the statement.
	now *selection
	// then is what the table shows at the moments that the statement has named.
	then map[string]*selection
}

// selection is the rows of a table that the user of a query may list, at one revision.
//
// Invariant: the user may list each row that a method returns. The sources keep it.
type selection struct {
	*view
	source source
	// forbidden is why the user may list no row; empty if there may be some.
	forbidden string
	// rows are all rows, once a scan has read them.
	rows []*watch.Entry
	// hashes have the rows by the values of columns, for each column that a scan has compared.
	hashes map[hashed]map[string][]*watch.Entry
}

// hashed is what a hash is of: a column of the rows of a namespace, or of all if that is empty.
type hashed struct {
	column    int
	namespace string
}

// source reads the rows that the user of a query may list, at one revision, in the order of their keys.
type source interface {
	all() ([]*watch.Entry, error)
	in(namespace string) ([]*watch.Entry, error)
	// get returns nil if there is no row with a key, or none that the user may list.
	get(namespace, name string) (*watch.Entry, error)
}

// cached is the source of the last revision: the watch cache.
type cached struct {
	watch.Snapshot
	// namespaces are those in which the user may list, in order; nil means all.
	namespaces []string
}

func (c *cached) all() (rows []*watch.Entry, _ error) {
	if c.namespaces == nil {
		return slices.AppendSeq(make([]*watch.Entry, 0, c.Len()), c.All("", nil)), nil
	}
	for _, namespace := range c.namespaces {
		rows = slices.AppendSeq(rows, c.All(namespace, nil))
	}
	return rows, nil
}

func (c *cached) in(namespace string) ([]*watch.Entry, error) {
	if !c.mayList(namespace) {
		return nil, nil
	}
	return slices.Collect(c.All(namespace, nil)), nil
}

func (c *cached) get(namespace, name string) (*watch.Entry, error) {
	if !c.mayList(namespace) {
		return nil, nil
	}
	return c.Get(namespace, name), nil
}

func (c *cached) mayList(namespace string) bool {
	_, found := slices.BinarySearch(c.namespaces, namespace)
	return found || c.namespaces == nil
}

// rowBytes and hashedBytes are about what a row takes in rows, and in a hash.
const (
	rowBytes    = 8
	hashedBytes = 96
)

// all returns all rows, in the order of their keys.
func (s *selection) all() (rows []*watch.Entry, err error) {
	if s.rows == nil {
		if s.rows, err = s.source.all(); err != nil {
			return nil, err
		}
		err = s.budget.take(len(s.rows) * rowBytes)
	}
	return s.rows, err
}

// in returns the rows of a namespace, and all rows if it is empty: those of a resource without namespaces.
func (s *selection) in(namespace string) ([]*watch.Entry, error) {
	if namespace == "" {
		return s.all()
	}
	return s.source.in(namespace)
}

// withKey returns the row with a key.
func (s *selection) withKey(namespace, name string) ([]*watch.Entry, error) {
	if e, err := s.source.get(namespace, name); e != nil || err != nil {
		return []*watch.Entry{e}, err
	}
	return nil, nil
}

// withValue returns the rows of a namespace, or of all if it is empty, in which a column of texts has a value. The
// first call for a column and a namespace makes the hash of these rows.
func (s *selection) withValue(column int, namespace, value string) ([]*watch.Entry, error) {
	of := hashed{column, namespace}
	if hash, ok := s.hashes[of]; ok {
		return hash[value], nil
	}
	rows, err := s.in(namespace)
	if len(rows) == 0 || err != nil {
		return nil, err // not kept: a statement may ask for any number of texts
	}
	reader, hash := newReader(s.view), map[string][]*watch.Entry{}
	reader.isPast = s.isPast()
	for i, e := range rows {
		if i%interval == 0 && s.ctx.Err() != nil {
			return nil, s.ctx.Err()
		}
		found, err := reader.value(e, column)
		if err != nil {
			return nil, err
		}
		if found, ok := found.(string); ok {
			if err := s.budget.take(hashedBytes + len(found)); err != nil {
				return nil, err
			}
			hash[found] = append(hash[found], e)
		}
	}
	if s.hashes == nil {
		s.hashes = map[hashed]map[string][]*watch.Entry{}
	}
	s.hashes[of] = hash
	return hash[value], nil
}

// isPast reports whether the rows are those of an earlier moment.
func (s *selection) isPast() bool {
	_, ok := s.source.(*stored)
	return ok
}

// interval is after how many rows a loop looks whether the query has ended.
const interval = 1024

// reader reads the values of rows. It finds the values of all columns that it was ever asked for in
// one pass over the JSON of a row.
type reader struct {
	*view
	extractor transcode.Extractor
	wanted    []bool   // by column
	values    [][]byte // of row, by column
	row       *watch.Entry
	// isPast is true for states of an earlier moment. A change of it also resets row.
	isPast bool
}

func newReader(v *view) *reader {
	return &reader{view: v, wanted: make([]bool, len(v.Columns)), values: make([][]byte, len(v.Columns))}
}

// value returns the value of a column: nil, or of one of the types that the methods Value of
// columns return.
func (r *reader) value(e *watch.Entry, column int) (any, error) {
	switch column {
	case NamespaceColumn:
		return e.Namespace, nil
	case NameColumn:
		return e.Name, nil
	case RevisionColumn:
		return e.Revision, nil
	case MomentColumn:
		return nil, nil
	}
	c := &r.Columns[column]
	if r.row == e && r.wanted[column] {
		return c.Value(r.values[column]), nil
	}
	body, whole, err := r.read(e, r.isPast)
	if err != nil {
		return nil, unreadable(r.ctx, err)
	}
	if c.Path == nil {
		return whole(), nil
	}
	if !r.wanted[column] {
		r.wanted[column] = true
		r.extractor.Add(column, c.Path)
	}
	clear(r.values)
	r.extractor.Find(body, r.values)
	r.row = e
	return c.Value(r.values[column]), nil
}

// read returns the JSON of a row, and what makes that of the whole object with its revision. Past states of custom
// resources, and all of those whose definition is gone, are read as they were stored, without the definition of today.
func (v *view) read(e *watch.Entry, isPast bool) (body []byte, whole func() RawJSON, err error) {
	var encoded encoding.Encoded
	if isPast && v.Of().Owner == sqlstore.Custom {
		if body, err = v.past.log.Open(v.ctx, e.Key, e.Value()); err != nil {
			return nil, nil, err
		}
		encoded = encoding.EncodedStored(body, e.Revision)
	} else if encoded, err = v.Store.Encode(v.ctx, e, v.Store.Stored()); err != nil {
		return nil, nil, err
	}
	return encoded.Body(), func() RawJSON { return encoded.AppendJSON(make([]byte, 0, encoded.Len()), true) }, nil
}

// virtualTable is a view in SQLite.
type virtualTable struct{ *view }

// The plans of BestIndex, of which Filter gets the number. planHash is followed by the number of the column, of which
// the value is the first argument; the second may be a namespace.
const (
	planAll = iota
	planNamespace
	planKey
	planHash
)

// BestIndex implements sqlite3.VTab. SQLite itself compares the rows with the constraints once more, so a plan may
// return more rows than a constraint selects, and never fewer.
func (t virtualTable) BestIndex(info *sqlite3.IndexInfo) error {
	if err := t.past.times.check(info, t.Columns); err != nil {
		return t.cause.keep(err)
	}
	equal, err := equalities(info, t.Columns, MomentColumn)
	if err != nil {
		return err
	}
	moment, hasMoment := equal[MomentColumn]
	delete(equal, MomentColumn) // it is no column that the rows have
	if t.Store == nil && !hasMoment && t.past.moment == "" {
		return fmt.Errorf("no such table: %s: its definition is gone; its past is in \"%s\"('-1h') and \"%s\"", t.name,
			t.name, t.name+versionsSuffix)
	}
	t.plan(info, equal)
	if hasMoment {
		arguments := 1
		for _, usage := range info.ConstraintUsage {
			arguments = max(arguments, usage.ArgvIndex+1)
		}
		info.ConstraintUsage[moment].ArgvIndex, info.ConstraintUsage[moment].Omit = arguments, true
		info.IdxStr = withMoment
		info.IdxFlags = 0
	}
	return nil
}

// equalities returns the constraints of a plan by which a column is equal to a text, or to the moment, by the columns.
func equalities(info *sqlite3.IndexInfo, columns []Column, moment int) (map[int]int, error) {
	equal := map[int]int{}
	for i, c := range info.Constraint {
		switch {
		case c.Op != sqlite3.INDEX_CONSTRAINT_EQ || c.Column < 0:
		case c.Column == moment && !c.Usable:
			return nil, sqlite3.CONSTRAINT // no such plan: the moment is an argument, and must be known
		case c.Column == moment, c.Usable && columns[c.Column].Type == Text && info.Collation(i) == "BINARY":
			equal[c.Column] = i
		}
	}
	return equal, nil
}

// withMoment says that the last argument of Filter is a moment.
const withMoment = "at"

// plan chooses the plan, by the constraints that a column is equal to a value.
func (t virtualTable) plan(info *sqlite3.IndexInfo, equal map[int]int) {
	const many = 100_000
	info.IdxNum, info.EstimatedCost, info.EstimatedRows = planAll, many, many
	namespace, hasNamespace := equal[NamespaceColumn]
	name, hasName := equal[NameColumn]
	switch {
	case hasNamespace && hasName:
		info.IdxNum, info.EstimatedCost, info.EstimatedRows = planKey, 1, 1
		info.IdxFlags = sqlite3.INDEX_SCAN_UNIQUE
		info.ConstraintUsage[namespace].ArgvIndex, info.ConstraintUsage[name].ArgvIndex = 1, 2
		return
	case hasNamespace:
		info.IdxNum, info.EstimatedCost, info.EstimatedRows = planNamespace, many/100, many/100
		info.ConstraintUsage[namespace].ArgvIndex = 1
	}
	for column := range t.Columns {
		if constraint, ok := equal[column]; ok && column != NamespaceColumn {
			clear(info.ConstraintUsage)
			info.ConstraintUsage[constraint].ArgvIndex = 1
			if hasNamespace {
				info.ConstraintUsage[namespace].ArgvIndex = 2
			}
			info.IdxNum, info.EstimatedCost, info.EstimatedRows = planHash+column, 20, 10
			break
		}
	}
}

// Open implements sqlite3.VTab.
func (t virtualTable) Open() (sqlite3.VTabCursor, error) {
	return &cursor{reader: newReader(t.view)}, nil
}

// cursor is a scan of some rows of a view.
type cursor struct {
	*reader
	rows []*watch.Entry
	at   int
}

// Filter implements sqlite3.VTabCursor.
func (c *cursor) Filter(plan int, moment string, args ...sqlite3.Value) (err error) {
	c.at, c.rows = 0, nil
	from := c.now
	if moment == withMoment {
		last := len(args) - 1
		if args[last].Type() == sqlite3.NULL {
			return nil // there is no such moment
		}
		if from, err = c.past.at(c.view, args[last].Text()); err != nil {
			return c.cause.keep(err)
		}
		args = args[:last]
	}
	c.row, c.isPast = nil, from.isPast()
	for _, arg := range args {
		switch arg.Type() {
		case sqlite3.TEXT:
		case sqlite3.NULL:
			return nil // nothing is equal to NULL
		default:
			plan = planAll // SQLite converts the value before it compares
		}
	}
	switch plan {
	case planAll:
		c.rows, err = from.all()
	case planNamespace:
		c.rows, err = from.in(args[0].Text())
	case planKey:
		c.rows, err = from.withKey(args[0].Text(), args[1].Text())
	default:
		namespace := ""
		if len(args) > 1 {
			namespace = args[1].Text()
		}
		c.rows, err = from.withValue(plan-planHash, namespace, args[0].Text())
	}
	return c.cause.keep(err)
}

// Next implements sqlite3.VTabCursor.
func (c *cursor) Next() error {
	c.at++
	if c.at%interval == 0 {
		return c.cause.keep(c.ctx.Err())
	}
	return nil
}

// EOF implements sqlite3.VTabCursor.
func (c *cursor) EOF() bool { return c.at >= len(c.rows) }

// RowID implements sqlite3.VTabCursor. SQLite finds by it that two scans have met the same row. No two
// objects have the same revision.
func (c *cursor) RowID() (int64, error) { return c.rows[c.at].Revision, nil }

// Column implements sqlite3.VTabCursor.
func (c *cursor) Column(result sqlite3.Context, n int) error {
	value, err := c.value(c.rows[c.at], n)
	if err != nil {
		return c.cause.keep(err)
	}
	setResult(result, value)
	return nil
}

// setResult sets a value that the Value of a column has returned.
func setResult(result sqlite3.Context, value any) {
	switch v := value.(type) {
	case nil:
		result.ResultNull()
	case string:
		result.ResultText(v)
	case RawJSON:
		result.ResultRawText(v)
	case int64:
		result.ResultInt64(v)
	case float64:
		result.ResultFloat(v)
	case bool:
		result.ResultBool(v)
	}
}

// ddl returns the statement that declares a table to SQLite.
func ddl(of []Column) string {
	columns := make([]string, len(of))
	for i, c := range of {
		columns[i] = quote(c.Name) + " " + string(c.Type)
		if c.Type == Time {
			columns[i] += " COLLATE " + timeCollation
		}
		if c.IsHidden() {
			columns[i] += " HIDDEN"
		}
	}
	return "CREATE TABLE t (" + strings.Join(columns, ", ") + ")"
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// The tables that describe the others.
const (
	tablesTable  = "byre_tables"
	columnsTable = "byre_columns"
)

// descriptions are the tables that describe the others: their columns, and their rows of a table.
var descriptions = map[string]struct {
	columns string
	rows    func(name string, t *Table) [][]string
}{
	tablesTable: {
		`table_name TEXT, "group" TEXT, resource TEXT, version TEXT, description TEXT`,
		func(name string, t *Table) [][]string {
			return [][]string{{name, t.Resource.Group, t.Resource.Resource, t.Version, t.Description}}
		},
	},
	columnsTable: {
		"table_name TEXT, name TEXT, type TEXT, description TEXT, path TEXT",
		func(name string, t *Table) (rows [][]string) {
			for i := range t.Columns {
				if c := &t.Columns[i]; !c.IsHidden() {
					rows = append(rows, []string{name, c.Name, c.Type.Name(), c.Description, c.Source()})
				}
			}
			return rows
		},
	},
}

// describe makes those of the descriptions that a statement may name: what can be asked. Whoever may ask may read them,
// as discovery and OpenAPI.
func (e *engine) describe(tables Tables, sql string) (err error) {
	defer func() { err = errors.Join(err, recovered(recover())) }()
	for name, of := range descriptions {
		if !strings.Contains(sql, name) {
			continue
		}
		if err := e.conn.Exec("CREATE TABLE " + name + " (" + of.columns + ")"); err != nil {
			return err
		}
		insert, _, err := e.conn.Prepare("INSERT INTO " + name + " VALUES (?, ?, ?, ?, ?)")
		if err != nil {
			return err
		}
		err = eachTable(e.ctx, tables, func(table string, t *Table) error {
			for _, row := range of.rows(table, t) {
				for i, text := range row {
					if err := insert.BindText(i+1, text); err != nil {
						return err
					}
				}
				if err := insert.Exec(); err != nil {
					return err
				}
			}
			return nil
		})
		if err = errors.Join(err, insert.Close()); err != nil {
			return err
		}
	}
	return nil
}

// eachTable calls f with all tables that can be asked, in the order of their names.
func eachTable(ctx context.Context, tables Tables, f func(name string, t *Table) error) error {
	names := slices.AppendSeq(slices.AppendSeq(tables.Names(), maps.Keys(detailTables)), maps.Keys(logTables))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		table, err := tables.Table(ctx, name)
		if err != nil {
			return err
		}
		if of, ok := detailTables[name]; ok {
			table = &Table{Description: of.Description, Columns: of.Columns}
		}
		if columns, ok := logTables[name]; ok {
			table = &Table{Description: logDescriptions[name], Columns: columnsOf(columns)}
		}
		if table != nil {
			if err := f(name, table); err != nil {
				return err
			}
		}
	}
	return nil
}
