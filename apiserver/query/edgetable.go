package query

import (
	"maps"
	"slices"

	"github.com/ncruces/go-sqlite3"

	"byre/watch"
)

// edgeTable is an edge as a virtual table. A view over all tables would read each of them, and ask the authorizer
// about each, before it is known that the statement wants one resource.
type edgeTable struct {
	edge
	name   string
	engine *engine
	known  *resources
	// views are the tables of the resources that the statement may show, by the names of these. BestIndex
	// adds to them: each plan has the resources that its constraints allow.
	views map[string]*view
	// pods are the Pods that selectors select; nil for other edges.
	pods *podsByNamespace
}

// The columns that every edge begins with.
const (
	edgeResource = iota
	edgeNamespace
	edgeName
	edgeOwn // the first of an edge's own columns
)

// declareEdgeTable makes an edge known under a name.
func (e *engine) declareEdgeTable(name string, of edge, known *resources) error {
	return sqlite3.CreateModule(e.conn, name, nil, func(conn *sqlite3.Conn, _, _, _ string, _ ...string) (*edgeTable, error) { //nolint:staticcheck // the method that replaces it needs Go 1.27
		return &edgeTable{edge: of, name: name, engine: e, known: known, views: map[string]*view{}}, conn.DeclareVTab(ddl(of.columns))
	})
}

// BestIndex implements sqlite3.VTab. The number of the plan has the bit of each column that Filter gets a value of,
// in the order of the columns.
func (t *edgeTable) BestIndex(info *sqlite3.IndexInfo) error {
	equal := make([]int, len(t.columns))
	for i := range equal {
		equal[i] = -1
	}
	for i, c := range info.Constraint {
		if c.Usable && c.Op == sqlite3.INDEX_CONSTRAINT_EQ && c.Column >= 0 && t.columns[c.Column].Type == Text && info.Collation(i) == "BINARY" {
			equal[c.Column] = i
		}
	}
	info.IdxNum, info.EstimatedCost = 0, 1e7
	arguments := 0
	for column, constraint := range equal {
		if constraint < 0 {
			continue
		}
		arguments++
		info.ConstraintUsage[constraint].ArgvIndex = arguments
		info.IdxNum |= 1 << column
		if column < edgeOwn {
			info.EstimatedCost /= 100
		}
	}
	info.EstimatedRows = max(1, int64(info.EstimatedCost))
	if resource := equal[edgeResource]; resource >= 0 {
		if value, err := info.RHSValue(resource); err == nil && value.Type() == sqlite3.TEXT {
			return t.show(value.Text())
		}
	}
	return t.showAll()
}

// show adds the table of a resource to those that the statement may show.
func (t *edgeTable) show(resource string) error {
	if t.views[resource] != nil || t.tables != nil && !slices.Contains(t.tables, resource) {
		return nil
	}
	table, err := t.known.table(resource)
	if table == nil || err != nil {
		return err
	}
	t.views[resource] = t.open(resource, table)
	if t.selects && t.pods == nil {
		if table, err = t.known.table(podsTable); table != nil {
			t.pods = &podsByNamespace{t.open(podsTable, table), map[string][]pod{}}
		}
	}
	return err
}

