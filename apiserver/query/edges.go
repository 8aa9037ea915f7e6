package query

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/storage/transcode"
	"byre/watch"
)

// Edge is a table of what an object has several of. It is made of the tables of the objects, and so shows what
// its reader sees of these.
type Edge struct {
	Description string
	// Columns begin with the resource, the namespace and the name of the object, and the moment.
	Columns []Column
	// Tables are those that the edge is made of; nil for all. selects says that it needs the Pods beside.
	Tables  []string
	selects bool
	// about is the path of the name of the object that an object of the table tells of, of which the rows then are;
	// nil if they are of the objects themselves.
	about []string
	// rowsOf makes the rows of an object from the JSON at Paths.
	Paths  [][]string
	rowsOf rowsOf
}

// edges are the edges by their names.
var edges = map[string]Edge{
	"labels":      mapEdge("label", "labels"),
	"annotations": mapEdge("annotation", "annotations"),
	"owners": listEdge("The owners of all objects.", nil, []string{"metadata", "ownerReferences"},
		NewColumn("kind", Text, "The kind of the owner.", "kind"),
		NewColumn("owner", Text, "The name of the owner.", "name"),
		NewColumn("uid", Text, "The UID of the owner.", "uid"),
		NewColumn("controller", Boolean, "Whether the owner controls the object.", "controller"),
	),
	"conditions": listEdge("The conditions in the status of all objects.", nil, []string{"status", "conditions"},
		NewColumn("type", Text, "What the condition is about, such as Ready.", "type"),
		NewColumn("status", Text, "True, False or Unknown.", "status"),
		NewColumn("reason", Text, "Why, in one word.", "reason"),
		NewColumn("message", Text, "Why, for people.", "message"),
		NewColumn("changed", Time, "When the status last changed.", "lastTransitionTime"),
	),
	"containers": {
		Description: "The containers of Pods, with their state.",
		Columns: append(edgeColumns(),
			NewColumn("kind", Text, "main, init or ephemeral."),
			NewColumn("container", Text, "The name of the container."),
			NewColumn("image", Text, "The image that is asked for."),
			NewColumn("cpu_request", Quantity, "In cores; NULL without a request."),
			NewColumn("memory_request", Quantity, "In bytes."),
			NewColumn("cpu_limit", Quantity, "In cores; NULL without a limit."),
			NewColumn("memory_limit", Quantity, "In bytes."),
			NewColumn("state", Text, "waiting, running or terminated; NULL before the kubelet has told."),
			NewColumn("reason", Text, "Why it is in that state, such as CrashLoopBackOff."),
			NewColumn("ready", Boolean, "Whether it passes its readiness probe."),
			NewColumn("restarts", Integer, "How often it was started again."),
		),
		Tables: []string{podsTable},
		Paths:  containerLists,
		rowsOf: containersOf,
	},
	"container_env_refs": {
		Description: "Where the variables of the containers of Pods come from, if not from a text.",
		Columns: append(edgeColumns(),
			NewColumn("container", Text, "The name of the container."),
			NewColumn("variable", Text, "The name of the variable; NULL if all keys of the source become variables."),
			NewColumn("type", Text, "configMap, secret, field, resource or file."),
			NewColumn("source", Text, "The name of the ConfigMap, Secret, container or volume; NULL for the Pod itself."),
			NewColumn("key", Text, "The key or the field; NULL for all keys."),
			NewColumn("optional", Boolean, "Whether the container starts without the source."),
		),
		Tables: []string{podsTable},
		Paths:  containerLists[:3],
		rowsOf: envRefsOf,
	},
	"volumes": {
		Description: "The volumes of Pods. A projected volume has a row for each of its sources besides.",
		Columns: append(edgeColumns(),
			NewColumn("volume", Text, "The name of the volume."),
			NewColumn("type", Text, "Where it comes from: configMap, secret, persistentVolumeClaim, emptyDir, …"),
			NewColumn("source", Text, "The name of the ConfigMap, Secret or claim; NULL for other types."),
		),
		Tables: []string{podsTable},
		Paths:  [][]string{{"spec", "volumes"}},
		rowsOf: volumesOf,
	},
	"selectors": {
		Description: "The Pods that the selector of a workload, Service, PodDisruptionBudget or NetworkPolicy selects.",
		Columns:     append(edgeColumns(), NewColumn("pod", Text, "The name of the Pod, which is in the same namespace.")),
		Tables:      slices.Sorted(maps.Keys(selectorMembers)),
		selects:     true,
		Paths:       [][]string{{"spec"}},
		rowsOf:      selectedOf,
	},
	"events_about": {
		Description: "Events, by the object that they are about.",
		Columns: append([]Column{
			NewColumn("resource", Text, "The resource of the object; NULL for a kind that is not served."),
		}, append(edgeColumns()[edgeNamespace:],
			NewColumn("type", Text, "Normal or Warning."),
			NewColumn("reason", Text, "What has happened, in one word, such as FailedScheduling."),
			NewColumn("message", Text, "What has happened, for people."),
			NewColumn("count", Integer, "How often it has happened."),
			NewColumn("first", Time, "When it happened first."),
			NewColumn("last", Time, "When it happened last."),
			NewColumn("reporter", Text, "The component that has told."),
		)...),
		Tables: []string{"events"},
		about:  []string{"involvedObject", "name"},
		Paths:  eventPaths,
		rowsOf: toldOf,
	},
	"node_taints": listEdge("The taints of Nodes.", []string{"nodes"}, []string{"spec", "taints"},
		NewColumn("key", Text, "The key of the taint.", "key"),
		NewColumn("value", Text, "The value of the taint.", "value"),
		NewColumn("effect", Text, "NoSchedule, PreferNoSchedule or NoExecute.", "effect"),
	),
	"rbac_rules": {
		Description: "What Roles and ClusterRoles allow: a row for each API group, resource and verb of a rule.",
		Columns: append(edgeColumns(),
			NewColumn("api_group", Text, "The API group; * is all."),
			NewColumn("rule_resource", Text, "The resource, or resource/subresource; * is all."),
			NewColumn("verb", Text, "The verb; * is all."),
			NewColumn("resource_names", JSON, "The only objects that the rule is for; NULL for all."),
		),
		Tables: []string{"roles", "clusterroles"},
		Paths:  [][]string{{"rules"}},
		rowsOf: rulesOf,
	},
}

