package sqlviews

import (
	"fmt"
	"slices"
	"strings"

	"byre/apiserver/query"
)

// Postgres says how views on PostgreSQL are made.
type Postgres struct {
	// Store is the schema of byre's tables.
	Store string
	// Schema is the schema of the views; empty means temporary views.
	Schema string
	// Namespaces are those whose objects the views have, and they are security barriers then; nil means all, also
	// objects without a namespace.
	Namespaces []string
	// Indexed are the columns with an index, by "table column" of the index's comment. Their expressions are those of
	// the indexes.
	Indexed map[string]bool
}

// Statements returns statements that make a view for each name of each table.
func (p *Postgres) Statements(tables []Table) string {
	var b strings.Builder
	create, option := "CREATE OR REPLACE TEMP VIEW ", ""
	if p.Schema != "" {
		create = "CREATE OR REPLACE VIEW " + identifier(p.Schema) + "."
	}
	if p.Namespaces != nil {
		option = " WITH (security_barrier)"
	}
	for i := range tables {
		t := &tables[i]
		for _, name := range t.names() {
			fmt.Fprintf(&b, "%s%s%s AS\n%s;\n", create, identifier(name), option, p.current(t, postgresColumns(t)))
		}
	}
	for _, e := range edges() {
		fmt.Fprintf(&b, "%s%s%s AS\n%s;\n", create, e.name, option, e.view(p.dialect(), tables, e.columns()))
	}
	return b.String()
}

// maxIdentifier is the length in bytes to which PostgreSQL cuts names.
const maxIdentifier = 63

// postgresColumns are the columns of a view of PostgreSQL: with the names that it cuts, and without those whose name another one
// has then.
func postgresColumns(t *Table) (columns []query.Column) {
	for _, c := range t.columns() {
		c.Name = strings.ToValidUTF8(c.Name[:min(len(c.Name), maxIdentifier)], "")
		if !slices.ContainsFunc(columns, func(other query.Column) bool { return other.Name == c.Name }) {
			columns = append(columns, c)
		}
	}
	return columns
}

// current returns the query of a table's objects, with the columns in their order.
func (p *Postgres) current(t *Table, columns []query.Column) string {
	return fmt.Sprintf("SELECT %s\nFROM %s.resources r JOIN %s.current_objects o ON o.resource_id = r.id\n  %s\nWHERE %s%s",
		p.values(t, columns), identifier(p.Store), identifier(p.Store), p.parsed("o"), t.condition(), p.restriction("o"))
}

// values returns the expressions of columns over an object o and its parsed JSON jo.v.
func (p *Postgres) values(t *Table, columns []query.Column) string {
	values := make([]string, len(columns))
	for i := range columns {
		values[i] = p.column(t, &columns[i]) + " AS " + identifier(columns[i].Name)
	}
	return strings.Join(values, ",\n  ")
}

// parsed joins the parsed JSON of an object o, jo.v. OFFSET 0 has it parsed once a row. It is not parsed for a query that asks for
// none of it. The function doc parses it a second time, and so is called only for what may need it.
func (p *Postgres) parsed(o string) string {
	return fmt.Sprintf("CROSS JOIN LATERAL (SELECT CASE WHEN starts_with(%[1]s.value, '{') AND strpos(%[1]s.value, '\\u') = 0 THEN %[1]s.value::jsonb ELSE %[2]s END AS v OFFSET 0) j%[1]s",
		o, p.value(o+"."))
}

// value returns the expression of an object's JSON; NULL if it is encrypted.
func (p *Postgres) value(of string) string {
	return "(" + identifier(p.Store) + ".doc(" + of + "value)::jsonb)"
}

func (p *Postgres) restriction(o string) string {
	if p.Namespaces == nil {
		return ""
	}
	var names []string
	for _, name := range p.Namespaces {
		names = append(names, literal(name))
	}
	return " AND " + o + ".namespace IN (" + strings.Join(names, ", ") + ")"
}

func (p *Postgres) column(t *Table, c *query.Column) string {
	v := postgresElement("o")
	if p.Indexed[t.names()[0]+" "+c.Name] {
		v = p.value("o.")
	}
	return postgresColumn(c, v)
}

