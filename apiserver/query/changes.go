package query

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/moment"
	"byre/sqlstore"
)

// timeFormat is that of the time of a change: of one length, so that texts compare as times do where SQLite does not
// know that they are times.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// logReader reads the changes that the user of a query may see, in the order of their revisions, or the newest
// first.
type logReader struct {
	*past
	query sqlstore.ChangesQuery
	// last is the last revision to read.
	last int64
	// charged is what the budget has given for what next has returned last, in bytes.
	charged int
}

// release gives back what next has taken from the budget. A nil reader has taken nothing.
func (r *logReader) release() {
	if r != nil {
		r.budget.left += int64(r.charged)
		r.charged = 0
	}
}

const (
	// fewChanges and mostChanges are how many changes are read from the database at once: more each time, since
	// a statement may need the first ones only. logBytes bounds their values.
	fewChanges  = 64
	mostChanges = 2048
	logBytes    = 1 << 20
)

// newestFirst reverses the order. It is called before next.
func (r *logReader) newestFirst() { r.query.Before = r.last + 1 }

// next returns some changes; none at the end. The caller does not keep those before.
func (r *logReader) next() (seen []sqlstore.Change, err error) {
	r.release()
	if seen, err = r.read(); err != nil {
		return nil, err
	}
	for i := range seen {
		r.charged += changeBytes + seen[i].Size()
	}
	return seen, r.budget.take(r.charged)
}

// changeBytes is about what a change takes beside its values.
const changeBytes = 500

func (r *logReader) read() (seen []sqlstore.Change, err error) {
	rights, err := r.rightsOf()
	if err != nil {
		return nil, err
	}
	r.query.Kept, r.query.Size = true, logBytes
	for len(seen) == 0 {
		r.query.Limit = min(max(2*r.query.Limit, fewChanges), mostChanges)
		read, err := r.log.Driver.Changes(r.ctx, r.query)
		if len(read) == 0 || err != nil {
			return nil, err
		}
		created := changes.NewCreations(r.log.Driver)
		for i := range read {
			c := &read[i]
			if r.query.Before != 0 {
				r.query.Before = c.Revision
			} else if r.query.After = c.Revision; c.Revision > r.last {
				return seen, nil
			}
			if changes.IsInternal(c.New.Key) {
				continue
			}
			sees, err := rights.Sees(r.ctx, c, created)
			if err != nil {
				return nil, err
			}
			if sees {
				seen = append(seen, *c)
			}
		}
	}
	return seen, nil
}

// tableOf is the name of the table of a resource, as the column resource has it: that of a built-in one is its
// plural.
func tableOf(r sqlstore.Resource) string {
	if r.Owner == sqlstore.Custom {
		return strings.ToLower(r.String())
	}
	return r.Resource
}

// narrow takes the constraints of a plan over changes: those on namespace, name, resource, revision, and the least
// time. The columns and operators of the constraints that it uses, in the order of the arguments, become info.IdxStr.
func narrow(info *sqlite3.IndexInfo, columns []Column) {
	const many = 1e6
	info.EstimatedCost, info.EstimatedRows = many, many
	var used []string
	for i, c := range info.Constraint {
		if !c.Usable || c.Column < 0 {
			continue
		}
		operator, ok := operators[c.Op]
		switch columns[c.Column].Name {
		case "namespace", "name", "resource":
			ok = operator == "=" && info.Collation(i) == "BINARY"
		case "revision":
		case "time":
			ok = (operator == ">" || operator == "=") && info.Collation(i) == timeCollation
		default:
			continue
		}
		use := columns[c.Column].Name + operator
		if !ok || slices.Contains(used, use) {
			continue
		}
		used = append(used, use)
		info.ConstraintUsage[i].ArgvIndex = len(used)
		info.EstimatedCost /= 10
		info.EstimatedRows = max(info.EstimatedRows/10, 1)
	}
	info.IdxStr = strings.Join(used, " ")
}

// operators are those of the constraints that narrow uses: equal, at least or more, at most or less.
var operators = map[sqlite3.IndexConstraintOp]string{
	sqlite3.INDEX_CONSTRAINT_EQ: "=", sqlite3.INDEX_CONSTRAINT_GT: ">", sqlite3.INDEX_CONSTRAINT_GE: ">",
	sqlite3.INDEX_CONSTRAINT_LT: "<", sqlite3.INDEX_CONSTRAINT_LE: "<",
}