func (t *edgeTable) showAll() error {
	tables := t.tables
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
func (t *edgeTable) open(resource string, table *Table) *view {
	v := t.engine.view(resource, table)
	v.edge = t.name
	return v
}

// Open implements sqlite3.VTab.
func (t *edgeTable) Open() (sqlite3.VTabCursor, error) {
	c := &edgeCursor{edgeTable: t}
	c.found = make([][]byte, len(t.paths))
	for i, path := range t.paths {
		c.extractor.add(i, path)
	}
	return c, nil
}

// edgeCursor is a scan of an edge: of tables, of the rows of each, and of the elements of each row.
type edgeCursor struct {
	*edgeTable
	extractor extractor
	found     [][]byte  // the JSON at the paths of the edge
	want      []*string // by column; nil is any value
	left      []string  // the tables that are not read yet
	view      *view
	rows      []*watch.Entry // of view, from the current one
	elements  []element      // of the current row
	at        int            // among elements
	scanned   int
}

// element is an element of the list or map of a row.
type element struct {
	index  int
	values []any // of the edge's own columns
}

// Filter implements sqlite3.VTabCursor.
func (c *edgeCursor) Filter(plan int, _ string, args ...sqlite3.Value) error {
	c.want, c.left, c.rows, c.elements, c.at = make([]*string, len(c.columns)), nil, nil, nil, 0
	for column := range c.columns {
		if plan&(1<<column) == 0 {
			continue
		}
		switch arg := args[0]; arg.Type() {
		case sqlite3.TEXT:
			value := arg.Text()
			c.want[column] = &value
		case sqlite3.NULL:
			return nil // nothing is equal to NULL
		default: // SQLite converts the value before it compares
		}
		args = args[1:]
	}
	for name := range c.views {
		if c.accepts(edgeResource, name) {
			c.left = append(c.left, name)
		}
	}
	slices.Sort(c.left)
	return c.engine.cause.keep(c.settle())
}

func (c *edgeCursor) accepts(column int, value any) bool {
	return c.want[column] == nil || value == *c.want[column]
}

// settle moves on to the next element that has the values wanted, unless the cursor is at one.
func (c *edgeCursor) settle() error {
	for c.at >= len(c.elements) {
		if len(c.rows) > 0 {
			c.rows = c.rows[1:]
		}
		for len(c.rows) == 0 {
			if len(c.left) == 0 {
				return nil
			}
			if err := c.begin(c.left[0]); err != nil {
				return err
			}
			c.left = c.left[1:]
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

// begin begins to read the table of a resource.
func (c *edgeCursor) begin(resource string) (err error) {
	c.view = c.views[resource]
	namespace, name := c.want[edgeNamespace], c.want[edgeName]
	switch {
	case namespace == nil:
		c.rows, err = c.view.now.all()
	case name == nil:
		c.rows, err = c.view.now.in(*namespace)
	default:
		c.rows, err = c.view.now.withKey(*namespace, *name)
	}
	return err
}

// split finds the elements of a row that have the values wanted.
func (c *edgeCursor) split(e *watch.Entry) error {
	c.elements, c.at = c.elements[:0], 0
	if !c.accepts(edgeNamespace, e.Namespace) || !c.accepts(edgeName, e.Name) {
		return nil
	}
	encoded, err := c.view.Store.Encode(c.engine.ctx, e, c.view.Store.Stored())
	if err != nil {
		return c.engine.ctx.Err() // what can't be decrypted or decoded has no elements
	}
	clear(c.found)
	c.extractor.find(encoded.Body(), c.found)
	index := -1
	for values, err := range c.rowsOf(c, c.found) {
		if err != nil {
			return err
		}
		index++
		wanted := true
		for i, value := range values {
			wanted = wanted && c.accepts(edgeOwn+i, value)
		}
		if wanted {
			c.elements = append(c.elements, element{index, values})
		}
	}
	return nil
}

// Next implements sqlite3.VTabCursor.
func (c *edgeCursor) Next() error {
	c.at++
	return c.engine.cause.keep(c.settle())
}

// EOF implements sqlite3.VTabCursor.
func (c *edgeCursor) EOF() bool { return c.at >= len(c.elements) }

// RowID implements sqlite3.VTabCursor. SQLite finds by it that two scans have met the same row. An object has
// less than a million elements.
func (c *edgeCursor) RowID() (int64, error) {
	return c.rows[0].Revision<<20 | int64(c.elements[c.at].index), nil
}

// Column implements sqlite3.VTabCursor.
func (c *edgeCursor) Column(result sqlite3.Context, n int) error {
	switch n {
	case edgeResource:
		result.ResultText(c.view.name)
	case edgeNamespace:
		result.ResultText(c.rows[0].Namespace)
	case edgeName:
		result.ResultText(c.rows[0].Name)
	default:
		setResult(result, c.elements[c.at].values[n-edgeOwn])
	}
	return nil
}
