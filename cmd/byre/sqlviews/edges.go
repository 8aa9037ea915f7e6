package sqlviews

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"byre/apiserver/query"
)

// edge is an edge of queries, a table of what objects have several of, as a view.
type edge struct {
	name string
	query.Edge
	form
}

// form says how the rows of an edge are made of an object o. It is for both databases: {x} stands for the JSON of an element x,
// or NULL if that is no object, and {text x} for its text; {kinds} for the group, the kind and the table of each resource.
type form struct {
	// selects joins the Pods p of the object's namespace.
	selects bool
	// kinds are rows k with which each object is joined; empty means none.
	kinds string
	// alternatives give the rows together. each joins the elements of what the steps before have found.
	alternatives [][]each
	// last is what comes after the steps. none are steps that find nothing where the condition after "on" holds.
	last string
	none []each
	// values are those of the edge's own columns; another column is the member at its path below that of the edge.
	values map[string]value
}

// each joins the elements of an array, or the members of an object, which have a key: those at a path in the JSON of an element.
type each struct {
	as, kind, of string
	// path has members, and expressions over k.
	path []string
	// on makes it a left join.
	on string
}

// value is a member at a path of an element, or else an expression, or else the first of several that is not NULL.
type value struct {
	of, path, sql string
	first         []value
}

// What the condition of a selector m says of the labels l. The values are of the form of labels' values, so that each is in the
// JSON of all as it is. The two resources have a map of labels.
const (
	isMap   = "t.column4 IN ('services', 'replicationcontrollers')"
	label   = "({l} ->> ({m} ->> 'key'))"
	isAmong = "replace(CAST({m} -> 'values' AS text), '\"' || " + label + " || '\"', '') <> CAST({m} -> 'values' AS text)"
)

func one(kind string, path ...string) [][]each { return [][]each{{{"e", kind, "o", path, ""}}} }

