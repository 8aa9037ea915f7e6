package sqlviews

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"byre/apiserver/query"
)

// detail is a detail table of queries as a view.
type detail struct {
	name string
	query.DetailTable
}

// details returns the detail tables in the order of their names.
func details() (all []detail) {
	tables := query.DetailTables()
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		all = append(all, detail{name, tables[name]})
	}
	return all
}

// columns are the columns of the view.
func (t *detail) columns() []query.Column { return shown(t.Columns) }

// dialect is what the two databases write in two ways.
type dialect struct {
	// objects joins the objects o of the rows t of tables for which a condition holds; empty means all.
	objects func(o, t, condition string) string
	// json is the JSON of an element, or NULL; text is its text.
	json, text func(of string) string
	// each joins the elements of a step, in a left join if a condition follows.
	each   func(step query.Step, isLeft bool) string
	column func(c *query.Column, json string) string
}

// view returns the query of the rows of the objects of tables, with the columns in their order. In it, t is the table
// of an object o: its group, resource, owner and name, and, of one that selects Pods, its selector; k is a row of
// Kinds, and y one of the kinds that are served.
func (t *detail) view(d *dialect, tables []Table, columns []query.Column) string {
	var of, kinds []string
	for i := range tables {
		r := &tables[i]
		kinds = append(kinds, row(r.Resource.Group, r.Kind, r.names()[0]))
		if t.Tables == nil || slices.Contains(t.Tables, r.names()[0]) {
			texts := []string{r.Resource.Group, r.Resource.Resource, r.definedBy(), r.names()[0]}
			if selector, ok := t.Selectors[r.names()[0]]; ok {
				texts = append(texts, selector.Member, fmt.Sprint(selector.IsMap))
			}
			of = append(of, row(texts...))
		}
	}
	expressions := make([]string, len(columns))
	for i := range columns {
		expressions[i] = t.column(d, &columns[i]) + " AS " + identifier(columns[i].Name)
	}
	from := "SELECT " + strings.Join(expressions, ",\n  ") +
		"\nFROM (VALUES " + strings.Join(of, ", ") + ") t " + d.objects("o", "t", "")
	if t.Selectors != nil {
		return from + selected(d)
	}
	if t.Kinds != nil {
		var constants []string
		for _, texts := range t.Kinds {
			constants = append(constants, row(texts...))
		}
		from += "\n  CROSS JOIN (VALUES " + strings.Join(constants, ", ") + ") k"
	}
	var alternatives []string
	for _, steps := range t.Alternatives {
		alternatives = append(alternatives, from+t.joins(d, steps, kinds))
	}
	return strings.Join(alternatives, "\nUNION ALL\n")
}

// row returns a row of VALUES.
func row(texts ...string) string {
	literals := make([]string, len(texts))
	for i, text := range texts {
		literals[i] = literal(text)
	}
	return "(" + strings.Join(literals, ", ") + ")"
}

// joins returns the joins with the elements of steps, and with the kinds if a value is the resource of one.
func (t *detail) joins(d *dialect, steps []query.Step, kinds []string) string {
	var joins, conditions string
	for _, step := range steps {
		joins += "\n  " + d.each(step, step.Optional)
		switch {
		case step.NamedAs != "":
			joins += " ON " + d.member(query.Source{Of: step.As}, "name") +
				" = " + d.member(query.Source{Of: step.NamedAs}, "name")
		case step.Optional:
			joins += " ON true"
		}
		if step.Except != "" {
			conditions += " AND " + step.As + ".key <> " + literal(step.Except)
		}
		if step.Keys != nil {
			conditions += " AND " + step.As + ".key IN " + row(slices.Sorted(maps.Keys(step.Keys))...)
		}
	}
	for _, value := range t.Values {
		for _, source := range value {
			if source.IsResource {
				kind := d.member(source, "kind")
				version := d.member(source, "apiVersion")
				joins += "\n  LEFT JOIN (VALUES " + strings.Join(kinds, ", ") + ") y ON y.column2 = " + kind +
					" AND CASE y.column1 WHEN '' THEN coalesce(" + version + ", '') NOT LIKE '%/%'" +
					" ELSE " + version + " LIKE y.column1 || '/%' END"
			}
		}
	}
	return joins + strings.Replace(conditions, " AND", "\n  WHERE", 1)
}