// mapEdge returns the edge of a map of texts in the metadata of all objects.
func mapEdge(what, member string) Edge {
	return Edge{
		Description: "The " + member + " of all objects.",
		Paths:       [][]string{{"metadata", member}},
		rowsOf:      membersOf,
		Columns: append(edgeColumns(),
			NewColumn("key", Text, "The key of the "+what+"."),
			NewColumn("value", Text, "The value of the "+what+"."),
		),
	}
}

// listEdge returns the edge of the list of objects at a path of the objects of tables, with a column for some members.
func listEdge(description string, tables, path []string, members ...Column) Edge {
	for i := range members {
		members[i].Path = append(slices.Clone(path), members[i].Path...)
	}
	return Edge{Description: description, Tables: tables, Paths: [][]string{path}, rowsOf: listOf, Columns: append(edgeColumns(), members...)}
}

func edgeColumns() []Column {
	return []Column{
		NewColumn("resource", Text, "The resource of the object: the shortest name of its table."),
		NewColumn("namespace", Text, "The namespace of the object; empty for an object without one."),
		NewColumn("name", Text, "The name of the object."),
		{Name: MomentName, Type: Text}, // the argument of the edge as a function: labels('-1h')
	}
}

// Edges returns the edges by their names. They are immutable.
func Edges() map[string]Edge { return edges }

// containerLists are the paths of the containers of a Pod, and then of their statuses: main, init and ephemeral ones.
var containerLists = [][]string{
	{"spec", "containers"}, {"spec", "initContainers"}, {"spec", "ephemeralContainers"},
	{"status", "containerStatuses"}, {"status", "initContainerStatuses"}, {"status", "ephemeralContainerStatuses"},
}

