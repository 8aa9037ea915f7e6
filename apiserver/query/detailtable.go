package query

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/ncruces/go-sqlite3"

	"byre/watch"
)

// declareDetails makes the detail tables known that a statement may name, and their functions.
func (e *engine) declareDetails(ctx context.Context, tables Tables, sql string) error {
	known := newResources(ctx, tables)
	if err := e.addFunctions(known); err != nil {
		return err
	}
	for name, of := range detailsIn(sql) {
		if err := e.declareDetail(name, of, known); err != nil {
			return err
		}
	}
	return nil
}

// detailsIn yields the detail tables that a statement may name: one that it does name is in its text.
func detailsIn(sql string) iter.Seq2[string, DetailTable] {
	return func(yield func(string, DetailTable) bool) {
		sql = strings.ToLower(sql)
		for name, of := range detailTables {
			if strings.Contains(sql, name) && !yield(name, of) {
				return
			}
		}
	}
}

// detailTable is a DetailTable as a virtual table. A view over all tables would read each of them, and ask the
// authorizer about each, before it is known that the statement wants one resource.
type detailTable struct {
	DetailTable
	name   string
	engine *engine
	known  *resources
	// views are the tables of the resources that the statement may show, by the names of these. BestIndex
	// adds to them: each plan has the resources that its constraints allow.
	views map[string]*view
	// podsView has the Pods that selectors select, nil for other tables; pods has those of each moment.
	podsView *view
	pods     map[*selection]*podsByNamespace
}

// declareDetail makes a detail table known under a name.
func (e *engine) declareDetail(name string, of DetailTable, known *resources) error {
	return addModule(e, name, ddl(of.Columns), func() *detailTable {
		return &detailTable{
			DetailTable: of, name: name, engine: e, known: known,
			views: map[string]*view{}, pods: map[*selection]*podsByNamespace{},
		}
	})
}

// BestIndex implements sqlite3.VTab. The number of the plan has the bit of each column that Filter gets a value of,
// in the order of the columns.
func (t *detailTable) BestIndex(info *sqlite3.IndexInfo) error {
	if err := t.engine.past.times.check(info, t.Columns); err != nil {
		return t.engine.cause.keep(err)
	}
	equal, err := equalities(info, t.Columns, detailMoment)
	if err != nil {
		return err
	}
	for i, c := range info.Constraint {
		info.ConstraintUsage[i].Omit = c.Op == sqlite3.INDEX_CONSTRAINT_EQ && c.Column == detailMoment
	}
	info.IdxNum, info.EstimatedCost = 0, 1e7
	arguments := 0
	for _, column := range slices.Sorted(maps.Keys(equal)) {
		arguments++
		info.ConstraintUsage[equal[column]].ArgvIndex = arguments
		info.IdxNum |= 1 << column
		if column < detailMoment {
			info.EstimatedCost /= 100
		}
	}
	info.EstimatedRows = max(1, int64(info.EstimatedCost))
	if resource, ok := equal[detailResource]; ok && t.Values[detailResource] == nil {
		if value, err := info.RHSValue(resource); err == nil && value.Type() == sqlite3.TEXT {
			return t.engine.cause.keep(t.show(value.Text()))
		}
	}
	return t.engine.cause.keep(t.showAll())
}

// show adds the table of a resource to those that the statement may show.
func (t *detailTable) show(resource string) error {
	if t.views[resource] != nil || t.Tables != nil && !slices.Contains(t.Tables, resource) {
		return nil
	}
	table, err := t.known.table(resource)
	if table == nil || err != nil {
		return err
	}
	t.views[resource] = t.open(resource, table)
	if t.Selectors != nil && t.podsView == nil {
		if table, err = t.known.table(podsTable); table != nil {
			t.podsView = t.open(podsTable, table)
		}
	}
	return err
}

func (t *detailTable) showAll() error {
	tables := t.Tables
	if tables == nil {
		all, err := t.known.all()
		if err != nil {
			return err
		}
		tables = slices.Collect(maps.Keys(all))
	}
	for _, name := range tables {
		if err := t.show(name); err != nil {
			return err
		}
	}
	return nil
}

// open makes the statement read a table.
func (t *detailTable) open(resource string, table *Table) *view {
	v := t.engine.view(resource, table)
	v.detail = t.name
	return v
}

// Open implements sqlite3.VTab.
func (t *detailTable) Open() (sqlite3.VTabCursor, error) {
	return &detailCursor{detailTable: t, maker: newRowMaker(&t.DetailTable, t.known), own: t.ownColumn()}, nil
}

// detailCursor is a scan of a detail table: of tables, of the rows of each, and of the elements of each row.
type detailCursor struct {
	*detailTable
	maker    *rowMaker
	own      int              // the first column whose values are those of elements
	want     []*string        // by column; nil is any value
	left     []*selection     // the tables that are not read yet
	reads    *selection       // the one that is read
	selected *podsByNamespace // the Pods of the moment; nil for tables other than selectors
	rows     []*watch.Entry   // of reads, from the current one
	elements []detailRow      // of the current row
	at       int              // among elements
	most     int              // the most bytes that the elements of a row have had, which are taken from the budget
	scanned  int
}

// elementBytes and valueBytes are about what an element takes beside its values, and one of these.
const (
	elementBytes = 40
	valueBytes   = 40
)

// detailRow is a row that is made of one object.
type detailRow struct {
	index  int
	values []any // of the columns from own on
}