// column returns the expression of a column.
func (t *detail) column(d *dialect, c *query.Column) string {
	value := t.Values[slices.IndexFunc(t.Columns, func(other query.Column) bool { return other.Name == c.Name })]
	if value == nil {
		of := map[string]string{"resource": "t.column4", "namespace": "o.namespace", "name": "o.name", "pod": "p.name"}
		return of[c.Name]
	}
	var sources []string
	for i := range value {
		sources = append(sources, t.source(d, &value[i], c.Type))
	}
	if len(sources) == 1 {
		return sources[0]
	}
	return "coalesce(" + strings.Join(sources, ", ") + ")"
}

// source returns the expression of a value of a type.
func (t *detail) source(d *dialect, s *query.Source, of query.Type) (expression string) {
	switch {
	case s.Of == "":
		return constant(s.Constant)
	case s.IsResource:
		return "y.column3"
	case s.IsKey:
		return t.key(s.Of)
	case s.Path == nil:
		expression = d.text(s.Of)
	default:
		expression = d.column(&query.Column{Type: of, Path: s.Path}, d.json(s.Of))
	}
	if s.Key != "" {
		expression = "CASE " + s.Of + ".key WHEN " + literal(s.Key) + " THEN " + expression + " END"
	}
	if s.NotEmpty {
		expression = "nullif(" + expression + ", '')"
	}
	return expression
}

// key returns the expression of the key of an element, under its name in the table.
func (t *detail) key(of string) string {
	for _, steps := range t.Alternatives {
		for _, step := range steps {
			if step.As == of && step.Keys != nil {
				expression := "CASE " + of + ".key"
				for _, key := range slices.Sorted(maps.Keys(step.Keys)) {
					expression += " WHEN " + literal(key) + " THEN " + literal(step.Keys[key])
				}
				return expression + " END"
			}
		}
	}
	return of + ".key"
}

// member returns the expression of the text of a member of what is at the path of a source.
func (d *dialect) member(s query.Source, name string) string {
	return d.column(&query.Column{Type: query.Text, Path: append(slices.Clone(s.Path), name)}, d.json(s.Of))
}

// constant returns the expression of a constant, which may stand for one of Kinds.
func constant(value any) string {
	text, ok := value.(string)
	if !ok {
		return fmt.Sprint(value)
	}
	if n, ok := strings.CutPrefix(text, "$"); ok {
		return "k.column" + n
	}
	return literal(text)
}

// What the condition of a selector m says of the labels l. The values are of the form of labels' values, so that each
// is in the JSON of all as it is.
const (
	label   = "({l} ->> ({m} ->> 'key'))"
	isAmong = "replace(CAST({m} -> 'values' AS text), '\"' || " + label + " || '\"', '') <> CAST({m} -> 'values' AS text)"
)

