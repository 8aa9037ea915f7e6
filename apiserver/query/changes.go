package query

import (
	"errors"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// The tables of changes.
const (
	changesTable      = "changes"
	fieldChangesTable = "field_changes"
)

// logColumn is a column of a table of changes. Its value is nil, or of one of the types that
// Type.Value returns.
type logColumn struct {
	Column
	value func(c *logCursor) any
}

// logTables are the tables of changes, by their names: their columns.
var logTables = map[string][]logColumn{
	changesTable: append(changeColumns(),
		logColumn{NewColumn("replaces", Integer, "The revision that the object had before; NULL if it did not exist."), func(c *logCursor) any {
			if c.change().Old == nil {
				return nil
			}
			return c.change().Old.Revision
		}},
		logColumn{NewColumn("before", JSON, "The object before the change, as it was stored; NULL for a create."), func(c *logCursor) any { return c.object(c.change().Old) }},
		logColumn{NewColumn("after", JSON, "The object after the change, as it was stored; NULL for a delete."), func(c *logCursor) any { return c.object(&c.change().New) }},
	),
	fieldChangesTable: append(changeColumns(),
		logColumn{NewColumn("path", Text, "The field, such as spec.replicas."), func(c *logCursor) any { return c.field().Path }},
		logColumn{NewColumn("old", JSON, "The value before; NULL if the field did not exist."), func(c *logCursor) any { return fieldValue(c.field().Old) }},
		logColumn{NewColumn("new", JSON, "The value after; NULL if the field does not exist any more."), func(c *logCursor) any { return fieldValue(c.field().New) }},
	),
}

// logDescriptions say what the rows of the tables of changes are.
var logDescriptions = map[string]string{
	changesTable:      "The changes of objects: a row for each revision.",
	fieldChangesTable: "The fields that updates changed: a row for each.",
}

func changeColumns() []logColumn {
	text := func(name, description string, value func(*sqlstore.Change) string) logColumn {
		return logColumn{NewColumn(name, Text, description), func(c *logCursor) any { return textOrNull(value(c.change())) }}
	}
	return []logColumn{
		{NewColumn("revision", Integer, "The revision that the change gave to the object."), func(c *logCursor) any { return c.change().Revision }},
		{NewColumn("time", Time, "When the change was made, in microseconds."), func(c *logCursor) any { return c.change().Time.UTC().Format(timeFormat) }},
		text("who", "The user who made the change.", func(c *sqlstore.Change) string { return c.Author.User }),
		text("real_user", "The user who impersonated that one; NULL if nobody did.", func(c *sqlstore.Change) string { return c.Author.RealUser }),
		text("verb", "The verb of the request, or expire.", func(c *sqlstore.Change) string { return c.Author.Verb }),
		text("subresource", "The subresource of the request, such as status; NULL for the object itself.", func(c *sqlstore.Change) string { return c.Author.Subresource }),
		text("manager", "The field manager of the request.", func(c *sqlstore.Change) string { return c.Author.Manager }),
		text("audit_id", "The ID of the request in the audit log.", func(c *sqlstore.Change) string { return c.Author.AuditID }),
		text("resource", "The table of the object's resource, such as pods, or plural.group for a custom one.", func(c *sqlstore.Change) string { return tableOf(c.New.Of()) }),
		{NewColumn("namespace", Text, "The namespace of the object; empty for an object without one."), func(c *logCursor) any { return c.change().New.Namespace }},
		text("name", "The name of the object.", func(c *sqlstore.Change) string { return c.New.Name }),
		text("uid", "The UID of the object.", func(c *sqlstore.Change) string { return c.New.UID }),
	}
}

func fieldValue(text string) any {
	if text == "" {
		return nil
	}
	return RawJSON(text)
}

// logTable is one of logTables in SQLite.
type logTable struct {
	past    *past
	columns []logColumn
	fields  bool
}

// declareChanges makes the tables of changes known.
func (e *engine) declareChanges() error {
	for name, columns := range logTables {
		t := logTable{e.past, columns, name == fieldChangesTable}
		if err := addModule(e, name, ddl(columnsOf(columns)), func() logTable { return t }); err != nil {
			return err
		}
	}
	return nil
}

func columnsOf(columns []logColumn) []Column {
	plain := make([]Column, len(columns))
	for i := range columns {
		plain[i] = columns[i].Column
	}
	return plain
}

// The bits of the number of a plan over changes.
const (
	// newestFirst is the order by descending revisions; without it they ascend.
	newestFirst = 1 << iota
	// withValues says that the statement uses the objects.
	withValues
)

// logRevision is the column revision of the tables of changes.
const logRevision = 0

// BestIndex implements sqlite3.VTab. The rows have the order of their revisions by themselves, so that the database is
// asked for no more of them than the statement has the engine take.
func (t logTable) BestIndex(info *sqlite3.IndexInfo) error {
	narrow(info, columnsOf(t.columns))
	info.IdxNum = 0
	if order := info.OrderBy; len(order) == 1 && order[0].Column == logRevision {
		info.OrderByConsumed = true
		if order[0].Desc {
			info.IdxNum |= newestFirst
		}
	}
	for i, c := range t.columns {
		if c.Type == JSON && info.ColumnsUsed&(1<<i) != 0 || t.fields {
			info.IdxNum |= withValues
		}
	}
	return nil
}

// Open implements sqlite3.VTab.
func (t logTable) Open() (sqlite3.VTabCursor, error) { return &logCursor{logTable: t}, nil }

// logCursor is a scan of changes. It holds those that are read at once.
type logCursor struct {
	logTable
	reader *logReader
	read   []sqlstore.Change
	at     int
	// changed are the fields of the current change, of which the current row is the one at number.
	changed []changes.Field
	number  int
	// charged is what the budget has given for changed, in bytes.
	charged int
}

// fieldBytes is about what a field takes beside its texts.
const fieldBytes = 64

// Filter implements sqlite3.VTabCursor.
func (c *logCursor) Filter(plan int, names string, args ...sqlite3.Value) (err error) {
	c.reader.release()
	c.drop()
	*c = logCursor{logTable: c.logTable}
	if c.reader, err = c.past.selectChanges(names, args); c.reader == nil || err != nil {
		return c.past.cause.keep(err)
	}
	if plan&newestFirst != 0 {
		c.reader.newestFirst()
	}
	c.reader.query.KeysOnly, c.at = plan&withValues == 0, -1
	return c.nextChange()
}

// Next implements sqlite3.VTabCursor.
func (c *logCursor) Next() error {
	if c.number++; c.number < len(c.changed) {
		return nil
	}
	return c.nextChange()
}

// nextChange goes to the next change, and in the table of fields to the next one that has changed some.
func (c *logCursor) nextChange() (err error) {
	for {
		if c.at++; c.at >= len(c.read) {
			if c.read, err = c.reader.next(); len(c.read) == 0 || err != nil {
				return c.past.cause.keep(err)
			}
			c.at = 0
		}
		if !c.fields {
			return nil
		}
		if err := c.compare(); len(c.changed) > 0 || err != nil {
			return c.past.cause.keep(err)
		}
	}
}

// drop forgets the fields of the current change.
func (c *logCursor) drop() {
	c.past.budget.left += int64(c.charged)
	c.number, c.changed, c.charged = 0, nil, 0
}

// compare finds the fields of the current change, if it is an update.
func (c *logCursor) compare() error {
	c.drop()
	change := c.change()
	if change.Op != sqlstore.Update || change.Old == nil {
		return nil
	}
	before, beforeErr := c.past.log.Open(c.past.ctx, change.Old.Key, change.Old.Value)
	after, afterErr := c.past.log.Open(c.past.ctx, change.New.Key, change.New.Value)
	if err := errors.Join(beforeErr, afterErr); err != nil {
		return unreadable(c.past.ctx, err) // what can't be read any more has no fields
	}
	for d := range changes.CompareMasked(change.New.Key.Group, change.New.Key.Resource, before, after) {
		field := d.Field(maxValue)
		size := fieldBytes + len(field.Path) + len(field.Old) + len(field.New)
		c.charged += size
		if err := errors.Join(c.past.ctx.Err(), c.past.budget.take(size)); err != nil {
			return err
		}
		c.changed = append(c.changed, field)
	}
	return nil
}

func (c *logCursor) change() *sqlstore.Change { return &c.read[c.at] }

func (c *logCursor) field() changes.Field { return c.changed[c.number] }

// object returns a state of an object; NULL if it can't be read any more.
func (c *logCursor) object(r *sqlstore.Record) any {
	if r == nil || len(r.Value) == 0 {
		return nil
	}
	data, err := c.past.log.Open(c.past.ctx, r.Key, r.Value)
	if err == nil {
		return RawJSON(data)
	}
	if err = unreadable(c.past.ctx, err); err != nil {
		return err
	}
	return nil
}

// EOF implements sqlite3.VTabCursor.
func (c *logCursor) EOF() bool { return c.at >= len(c.read) }

// mostDifferences is more than the fields of any object.
const mostDifferences = 1 << 22

// RowID implements sqlite3.VTabCursor.
func (c *logCursor) RowID() (int64, error) {
	if !c.fields {
		return c.change().Revision, nil
	}
	return c.change().Revision*mostDifferences + int64(c.number), nil
}

// Column implements sqlite3.VTabCursor.
func (c *logCursor) Column(result sqlite3.Context, n int) error {
	value := c.columns[n].value(c)
	if err, failed := value.(error); failed {
		return c.past.cause.keep(err)
	}
	setResult(result, value)
	return nil
}