var (
	pairs = map[string]value{"key": {sql: "e.key"}, "value": {sql: "{text e}"}}

	// forms are the forms of the edges.
	forms = map[string]form{
		"labels":      {alternatives: one("object", "metadata", "labels"), values: pairs},
		"annotations": {alternatives: one("object", "metadata", "annotations"), values: pairs},
		"owners":      {alternatives: one("array", "metadata", "ownerReferences")},
		"conditions":  {alternatives: one("array", "status", "conditions")},
		"node_taints": {alternatives: one("array", "spec", "taints")},
		"containers": {
			kinds: "('main', 'containers', 'containerStatuses'), ('init', 'initContainers', 'initContainerStatuses'), ('ephemeral', 'ephemeralContainers', 'ephemeralContainerStatuses')",
			alternatives: [][]each{{
				{"e", "array", "o", []string{"spec", "k.column2"}, ""},
				{"s", "array", "o", []string{"status", "k.column3"}, "{s} ->> 'name' = {e} ->> 'name'"},
				{"x", "object", "s", []string{"state"}, "true"},
			}},
			values: map[string]value{
				"kind": {sql: "k.column1"}, "container": {of: "e", path: "name"}, "image": {of: "e", path: "image"},
				"cpu_request": {of: "e", path: "resources.requests.cpu"}, "memory_request": {of: "e", path: "resources.requests.memory"},
				"cpu_limit": {of: "e", path: "resources.limits.cpu"}, "memory_limit": {of: "e", path: "resources.limits.memory"},
				"state": {sql: "x.key"}, "reason": {of: "x", path: "reason"}, "ready": {of: "s", path: "ready"}, "restarts": {of: "s", path: "restartCount"},
			},
		},
		"container_env_refs": {
			kinds: "('containers'), ('initContainers'), ('ephemeralContainers')",
			alternatives: [][]each{
				{{"c", "array", "o", []string{"spec", "k.column1"}, ""}, {"n", "array", "c", []string{"env"}, ""}, {"e", "object", "n", []string{"valueFrom"}, ""}},
				{{"c", "array", "o", []string{"spec", "k.column1"}, ""}, {"n", "array", "c", []string{"envFrom"}, ""}, {"e", "object", "n", nil, ""}},
			},
			last: "JOIN (VALUES ('configMapKeyRef', 'configMap'), ('secretKeyRef', 'secret'), ('fieldRef', 'field'), ('resourceFieldRef', 'resource')," +
				" ('fileKeyRef', 'file'), ('configMapRef', 'configMap'), ('secretRef', 'secret')) y ON y.column1 = e.key",
			values: map[string]value{
				"container": {of: "c", path: "name"}, "variable": {of: "n", path: "name"}, "type": {sql: "y.column2"},
				"source":   {sql: "coalesce({e} ->> 'name', {e} ->> 'containerName', {e} ->> 'volumeName')"},
				"key":      {sql: "coalesce({e} ->> 'key', {e} ->> 'fieldPath', {e} ->> 'resource')"},
				"optional": {sql: "coalesce({e} -> 'optional' = 'true', false)"},
			},
		},
		"volumes": {
			alternatives: [][]each{
				{{"w", "array", "o", []string{"spec", "volumes"}, ""}, {"e", "object", "w", nil, ""}},
				{
					{"w", "array", "o", []string{"spec", "volumes"}, ""}, {"x", "object", "w", nil, ""},
					{"s", "array", "x", []string{"sources"}, ""}, {"e", "object", "s", nil, ""},
				},
			},
			last: "WHERE e.key <> 'name'",
			values: map[string]value{
				"volume": {of: "w", path: "name"}, "type": {sql: "e.key"},
				"source": {sql: "CASE e.key WHEN 'configMap' THEN {e} ->> 'name' WHEN 'secret' THEN coalesce({e} ->> 'secretName', {e} ->> 'name')" +
					" WHEN 'persistentVolumeClaim' THEN {e} ->> 'claimName' END"},
			},
		},
		// An object s selects Pods, whose labels are l. Those of a map of labels are as in matchLabels, but an empty map selects none.
		"selectors": {
			selects: true,
			alternatives: [][]each{{
				{"s", "object", "o", []string{"spec"}, ""},
				{"l", "object", "p", []string{"metadata"}, "l.key = 'labels'"},
			}},
			last: "WHERE s.key = CASE t.column4 WHEN 'networkpolicies' THEN 'podSelector' ELSE 'selector' END AND CAST({s} AS text) LIKE '{%'" +
				" AND NOT (" + isMap + " AND CAST({s} AS text) = '{}')",
			none: []each{
				{"m", "object", "s", nil, isMap + " AND NOT coalesce({text m} = ({l} ->> m.key), false)"},
				{"m", "object", "s", []string{"matchLabels"}, "NOT " + isMap + " AND NOT coalesce({text m} = ({l} ->> m.key), false)"},
				{"m", "array", "s", []string{"matchExpressions"}, "NOT " + isMap + " AND NOT coalesce(CASE {m} ->> 'operator' WHEN 'Exists' THEN " + label + " IS NOT NULL WHEN 'DoesNotExist' THEN " + label + " IS NULL" +
					" WHEN 'In' THEN " + isAmong + " WHEN 'NotIn' THEN NOT coalesce(" + isAmong + ", false) END, false)"},
			},
			values: map[string]value{"pod": {sql: "p.name"}},
		},
		"events_about": {
			alternatives: [][]each{nil},
			last: "LEFT JOIN (VALUES {kinds}) y ON y.column2 = {o} -> 'involvedObject' ->> 'kind'" +
				" AND CASE y.column1 WHEN '' THEN coalesce({o} -> 'involvedObject' ->> 'apiVersion', '') NOT LIKE '%/%'" +
				" ELSE {o} -> 'involvedObject' ->> 'apiVersion' LIKE y.column1 || '/%' END",
			values: map[string]value{
				"resource": {sql: "y.column3"}, "namespace": {sql: "coalesce({o} -> 'involvedObject' ->> 'namespace', '')"}, "name": {of: "o", path: "involvedObject.name"},
				"type": {of: "o", path: "type"}, "reason": {of: "o", path: "reason"}, "message": {of: "o", path: "message"},
				"count":    {first: []value{{of: "o", path: "count"}, {of: "o", path: "series.count"}, {sql: "1"}}},
				"first":    {first: []value{{of: "o", path: "firstTimestamp"}, {of: "o", path: "eventTime"}}},
				"last":     {first: []value{{of: "o", path: "lastTimestamp"}, {of: "o", path: "series.lastObservedTime"}, {of: "o", path: "eventTime"}}},
				"reporter": {first: []value{{sql: "nullif({o} ->> 'reportingComponent', '')"}, {of: "o", path: "source.component"}}},
			},
		},
		"rbac_rules": {
			alternatives: [][]each{{
				{"r", "array", "o", []string{"rules"}, ""}, {"g", "array", "r", []string{"apiGroups"}, ""},
				{"z", "array", "r", []string{"resources"}, ""}, {"b", "array", "r", []string{"verbs"}, ""},
			}},
			values: map[string]value{
				"api_group": {sql: "{text g}"}, "rule_resource": {sql: "{text z}"}, "verb": {sql: "{text b}"}, "resource_names": {of: "r", path: "resourceNames"},
			},
		},
	}
)