// postgresColumn returns the expression of a column; v is the expression of the object's JSON.
func postgresColumn(c *query.Column, v string) string {
	switch c.Source() {
	case "metadata.namespace":
		return "o.namespace"
	case "metadata.name":
		return "o.name"
	case "metadata.resourceVersion":
		return "o.revision"
	case "":
		return "jsonb_set(" + v + ", '{metadata,resourceVersion}', to_jsonb(o.revision::text))"
	case ownerPath:
		return "jsonb_path_query_first(" + v + ", '$.metadata.ownerReferences[*] ? (@.controller == true)." + strings.TrimPrefix(c.Name, "owner_") + "') #>> '{}'"
	case containersPath:
		result := "coalesce(sum((s ->> 'restartCount')::bigint), 0)::bigint"
		if c.Type == query.Text {
			result = "count(*) FILTER (WHERE s -> 'ready' = 'true') || '/' || count(*)"
		}
		return "CASE jsonb_typeof(" + v + " #> '{status,containerStatuses}') WHEN 'array' THEN (SELECT " + result +
			" FROM jsonb_array_elements(" + v + " #> '{status,containerStatuses}') s) END"
	}
	path := literal(postgresPath(c.Path))
	raw, text := v+" #> "+path, v+" #>> "+path
	kind := "jsonb_typeof(" + raw + ")"
	scalar := "CASE WHEN " + kind + " IN ('string', 'number') THEN " + text + " END"
	switch c.Type {
	case query.Quantity:
		return fmt.Sprintf(postgresQuantity, scalar)
	case query.Integer:
		return "CASE " + kind + " WHEN 'number' THEN CASE WHEN " + text + " NOT LIKE '%.%' AND (" + text +
			")::numeric BETWEEN -9223372036854775808 AND 9223372036854775807 THEN (" + text + ")::bigint END END" //nolint:dupword // SQL
	case query.Real: // a number that is too great, or too near to 0, is an error of double precision
		return "CASE " + kind + " WHEN 'number' THEN CASE WHEN (" + text + ")::numeric = 0 OR abs((" + text +
			")::numeric) BETWEEN 1e-300 AND 1e300 THEN (" + text + ")::double precision END END" //nolint:dupword // SQL
	case query.Boolean:
		return "CASE " + raw + " WHEN 'true' THEN true WHEN 'false' THEN false END"
	case query.JSON:
		return "nullif(" + raw + ", 'null')"
	case query.Time: // a fraction with six digits
		return "CASE WHEN " + kind + " = 'string' AND " + text + ` ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$' THEN ` +
			"CASE WHEN " + text + " LIKE '%.%' THEN rpad(rtrim(" + text + ", 'Z'), 26, '0') || 'Z' ELSE " + text + " END END" //nolint:dupword // SQL
	}
	return scalar
}

// postgresQuantity is the number of a quantity, whose text is %s: exactly as resource.ParseQuantity reads it, and then the
// nearest double precision. A text of more than 63 characters, or with an exponent of more than two digits, which could fail, is
// NULL.
const postgresQuantity = `(SELECT (sign(n) * ceil(least(abs(n), most) * 1000000000) * 0.000000001)::double precision
   FROM (SELECT CASE WHEN m[4] IS NOT NULL THEN m[1]::numeric * (1::bigint << 10 * strpos('KMGTPE', m[4]))
        ELSE (m[1] || 'e' || coalesce(m[2], (3 * strpos('num kMGTPE', coalesce(nullif(m[3], ''), ' ')) - 12)::text))::numeric END AS n,
      CASE WHEN m[4] IS NOT NULL THEN 9223372036854775807 END AS most
    FROM (SELECT %s AS t) s, regexp_match(CASE WHEN length(t) < 64 THEN t END,
      '^([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d\d?)|([numkMGTPE]?)|([KMGTPE])i)$') m) q)`

// postgresPath returns a path as a literal of an array of texts.
func postgresPath(members []string) string {
	elements := make([]string, len(members))
	for i, member := range members {
		elements[i] = member
		if !isPlain(member) || strings.EqualFold(member, "null") {
			elements[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(member) + `"`
		}
	}
	return "{" + strings.Join(elements, ",") + "}"
}
