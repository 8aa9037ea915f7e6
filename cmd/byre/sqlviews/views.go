package sqlviews

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"byre/apiserver/query"
	"byre/migrations"
)

// Table is a table with where its objects are.
type Table struct {
	*query.Table
	// IsCustom is true for the instances of a CustomResourceDefinition.
	IsCustom bool
}

// names returns the names of the table in queries: a built-in resource has its plural too.
func (t *Table) names() []string {
	full := query.FullName(t.Resource)
	if t.IsCustom || full == t.Resource.Resource {
		return []string{full}
	}
	return []string{t.Resource.Resource, full}
}

// condition selects the table's row of resources.
func (t *Table) condition() string {
	return `"group" = ` + literal(t.Resource.Group) + " AND resource = " + literal(t.Resource.Resource) +
		" AND defined_by = " + literal(t.definedBy())
}

func (t *Table) definedBy() string {
	if t.IsCustom {
		return "custom"
	}
	return "builtin"
}

// columns are the columns of the view.
func (t *Table) columns() []query.Column { return shown(t.Columns) }

// shown are the columns that a view has: not those that are arguments of a table.
func shown(columns []query.Column) []query.Column {
	return slices.DeleteFunc(slices.Clone(columns), func(c query.Column) bool { return c.IsHidden() })
}

// The columns that are made of more than one value of the object.
const (
	ownerPath      = "metadata.ownerReferences"
	containersPath = "status.containerStatuses"
)

// Definitions returns the JSON of all CustomResourceDefinitions of a file of SQLite that are not encrypted. It only
// reads the file, which a server may use.
func Definitions(ctx context.Context, path string) (definitions []string, err error) {
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = eachRow(ctx, db, func(rows *sql.Rows) error {
		var value string
		err := rows.Scan(&value)
		definitions = append(definitions, value)
		return err
	}, selectDefinitions)
	return definitions, err
}

const selectDefinitions = `
SELECT value FROM objects
WHERE "group" = 'apiextensions.k8s.io' AND resource = 'customresourcedefinitions' AND defined_by = 'builtin' AND value LIKE '{%'
ORDER BY name`

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// SQLiteStatements returns statements that make a temporary view for each name of each table, for the sqlite3 shell.
func SQLiteStatements(tables []Table) string {
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	for i := range tables {
		t := &tables[i]
		var names, values []string
		for _, c := range t.columns() {
			names = append(names, identifier(c.Name))
			values = append(values, sqliteColumn(&c, sqliteElement("o")))
		}
		fmt.Fprintf(&b,
			"CREATE TEMP VIEW %s (%s) AS\nSELECT %s\nFROM main.current_objects o\nWHERE o.resource_id = (SELECT id FROM main.resources WHERE %s);\n",
			identifier(t.names()[0]), strings.Join(names, ", "), strings.Join(values, ",\n  "), t.condition())
		if len(t.names()) > 1 {
			fmt.Fprintf(&b, "CREATE TEMP VIEW %s AS SELECT * FROM temp.%s;\n", identifier(t.names()[1]),
				identifier(t.names()[0]))
		}
	}
	for _, t := range details() {
		fmt.Fprintf(&b, "CREATE TEMP VIEW %s AS\n%s;\n", t.name, t.view(&sqliteDialect, tables, t.columns()))
	}
	b.WriteString("COMMIT;\n")
	return b.String()
}

// sqliteColumn returns the expression of a column; v is the expression of the object's JSON, or NULL.
func sqliteColumn(c *query.Column, v string) string {
	switch c.Source() {
	case "metadata.namespace":
		return "o.namespace"
	case "metadata.name":
		return "o.name"
	case "metadata.resourceVersion":
		return "o.revision"
	case "":
		return "CASE json_type(" + v + ") WHEN 'object' THEN json_set(" + v +
			", '$.metadata.resourceVersion', CAST(o.revision AS TEXT)) END"
	case ownerPath:
		member := literal("$." + strings.TrimPrefix(c.Name, "owner_"))
		return "(SELECT r.value ->> " + member + " FROM json_each(" + v +
			", '$.metadata.ownerReferences') r WHERE json_type(r.value, '$.controller') = 'true' LIMIT 1)"
	case containersPath:
		result := "coalesce(sum(s.value ->> '$.restartCount'), 0)"
		if c.Type == query.Text {
			result = "coalesce(sum(json_type(s.value, '$.ready') = 'true'), 0) || '/' || count(*)"
		}
		return "CASE json_type(" + v + ", '$.status.containerStatuses') WHEN 'array' THEN (SELECT " + result +
			" FROM json_each(" + v + ", '$.status.containerStatuses') s) END"
	}
	path := literal(sqlitePath(c.Path))
	kind, value, raw := "json_type("+v+", "+path+")", v+" ->> "+path, v+" -> "+path
	scalar := "CASE " + kind + " WHEN 'text' THEN " + value + " WHEN 'integer' THEN " + raw + " WHEN 'real' THEN " + raw +
		" END"
	switch c.Type {
	case query.Quantity:
		return fmt.Sprintf(sqliteQuantity, scalar)
	case query.Integer: // a number that is too great becomes a real one
		return "CASE WHEN " + kind + " = 'integer' AND typeof(" + value + ") = 'integer' THEN " + value + " END"
	case query.Real:
		return "CASE WHEN " + kind + " IN ('integer', 'real') THEN CAST(" + value + " AS REAL) END"
	case query.Boolean:
		return "CASE " + kind + " WHEN 'true' THEN 1 WHEN 'false' THEN 0 END"
	case query.JSON:
		return "nullif(" + raw + ", 'null')"
	case query.Time: // in UTC, a fraction with six digits
		return "CASE WHEN " + kind + " = 'text' AND " + value +
			" GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]*' THEN " +
			"CASE WHEN " + value + " LIKE '%.%Z' THEN substr(rtrim(" + value + ", 'Z') || '00000', 1, 26) || 'Z' WHEN " + value +
			" LIKE '%Z' THEN " + value +
			" ELSE strftime('%Y-%m-%dT%H:%M:%SZ', " + value + ") END END" //nolint:dupword // SQL
	}
	return scalar
}

