package sqlviews

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"byre/apiserver/query"
	"byre/apiserver/query/catalog"
)

// edge is an edge of queries, a table of what objects have several of, as a view.
type edge struct {
	name string
	query.Edge
	form
}

// form says how the rows of an edge are made of an object o. It is for both databases: {x} stands for the JSON of an element x,
// or NULL if that is no object, and {text x} for its text.
type form struct {
	// kinds are rows k with which each object is joined; empty means none.
	kinds string
	// alternatives give the rows together. each joins the elements of what the steps before have found.
	alternatives [][]each
	// last is what comes after the steps.
	last string
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

// value is a member at a path of an element, or else an expression.
type value struct{ of, path, sql string }

func one(kind string, path ...string) [][]each { return [][]each{{{"e", kind, "o", path, ""}}} }

var (
	pairs = map[string]value{"key": {sql: "e.key"}, "value": {sql: "{text e}"}}

	// forms are the forms of the edges that are views. Which Pods a selector selects, and which resource an Event is about, is
	// not said by the object: these edges are no views.
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
					{"w", "array", "o", []string{"spec", "volumes"}, ""}, {"p", "object", "w", nil, ""},
					{"s", "array", "p", []string{"sources"}, ""}, {"e", "object", "s", nil, ""},
				},
			},
			last: "WHERE e.key <> 'name'",
			values: map[string]value{
				"volume": {of: "w", path: "name"}, "type": {sql: "e.key"},
				"source": {sql: "CASE e.key WHEN 'configMap' THEN {e} ->> 'name' WHEN 'secret' THEN coalesce({e} ->> 'secretName', {e} ->> 'name')" +
					" WHEN 'persistentVolumeClaim' THEN {e} ->> 'claimName' END"},
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
func (e *edge) columns() []catalog.Column { return shown(e.Columns) }

// dialect is what the two databases write in two ways.
type dialect struct {
	// objects joins the objects o of the rows t of tables.
	objects string
	// json is the JSON of an element, or NULL; text is its text.
	json, text func(of string) string
	each       func(each) string
	column     func(c *catalog.Column, json string) string
}

// view returns the query of the edge over the objects of tables, with the columns in their order.
func (e *edge) view(d *dialect, tables []Table, columns []catalog.Column) string {
	var of []string
	for i := range tables {
		if t := &tables[i]; e.Tables == nil || slices.Contains(e.Tables, t.names()[0]) {
			of = append(of, "("+literal(t.Resource.Group)+", "+literal(t.Resource.Resource)+", "+literal(t.definedBy())+", "+literal(t.names()[0])+")")
		}
	}
	values := make([]string, len(columns))
	for i := range columns {
		values[i] = e.value(d, &columns[i]) + " AS " + identifier(columns[i].Name)
	}
	from := "(VALUES " + strings.Join(of, ", ") + ") t JOIN " + d.objects
	if e.kinds != "" {
		from += "\n  CROSS JOIN (VALUES " + e.kinds + ") k"
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
		selects = append(selects, "SELECT "+strings.Join(values, ",\n  ")+"\nFROM "+from+joins+"\n  "+e.last)
	}
	return strings.Join(selects, "\nUNION ALL\n")
}

func (e *edge) value(d *dialect, c *catalog.Column) string {
	switch c.Name {
	case "resource":
		return "t.column4"
	case "namespace", "name":
		return "o." + c.Name
	}
	v, ok := e.values[c.Name]
	switch {
	case !ok:
		return d.column(&catalog.Column{Type: c.Type, Path: c.Path[len(e.Paths[0]):]}, d.json("e"))
	case v.sql == "":
		return d.column(&catalog.Column{Type: c.Type, Path: strings.Split(v.path, ".")}, d.json(v.of))
	}
	return d.expression(v.sql)
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

// dialect returns PostgreSQL's.
func (p *Postgres) dialect() *dialect {
	return &dialect{
		objects: fmt.Sprintf("%s.resources q ON q.\"group\" = t.column1 AND q.resource = t.column2 AND q.defined_by = t.column3\n"+
			"  JOIN %s.current_objects o ON o.resource_id = q.id%s\n  %s", identifier(p.Store), identifier(p.Store), p.restriction(), p.parsed()),
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
	if of == "o" {
		return "d.v"
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
	objects: "main.resources q ON q.\"group\" = t.column1 AND q.resource = t.column2 AND q.defined_by = t.column3\n  JOIN main.current_objects o ON o.resource_id = q.id",
	json:    sqliteElement,
	text:    func(of string) string { return of + ".value" },
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
	if of == "o" {
		return "(CASE WHEN json_valid(o.value) THEN o.value END)"
	}
	return "(CASE " + of + ".type WHEN 'object' THEN " + of + ".value END)"
}
