package query

import (
	"fmt"
	"strings"

	"github.com/ncruces/go-sqlite3"

	"byre/watch"
)

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
	equal, err := equalities(info, t.Columns, MomentColumn)
	if err != nil {
		return err
	}
	moment, hasMoment := equal[MomentColumn]
	delete(equal, MomentColumn) // it is no column that the rows have
	if t.Store == nil && !hasMoment && t.past.moment == "" {
		return fmt.Errorf("no such table: %s: its definition is gone; its past is in \"%s\"('-1h') and \"%s\"", t.name, t.name, t.name+versionsSuffix)
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
		if from, err = c.past.at(c.view, momentOf(args[last])); err != nil {
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
		if c.IsHidden() {
			columns[i] += " HIDDEN"
		}
	}
	return "CREATE TABLE t (" + strings.Join(columns, ", ") + ")"
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