// declareEdges makes the edges known that a statement may name, and their functions.
func (e *engine) declareEdges(ctx context.Context, tables Tables, sql string) error {
	known := newResources(ctx, tables)
	if err := e.addFunctions(known); err != nil {
		return err
	}
	for name, edge := range edgesIn(sql) {
		if err := e.declareEdgeTable(name, edge, known); err != nil {
			return err
		}
	}
	return nil
}

// edgesIn yields the edges that a statement may name: an edge that it does name is in its text.
func edgesIn(sql string) iter.Seq2[string, Edge] {
	return func(yield func(string, Edge) bool) {
		sql = strings.ToLower(sql)
		for name, edge := range edges {
			if strings.Contains(sql, name) && !yield(name, edge) {
				return
			}
		}
	}
}

// edgeTable is an edge as a virtual table. A view over all tables would read each of them, and ask the authorizer
// about each, before it is known that the statement wants one resource.
type edgeTable struct {
	Edge
	name   string
	engine *engine
	known  *resources
	// views are the tables of the resources that the statement may show, by the names of these. BestIndex
	// adds to them: each plan has the resources that its constraints allow.
	views map[string]*view
	// podsView has the Pods that selectors select, nil for other edges; pods has those of each moment.
	podsView *view
	pods     map[*selection]*podsByNamespace
}

// The columns that every edge begins with.
const (
	edgeResource = iota
	edgeNamespace
	edgeName
	edgeMoment
	edgeOwn // the first of an edge's own columns
)

// declareEdgeTable makes an edge known under a name.
func (e *engine) declareEdgeTable(name string, of Edge, known *resources) error {
	return addModule(e, name, ddl(of.Columns), func() *edgeTable {
		return &edgeTable{
			Edge: of, name: name, engine: e, known: known,
			views: map[string]*view{}, pods: map[*selection]*podsByNamespace{},
		}
	})
}

// BestIndex implements sqlite3.VTab. The number of the plan has the bit of each column that Filter gets a value of,
// in the order of the columns.
func (t *edgeTable) BestIndex(info *sqlite3.IndexInfo) error {
	equal, err := equalities(info, t.Columns, edgeMoment)
	if err != nil {
		return err
	}
	for i, c := range info.Constraint {
		info.ConstraintUsage[i].Omit = c.Op == sqlite3.INDEX_CONSTRAINT_EQ && c.Column == edgeMoment
	}
	info.IdxNum, info.EstimatedCost = 0, 1e7
	arguments := 0
	for _, column := range slices.Sorted(maps.Keys(equal)) {
		arguments++
		info.ConstraintUsage[equal[column]].ArgvIndex = arguments
		info.IdxNum |= 1 << column
		if column < edgeMoment {
			info.EstimatedCost /= 100
		}
	}
	info.EstimatedRows = max(1, int64(info.EstimatedCost))
	if resource, ok := equal[edgeResource]; ok && t.about == nil {
		if value, err := info.RHSValue(resource); err == nil && value.Type() == sqlite3.TEXT {
			return t.engine.cause.keep(t.show(value.Text()))
		}
	}
	return t.engine.cause.keep(t.showAll())
}

// show adds the table of a resource to those that the statement may show.
func (t *edgeTable) show(resource string) error {
	if t.views[resource] != nil || t.Tables != nil && !slices.Contains(t.Tables, resource) {
		return nil
	}
	table, err := t.known.table(resource)
	if table == nil || err != nil {
		return err
	}
	t.views[resource] = t.open(resource, table)
	if t.selects && t.podsView == nil {
		if table, err = t.known.table(podsTable); table != nil {
			t.podsView = t.open(podsTable, table)
		}
	}
	return err
}