// edges returns the edges that are views, in the order of their names.
func edges() (all []edge) {
	described := query.Edges()
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		all = append(all, edge{name, described[name], forms[name]})
	}
	return all
}

// columns are the columns of the view.
func (e *edge) columns() []query.Column { return shown(e.Columns) }

// dialect is what the two databases write in two ways.
type dialect struct {
	// objects joins the objects o of the rows t of tables for which a condition holds; empty means all.
	objects func(o, t, condition string) string
	// json is the JSON of an element, or NULL; text is its text.
	json, text func(of string) string
	each       func(each) string
	column     func(c *query.Column, json string) string
}

// view returns the query of the edge over the objects of tables, with the columns in their order.
func (e *edge) view(d *dialect, tables []Table, columns []query.Column) string {
	var of, kinds []string
	for i := range tables {
		t := &tables[i]
		kinds = append(kinds, "("+literal(t.Resource.Group)+", "+literal(t.Kind)+", "+literal(t.names()[0])+")")
		if e.Tables == nil || slices.Contains(e.Tables, t.names()[0]) {
			of = append(of, "("+literal(t.Resource.Group)+", "+literal(t.Resource.Resource)+", "+literal(t.definedBy())+", "+literal(t.names()[0])+")")
		}
	}
	values := make([]string, len(columns))
	for i := range columns {
		values[i] = e.column(d, &columns[i]) + " AS " + identifier(columns[i].Name)
	}
	from := "(VALUES " + strings.Join(of, ", ") + ") t " + d.objects("o", "t", "")
	if e.kinds != "" {
		from += "\n  CROSS JOIN (VALUES " + e.kinds + ") k"
	}
	if e.selects {
		from += "\n  CROSS JOIN (VALUES ('', 'pods', 'builtin')) u " + d.objects("p", "u", " AND p.namespace = o.namespace")
	}
	last := strings.ReplaceAll(d.expression(e.last), "{kinds}", strings.Join(kinds, ", "))
	for _, step := range e.none {
		condition := d.expression(step.on)
		step.on = ""
		last += "\n  AND NOT EXISTS (SELECT 1 FROM (SELECT 1) z " + d.each(step) + " WHERE " + condition + ")"
	}
	var selects []string
	for _, steps := range e.alternatives {
		joins := ""
		for _, step := range steps {
			joins += "\n  " + d.each(step)
			if step.on != "" {
				joins += " ON " + d.expression(step.on)
			}
		}
		selects = append(selects, "SELECT "+strings.Join(values, ",\n  ")+"\nFROM "+from+joins+"\n  "+last)
	}
	return strings.Join(selects, "\nUNION ALL\n")
}

// column returns the expression of a column of the edge.
func (e *edge) column(d *dialect, c *query.Column) string {
	v, ok := e.values[c.Name]
	switch {
	case ok:
		return v.expression(d, c.Type)
	case c.Name == "resource":
		return "t.column4"
	case c.Name == "namespace", c.Name == "name":
		return "o." + c.Name
	}
	return d.column(&query.Column{Type: c.Type, Path: c.Path[len(e.Paths[0]):]}, d.json("e"))
}