// sqliteQuantity is the number of a quantity, whose text is %s. t is the text, n its number, s its suffix, and e where
// the exponent of n is. A number below a nano is not rounded up to it, as resource.ParseQuantity does.
const sqliteQuantity = `(SELECT CASE
    WHEN m NOT GLOB '*[0-9]*' OR m GLOB '*[^0-9.]*' OR m GLOB '*.*.*' OR n GLOB '[+-][+-]*' OR length(n) > 63 THEN NULL
    WHEN e > 0 THEN CASE WHEN s = '' AND x GLOB '[0-9]*' AND x NOT GLOB '*[^0-9]*' AND length(x) < 3 AND substr(n, e + 1) NOT GLOB '[+-][+-]*'
      THEN CAST(n AS REAL) END
    WHEN length(s) < 2 AND instr('num kMGTPE', iif(s = '', ' ', s)) THEN CAST(n || 'e' || (3 * instr('num kMGTPE', iif(s = '', ' ', s)) - 12) AS REAL)
    WHEN length(s) = 2 AND s GLOB '[KMGTPE]i' THEN max(min(CAST(n AS REAL) * (1 << 10 * instr('KMGTPE', substr(s, 1, 1))), 9223372036854775807.0), -9223372036854775807.0)
    END
   FROM (SELECT *, ltrim(iif(e, substr(n, 1, e - 1), n), '+-') AS m, ltrim(substr(n, e + 1), '+-') AS x
    FROM (SELECT n, substr(t, length(n) + 1) AS s, instr(lower(n), 'e') AS e
     FROM (SELECT t, rtrim(t, 'numkKMGTPEi') AS n FROM (SELECT %s AS t)))))`

// sqlitePath returns a path in SQLite's syntax.
func sqlitePath(members []string) string {
	path := "$"
	for _, member := range members {
		if isPlain(member) {
			path += "." + member
		} else {
			path += `."` + member + `"`
		}
	}
	return path
}

// isPlain reports whether a member needs no quotes in a path.
func isPlain(member string) bool {
	return member != "" && strings.IndexFunc(member, func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}) < 0
}

// maxIdentifier is the length in bytes to which PostgreSQL cuts names.
const maxIdentifier = 63

// postgresColumns are the columns of a view of PostgreSQL: with the names that it cuts, and without those whose name
// another one has then.
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
func (s *Schema) current(t *Table, columns []query.Column) string {
	return fmt.Sprintf("SELECT %s\nFROM %s.resources r JOIN %s.current_objects o ON o.resource_id = r.id\n  %s\nWHERE %s",
		values(columns), identifier(s.store), identifier(s.store), s.parsed("o"), t.condition())
}

// values returns the expressions of columns over an object o and its parsed JSON jo.v.
func values(columns []query.Column) string {
	values := make([]string, len(columns))
	for i := range columns {
		values[i] = postgresColumn(&columns[i], postgresElement("o")) + " AS " + identifier(columns[i].Name)
	}
	return strings.Join(values, ",\n  ")
}