func (t *edgeTable) showAll() error {
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
func (t *edgeTable) open(resource string, table *Table) *view {
	v := t.engine.view(resource, table)
	v.edge = t.name
	return v
}

// Open implements sqlite3.VTab.
func (t *edgeTable) Open() (sqlite3.VTabCursor, error) {
	c := &edgeCursor{edgeTable: t}
	c.found = make([][]byte, len(t.Paths))
	for i, path := range t.Paths {
		c.extractor.Add(i, path)
	}
	return c, nil
}

// edgeCursor is a scan of an edge: of tables, of the rows of each, and of the elements of each row.
type edgeCursor struct {
	*edgeTable
	extractor transcode.Extractor
	found     [][]byte         // the JSON at the paths of the edge
	want      []*string        // by column; nil is any value
	left      []*selection     // the tables that are not read yet
	reads     *selection       // the one that is read
	selected  *podsByNamespace // the Pods of the moment; nil for edges other than selectors
	rows      []*watch.Entry   // of reads, from the current one
	elements  []element        // of the current row
	at        int              // among elements
	most      int              // the most bytes that the elements of a row have had, which are taken from the budget
	scanned   int
}

// elementBytes and valueBytes are about what an element takes beside its values, and one of these.
const (
	elementBytes = 40
	valueBytes   = 40
)

// element is an element of the list or map of a row.
type element struct {
	index  int
	values []any // of the columns from ownColumn on
}

// ownColumn is the first column whose values rowsOf makes.
func (e *Edge) ownColumn() int {
	if e.about != nil {
		return edgeResource
	}
	return edgeOwn
}

// Filter implements sqlite3.VTabCursor.
func (c *edgeCursor) Filter(plan int, _ string, args ...sqlite3.Value) error {
	c.want, c.left, c.selected, c.rows, c.elements, c.at = make([]*string, len(c.Columns)), nil, nil, nil, nil, 0
	moment := ""
	for column := range c.Columns {
		if plan&(1<<column) == 0 {
			continue
		}
		switch arg := args[0]; {
		case arg.Type() == sqlite3.NULL:
			return nil // nothing is equal to NULL
		case column == edgeMoment:
			moment = momentOf(arg)
		case arg.Type() == sqlite3.TEXT:
			value := arg.Text()
			c.want[column] = &value
		default: // SQLite converts the value before it compares
		}
		args = args[1:]
	}
	err := c.choose(moment, plan&(1<<edgeMoment) == 0)
	if err == nil {
		err = c.settle()
	}
	return c.engine.cause.keep(err)
}

// choose chooses the tables to read, at a moment or now.
func (c *edgeCursor) choose(moment string, isNow bool) error {
	shown := func(v *view) (*selection, error) {
		if isNow {
			return v.now, nil
		}
		return c.engine.past.at(v, moment)
	}
	for _, name := range slices.Sorted(maps.Keys(c.views)) {
		if c.about == nil && !c.accepts(edgeResource, name) {
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
func (c *edgeCursor) begin() (err error) {
	namespace, name := c.want[edgeNamespace], c.want[edgeName]
	switch {
	case c.about != nil:
		named := slices.IndexFunc(c.reads.Columns, func(column Column) bool { return slices.Equal(column.Path, c.about) })
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
func (c *edgeCursor) split(e *watch.Entry) error {
	c.elements, c.at = c.elements[:0], 0
	if c.about == nil && (!c.accepts(edgeNamespace, e.Namespace) || !c.accepts(edgeName, e.Name)) {
		return nil
	}
	body, _, err := c.reads.read(e, c.reads.isPast())
	if err != nil {
		return unreadable(c.engine.ctx, err)
	}
	clear(c.found)
	c.extractor.Find(body, c.found)
	index, kept := -1, 0
	for values, err := range c.rowsOf(c, c.found) {
		if err != nil {
			return err
		}
		if index++; index%interval == 0 && c.engine.ctx.Err() != nil {
			return c.engine.ctx.Err()
		}
		wanted := true
		for i, value := range values {
			wanted = wanted && c.accepts(c.ownColumn()+i, value)
		}
		if !wanted {
			continue
		}
		c.elements = append(c.elements, element{index, values})
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
	switch own := n - c.ownColumn(); {
	case own >= 0:
		setResult(result, c.elements[c.at].values[own])
	case n == edgeResource:
		result.ResultText(c.reads.name)
	case n == edgeNamespace:
		result.ResultText(c.rows[0].Namespace)
	case n == edgeName:
		result.ResultText(c.rows[0].Name)
	}
	return nil
}