func (v *value) expression(d *dialect, of query.Type) string {
	switch {
	case len(v.first) > 0:
		all := make([]string, len(v.first))
		for i := range v.first {
			all[i] = v.first[i].expression(d, of)
		}
		return "coalesce(" + strings.Join(all, ", ") + ")"
	case v.sql != "":
		return d.expression(v.sql)
	}
	return d.column(&query.Column{Type: of, Path: strings.Split(v.path, ".")}, d.json(v.of))
}

var placeholder = regexp.MustCompile(`\{(text )?(\w)\}`)

// expression replaces what stands for JSON in an expression.
func (d *dialect) expression(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string {
		if of, isText := strings.CutPrefix(found, "{text "); isText {
			return d.text(of[:1])
		}
		return d.json(found[1:2])
	})
}

// tableOf joins the row q of resources of a row t of tables. It is for both databases.
func tableOf(store, t, q string) string {
	return fmt.Sprintf("JOIN %[1]s.resources %[3]s ON %[3]s.\"group\" = %[2]s.column1 AND %[3]s.resource = %[2]s.column2 AND %[3]s.defined_by = %[2]s.column3", store, t, q)
}

// dialect returns PostgreSQL's, with the objects of now.
func (s *Schema) dialect() *dialect {
	store := identifier(s.store)
	return &dialect{
		objects: func(o, t, condition string) string {
			return fmt.Sprintf("%s\n  JOIN %s.current_objects %s ON %s.resource_id = q%s.id%s\n  %s",
				tableOf(store, t, "q"+o), store, o, o, o, condition, s.parsed(o))
		},
		json: postgresElement,
		text: func(of string) string { return "(" + of + ".v #>> '{}')" },
		each: func(step each) string {
			at, join, columns := postgresElement(step.of), "CROSS JOIN LATERAL ", "(v)"
			if len(step.path) > 0 {
				at += " #> ARRAY[" + strings.Join(step.members(), ", ") + "]"
			}
			if step.on != "" {
				join = "LEFT JOIN LATERAL "
			}
			function := "jsonb_array_elements"
			if step.kind == "object" {
				function, columns = "jsonb_each", "(key, v)"
			}
			return join + function + "(CASE jsonb_typeof(" + at + ") WHEN '" + step.kind + "' THEN " + at + " END) " + step.as + columns
		},
		column: postgresColumn,
	}
}

func postgresElement(of string) string {
	if of == "o" || of == "p" {
		of = "j" + of
	}
	return of + ".v"
}

// members returns the expressions of the path.
func (e each) members() []string {
	members := make([]string, len(e.path))
	for i, member := range e.path {
		if members[i] = member; !strings.HasPrefix(member, "k.") {
			members[i] = literal(member)
		}
	}
	return members
}

// sqliteDialect is that of the sqlite3 shell.
var sqliteDialect = dialect{
	objects: func(o, t, condition string) string {
		return tableOf("main", t, "q"+o) + "\n  JOIN main.current_objects " + o + " ON " + o + ".resource_id = q" + o + ".id" + condition
	},
	json: sqliteElement,
	text: func(of string) string { return of + ".value" },
	each: func(step each) string {
		json, path, join := sqliteElement(step.of), "'$'", "JOIN "
		for _, member := range step.members() {
			path += " || '.' || " + member
		}
		if step.on != "" {
			join = "LEFT JOIN "
		}
		return join + "json_each(CASE json_type(" + json + ", " + path + ") WHEN '" + step.kind + "' THEN " + json + " END, " + path + ") " + step.as
	},
	column: sqliteColumn,
}

func sqliteElement(of string) string {
	if of == "o" || of == "p" {
		return "(CASE WHEN json_valid(" + of + ".value) THEN " + of + ".value END)"
	}
	return "(CASE " + of + ".type WHEN 'object' THEN " + of + ".value END)"
}