// selectChanges returns the reader of a plan; nil if nothing can match. The constraints are those that narrow has
// chosen. SQLite itself compares the rows with the constraints once more: a value that is of an unexpected type
// narrows nothing.
func (p *past) selectChanges(constraints string, args []sqlite3.Value) (*logReader, error) {
	r, name := &logReader{past: p, last: p.latest}, ""
	for i, constraint := range strings.Fields(constraints) {
		arg := args[i]
		column, operator := constraint[:len(constraint)-1], constraint[len(constraint)-1]
		switch kind := arg.Type(); {
		case kind == sqlite3.NULL:
			return nil, nil // nothing is equal to NULL, nor greater
		case kind == sqlite3.INTEGER && column == "revision":
			if operator != '<' {
				r.query.After = max(r.query.After, max(arg.Int64(), 1)-1)
			}
			if operator != '>' {
				r.last = min(r.last, arg.Int64())
			}
		case column == "time" && kind != sqlite3.BLOB:
			after, err := p.before(arg.RawText())
			if err != nil {
				return nil, err
			}
			r.query.After = max(r.query.After, after)
		case kind != sqlite3.TEXT:
		case column == "namespace":
			r.query.Namespaces = []string{arg.Text()}
		case column == "name":
			name = arg.Text()
		case column == "resource":
			of, err := p.resource(arg.Text())
			if err != nil {
				return nil, err
			}
			r.query.Of = of
		}
	}
	if r.query.Namespaces != nil {
		r.query.Name = name
	}
	if r.last <= r.query.After {
		return nil, nil
	}
	return r, nil
}

// resource returns the only resource whose table has a name; nil if there are others too, or none.
func (p *past) resource(name string) (of *sqlstore.Resource, err error) {
	histories, err := p.historiesOf()
	for i := range histories {
		if tableOf(histories[i].Resource) != name {
			continue
		}
		if of != nil {
			return nil, err
		}
		of = &histories[i].Resource
	}
	return of, err
}

// before returns a revision that is before all changes whose time is not less than a text.
func (p *past) before(text []byte) (int64, error) {
	t, err := p.times.parse(text)
	if err != nil {
		return 0, err
	}
	return p.log.Driver.RevisionAt(p.ctx, t.Add(-time.Second))
}

// ago is the function that returns the time of a duration before the beginning of the query: ago('90m').
func ago(began time.Time) sqlite3.ScalarFunction {
	return func(result sqlite3.Context, args ...sqlite3.Value) {
		d, err := moment.ParseDuration(args[0].Text())
		if err != nil {
			result.ResultError(errAgo)
			return
		}
		result.ResultText(began.Add(-d).UTC().Format(timeFormat))
	}
}

// event is by whom and when a state of an object was made, or ended.
type event struct {
	revision           int64
	time               time.Time
	who, verb, manager string
}

func eventOf(c *sqlstore.Change) *event {
	return &event{c.Revision, c.Time, c.Author.User, c.Author.Verb, c.Author.Manager}
}

// textOrNull is NULL for what a change does not have.
func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

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
		logColumn{NewColumn("replaces", Integer, "The revision that the object had before; NULL if it did not exist."),
			func(c *logCursor) any {
				if c.change().Old == nil {
					return nil
				}
				return c.change().Old.Revision
			}},
		logColumn{NewColumn("before", JSON, "The object before the change, as it was stored; NULL for a create."),
			func(c *logCursor) any {
				return c.object(c.change().Old)
			}},
		logColumn{NewColumn("after", JSON, "The object after the change, as it was stored; NULL for a delete."),
			func(c *logCursor) any {
				return c.object(&c.change().New)
			}},
	),
	fieldChangesTable: append(changeColumns(),
		logColumn{NewColumn("path", Text, "The field, such as spec.replicas."), func(c *logCursor) any {
			return c.field().Path
		}},
		logColumn{NewColumn("old", JSON, "The value before; NULL if the field did not exist."), func(c *logCursor) any {
			return fieldValue(c.field().Old)
		}},
		logColumn{NewColumn("new", JSON, "The value after; NULL if the field does not exist any more."),
			func(c *logCursor) any {
				return fieldValue(c.field().New)
			}},
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
		{NewColumn("revision", Integer, "The revision that the change gave to the object."), func(c *logCursor) any {
			return c.change().Revision
		}},
		{NewColumn("time", Time, "When the change was made, in microseconds."), func(c *logCursor) any {
			return c.change().Time.UTC().Format(timeFormat)
		}},
		text("who", "The user who made the change.", func(c *sqlstore.Change) string { return c.Author.User }),
		text("real_user", "The user who impersonated that one; NULL if nobody did.", func(c *sqlstore.Change) string {
			return c.Author.RealUser
		}),
		text("verb", "The verb of the request, or expire.", func(c *sqlstore.Change) string { return c.Author.Verb }),
		text("subresource", "The subresource of the request, such as status; NULL for the object itself.",
			func(c *sqlstore.Change) string {
				return c.Author.Subresource
			}),
		text("manager", "The field manager of the request.", func(c *sqlstore.Change) string { return c.Author.Manager }),
		text("audit_id", "The ID of the request in the audit log.", func(c *sqlstore.Change) string {
			return c.Author.AuditID
		}),
		text("resource", "The table of the object's resource, such as pods, or plural.group for a custom one.",
			func(c *sqlstore.Change) string {
				return tableOf(c.New.Of())
			}),
		{NewColumn("namespace", Text, "The namespace of the object; empty for an object without one."),
			func(c *logCursor) any {
				return c.change().New.Namespace
			}},
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
	columns := columnsOf(t.columns)
	if err := t.past.times.check(info, columns); err != nil {
		return t.past.cause.keep(err)
	}
	narrow(info, columns)
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
	changed []changes.FieldText
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
	for d := range c.past.log.Compare(c.past.ctx, change.New.Key, before, after) {
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

func (c *logCursor) field() changes.FieldText { return c.changed[c.number] }

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