// Filter implements sqlite3.VTabCursor.
func (c *detailCursor) Filter(plan int, _ string, args ...sqlite3.Value) error {
	c.want, c.left, c.selected, c.rows, c.elements, c.at = make([]*string, len(c.Columns)), nil, nil, nil, nil, 0
	moment := ""
	for column := range c.Columns {
		if plan&(1<<column) == 0 {
			continue
		}
		switch arg := args[0]; {
		case arg.Type() == sqlite3.NULL:
			return nil // nothing is equal to NULL
		case column == detailMoment:
			moment = arg.Text()
		case arg.Type() == sqlite3.TEXT:
			value := arg.Text()
			c.want[column] = &value
		default: // SQLite converts the value before it compares
		}
		args = args[1:]
	}
	err := c.choose(moment, plan&(1<<detailMoment) == 0)
	if err == nil {
		err = c.settle()
	}
	return c.engine.cause.keep(err)
}

// choose chooses the tables to read, at a moment or now.
func (c *detailCursor) choose(moment string, isNow bool) error {
	shown := func(v *view) (*selection, error) {
		if isNow {
			return v.now, nil
		}
		return c.engine.past.at(v, moment)
	}
	for _, name := range slices.Sorted(maps.Keys(c.views)) {
		if c.Values[detailResource] == nil && !c.accepts(detailResource, name) {
			continue
		}
		part, err := shown(c.views[name])
		if err != nil {
			return err
		}
		c.left = append(c.left, part)
	}
	if c.podsView != nil {
		pods, err := shown(c.podsView)
		if err != nil {
			return err
		}
		if c.pods[pods] == nil {
			c.pods[pods] = &podsByNamespace{pods, map[string][]pod{}}
		}
		c.selected = c.pods[pods]
	}
	if !isNow && isEmpty(c.left, c.selected) {
		warnEmpty(c.engine.ctx, c.name+" at "+moment)
	}
	return nil
}

func (c *detailCursor) accepts(column int, value any) bool {
	return c.want[column] == nil || value == *c.want[column]
}

// settle moves on to the next element that has the values wanted, unless the cursor is at one.
func (c *detailCursor) settle() error {
	for c.at >= len(c.elements) {
		if len(c.rows) > 0 {
			c.rows = c.rows[1:]
		}
		for len(c.rows) == 0 {
			if len(c.left) == 0 {
				return nil
			}
			c.reads, c.left = c.left[0], c.left[1:]
			if err := c.begin(); err != nil {
				return err
			}
		}
		if c.scanned++; c.scanned%interval == 0 && c.engine.ctx.Err() != nil {
			return c.engine.ctx.Err()
		}
		if err := c.split(c.rows[0]); err != nil {
			return err
		}
	}
	return nil
}

// begin begins to read a table.
func (c *detailCursor) begin() (err error) {
	namespace, name := c.want[detailNamespace], c.want[detailName]
	switch {
	case c.Values[detailName] != nil:
		path := c.Values[detailName][0].Path
		named := slices.IndexFunc(c.reads.Columns, func(column Column) bool { return slices.Equal(column.Path, path) })
		if name == nil || named < 0 {
			c.rows, err = c.reads.all()
		} else {
			c.rows, err = c.reads.withValue(named, "", *name)
		}
	case namespace == nil:
		c.rows, err = c.reads.all()
	case name == nil:
		c.rows, err = c.reads.in(*namespace)
	default:
		c.rows, err = c.reads.withKey(*namespace, *name)
	}
	return err
}

// split finds the elements of a row that have the values wanted.
func (c *detailCursor) split(e *watch.Entry) error {
	c.elements, c.at = c.elements[:0], 0
	if c.Values[detailName] == nil && (!c.accepts(detailNamespace, e.Namespace) || !c.accepts(detailName, e.Name)) {
		return nil
	}
	body, _, err := c.reads.read(e, c.reads.isPast())
	if err != nil {
		return unreadable(c.engine.ctx, err)
	}
	rows := c.maker.rows
	if c.Selectors != nil {
		rows = c.selectedBy
	}
	index, kept := -1, 0
	for values, err := range rows(body) {
		if err != nil {
			return err
		}
		if index++; index%interval == 0 && c.engine.ctx.Err() != nil {
			return c.engine.ctx.Err()
		}
		wanted := true
		for i, value := range values {
			wanted = wanted && c.accepts(c.own+i, value)
		}
		if !wanted {
			continue
		}
		c.elements = append(c.elements, detailRow{index, values})
		kept += elementBytes
		for _, value := range values {
			kept += valueBytes + length(value)
		}
		if more := kept - c.most; more > 0 {
			c.most = kept
			if err := c.engine.budget.take(more); err != nil {
				return err
			}
		}
	}
	return nil
}

// Next implements sqlite3.VTabCursor.
func (c *detailCursor) Next() error {
	c.at++
	return c.engine.cause.keep(c.settle())
}

// EOF implements sqlite3.VTabCursor.
func (c *detailCursor) EOF() bool { return c.at >= len(c.elements) }

// RowID implements sqlite3.VTabCursor. SQLite finds by it that two scans have met the same row. An object has
// less than a million elements.
func (c *detailCursor) RowID() (int64, error) {
	return c.rows[0].Revision<<20 | int64(c.elements[c.at].index), nil
}

// Column implements sqlite3.VTabCursor.
func (c *detailCursor) Column(result sqlite3.Context, n int) error {
	switch own := n - c.own; {
	case own >= 0:
		setResult(result, c.elements[c.at].values[own])
	case n == detailResource:
		result.ResultText(c.reads.name)
	case n == detailNamespace:
		result.ResultText(c.rows[0].Namespace)
	case n == detailName:
		result.ResultText(c.rows[0].Name)
	}
	return nil
}