// selected joins the Pods p of an object's namespace whose labels l its selector s selects. A map of labels is as in
// matchLabels, but an empty one selects none.
func selected(d *dialect) string {
	spec := query.Step{As: "s", Of: "o", Path: []string{"spec"}, IsObject: true}
	metadata := query.Step{As: "l", Of: "p", Path: []string{"metadata"}, IsObject: true}
	joins := "\n  CROSS JOIN (VALUES ('', 'pods', 'builtin')) u " + d.objects("p", "u", " AND p.namespace = o.namespace") +
		"\n  " + d.each(spec, false) + "\n  " + d.each(metadata, true) + " ON l.key = 'labels'" +
		"\n  WHERE s.key = t.column5 AND CAST({s} AS text) LIKE '{%'" +
		" AND NOT (t.column6 = 'true' AND CAST({s} AS text) = '{}')"
	const differs = " AND NOT coalesce({text m} = ({l} ->> m.key), false)"
	for _, fails := range []struct {
		step      query.Step
		condition string
	}{
		{query.Step{IsObject: true}, "t.column6 = 'true'" + differs},
		{query.Step{IsObject: true, Path: []string{"matchLabels"}}, "t.column6 = 'false'" + differs},
		{query.Step{Path: []string{"matchExpressions"}}, "t.column6 = 'false' AND NOT coalesce(CASE {m} ->> 'operator'" +
			" WHEN 'Exists' THEN " + label + " IS NOT NULL WHEN 'DoesNotExist' THEN " + label + " IS NULL" +
			" WHEN 'In' THEN " + isAmong + " WHEN 'NotIn' THEN NOT coalesce(" + isAmong + ", false) END, false)"},
	} {
		fails.step.As, fails.step.Of = "m", "s"
		joins += "\n  AND NOT EXISTS (SELECT 1 FROM (SELECT 1) z " + d.each(fails.step, false) +
			" WHERE " + fails.condition + ")"
	}
	json := strings.NewReplacer("{s}", d.json("s"), "{l}", d.json("l"), "{m}", d.json("m"), "{text m}", d.text("m"))
	return json.Replace(joins)
}

// tableOf joins the row q of resources of a row t of tables. It is for both databases.
func tableOf(store, t, q string) string {
	return fmt.Sprintf(
		"JOIN %[1]s.resources %[3]s ON %[3]s.\"group\" = %[2]s.column1 AND %[3]s.resource = %[2]s.column2 AND %[3]s.defined_by = %[2]s.column3", store, t, q)
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
		each: func(step query.Step, isLeft bool) string {
			at, join := postgresElement(step.Of), "CROSS JOIN LATERAL "
			kind, function, columns := "array", "jsonb_array_elements", "(v)"
			if len(step.Path) > 0 {
				at += " #> ARRAY[" + strings.Join(members(step), ", ") + "]"
			}
			if isLeft {
				join = "LEFT JOIN LATERAL "
			}
			if step.IsObject {
				kind, function, columns = "object", "jsonb_each", "(key, v)"
			}
			return join + function + "(CASE jsonb_typeof(" + at + ") WHEN '" + kind + "' THEN " + at + " END) " +
				step.As + columns
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

// members returns the expressions of the path of a step.
func members(step query.Step) []string {
	expressions := make([]string, len(step.Path))
	for i, member := range step.Path {
		expressions[i] = constant(member)
	}
	return expressions
}

// sqliteDialect is that of the sqlite3 shell.
var sqliteDialect = dialect{
	objects: func(o, t, condition string) string {
		return tableOf("main", t, "q"+o) + "\n  JOIN main.current_objects " + o + " ON " + o + ".resource_id = q" + o +
			".id" + condition
	},
	json: sqliteElement,
	text: func(of string) string { return of + ".value" },
	each: func(step query.Step, isLeft bool) string {
		json, path, join, kind := sqliteElement(step.Of), "'$'", "JOIN ", "array"
		for _, member := range members(step) {
			path += " || '.' || " + member
		}
		if isLeft {
			join = "LEFT JOIN "
		}
		if step.IsObject {
			kind = "object"
		}
		return join + "json_each(CASE json_type(" + json + ", " + path + ") WHEN '" + kind + "' THEN " + json + " END, " +
			path + ") " + step.As
	},
	column: sqliteColumn,
}

func sqliteElement(of string) string {
	if of == "o" || of == "p" {
		return "(CASE WHEN json_valid(" + of + ".value) THEN " + of + ".value END)"
	}
	return "(CASE " + of + ".type WHEN 'object' THEN " + of + ".value END)"
}