// parsed joins the parsed JSON of an object o, jo.v. OFFSET 0 has it parsed once a row. It is not parsed for a query
// that asks for none of it. The function doc parses it a second time, and so is called only for what may need it.
func (s *Schema) parsed(o string) string {
	return fmt.Sprintf(
		"CROSS JOIN LATERAL (SELECT CASE WHEN starts_with(%[1]s.value, '{') AND strpos(%[1]s.value, '\\u') = 0 THEN %[1]s.value::jsonb ELSE %[2]s.doc(%[1]s.value)::jsonb END AS v OFFSET 0) j%[1]s",
		o, identifier(s.store))
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
		return "jsonb_path_query_first(" + v + ", '$.metadata.ownerReferences[*] ? (@.controller == true)." +
			strings.TrimPrefix(c.Name, "owner_") + "') #>> '{}'"
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

// postgresQuantity is the number of a quantity, whose text is %s: exactly as resource.ParseQuantity reads it, and then
// the nearest double precision. A text of more than 63 characters, or with an exponent of more than two digits, which
// could fail, is NULL.
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

// revisionFunction is the name of the function that functions of the past call.
const revisionFunction = "byre_revision"

// past returns the query of a table's objects at the moment $1, with the columns in their order. A query with
// conditions on the key reads only what they select, because PostgreSQL inlines it.
func (s *Schema) past(t *Table, columns []query.Column) string {
	id := "(SELECT id FROM " + identifier(s.store) + ".resources WHERE " + t.condition() + ")"
	revision := fmt.Sprintf("(SELECT %s.%s($1, %s))", identifier(s.name), revisionFunction, id)
	return fmt.Sprintf("SELECT %s\nFROM %s o %s", values(columns), s.at(id, revision), s.parsed("o"))
}

// at returns a subquery of the objects of a resource at a revision: those that were last written up to then, and what
// was replaced or deleted later.
func (s *Schema) at(id, revision string) string {
	return fmt.Sprintf(`(
  SELECT c.namespace, c.name, c.revision, c.value FROM %[1]s.current_objects c
  WHERE c.resource_id = %[2]s AND c.revision <= %[3]s
  UNION ALL
  SELECT u.namespace, u.name, u.replaces, u.value FROM %[1]s.undo_log u
  WHERE u.resource_id = %[2]s AND u.replaces BETWEEN 1 AND %[3]s AND u.revision > %[3]s
)`, identifier(s.store), id, revision)
}

// pastDialect returns PostgreSQL's, with the objects of the moment $1. OFFSET 0 has the revision found once a resource,
// and the function is asked of a resource that the query selects only: the history of others may not reach back.
func (s *Schema) pastDialect() *dialect {
	d := s.dialect()
	d.objects = func(o, t, condition string) string {
		q, revision := "q"+o, "r"+o+".revision"
		return fmt.Sprintf(
			"%s\n  CROSS JOIN LATERAL (SELECT %s.%s($1, CASE WHEN %s.column2 IS NOT NULL THEN %s.id END) AS revision OFFSET 0) r%s\n  JOIN LATERAL %s %s ON true%s\n  %s",
			tableOf(identifier(s.store), t, q), identifier(s.name), revisionFunction, t, q, o, s.at(q+".id", revision), o,
			condition, s.parsed(o))
	}
	return d
}

// revisionFunction returns the statement that makes the function of this name: the revision of a moment, as
// sqlstore.Driver.RevisionAt finds it. It is NULL for NULL, and an error if the history of a resource does not reach
// back to the moment.
func (s *Schema) revisionFunction() string {
	store := identifier(s.store)
	return fmt.Sprintf(
		"CREATE OR REPLACE FUNCTION %s.%s(moment timestamptz, id_of integer) RETURNS bigint LANGUAGE plpgsql STABLE AS %s;\n",
		identifier(s.name), revisionFunction, literal(fmt.Sprintf(`
DECLARE
  found_revision bigint;
  earliest bigint;
  earliest_time timestamptz;
  resource_name text;
BEGIN
  IF moment IS NULL THEN
    RETURN NULL;
  END IF;
  WITH RECURSIVE search(low, high) AS (
      SELECT 0::bigint, coalesce((SELECT u.revision + 1 FROM %[1]s.undo_log u ORDER BY u.revision DESC LIMIT 1), 0)
    UNION ALL
      SELECT CASE WHEN middle.time <= moment THEN middle.revision ELSE s.low END,
             CASE WHEN middle.time <= moment THEN s.high ELSE (s.low + s.high) / 2 END
      FROM search s, LATERAL (SELECT u.revision, u.time FROM %[1]s.undo_log u
                              WHERE u.revision >= (s.low + s.high) / 2 AND s.low + 1 < s.high
                              ORDER BY u.revision LIMIT 1) middle
  )
  SELECT max(low) INTO found_revision FROM search;
  SELECT coalesce(r.complete_after, r.compacted), r.resource INTO earliest, resource_name FROM %[1]s.resources r WHERE r.id = id_of;
  IF earliest > found_revision THEN
    SELECT min(u.time) INTO earliest_time FROM %[1]s.undo_log u WHERE u.resource_id = id_of;
    RAISE EXCEPTION 'the history of %% does not reach back to %%: the earliest moment is revision %%, or %%',
      resource_name, moment, earliest, coalesce(earliest_time::text, 'that of the next change') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN found_revision;
END
`, store)))
}
