package sqlviews

import (
	"fmt"
	"strings"

	"byre/apiserver/query"
)

// sqliteValue is the JSON of an object; NULL if it is none.
const sqliteValue = "CASE WHEN json_valid(value) THEN value END"

// SQLiteStatements returns statements that make a temporary view for each name of each table, for the sqlite3 shell.
func SQLiteStatements(tables []Table) string {
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	for i := range tables {
		t := &tables[i]
		var names, values []string
		for _, c := range t.columns() {
			names = append(names, identifier(c.Name))
			values = append(values, sqliteColumn(&c, sqliteValue))
		}
		fmt.Fprintf(&b, "CREATE TEMP VIEW %s (%s) AS\nSELECT %s\nFROM main.current_objects\nWHERE resource_id = (SELECT id FROM main.resources WHERE %s);\n",
			identifier(t.names()[0]), strings.Join(names, ", "), strings.Join(values, ",\n  "), t.condition())
		if len(t.names()) > 1 {
			fmt.Fprintf(&b, "CREATE TEMP VIEW %s AS SELECT * FROM temp.%s;\n", identifier(t.names()[1]), identifier(t.names()[0]))
		}
	}
	for _, e := range edges() {
		fmt.Fprintf(&b, "CREATE TEMP VIEW %s AS\n%s;\n", e.name, e.view(&sqliteDialect, tables, e.columns()))
	}
	b.WriteString("COMMIT;\n")
	return b.String()
}

// sqliteColumn returns the expression of a column over current_objects, which an index can have too: SQLite finds it in a
// query of the view, because no view is between the two. v is the expression of the object's JSON, or NULL.
func sqliteColumn(c *query.Column, v string) string {
	// Where a table of its own has a column "value". An index takes no name of a table.
	const qualified = "CASE WHEN json_valid(current_objects.value) THEN current_objects.value END"
	switch c.Source() {
	case "metadata.namespace":
		return "namespace"
	case "metadata.name":
		return "name"
	case "metadata.resourceVersion":
		return "revision"
	case "":
		return "CASE json_type(" + v + ") WHEN 'object' THEN json_set(" + v + ", '$.metadata.resourceVersion', CAST(revision AS TEXT)) END"
	case ownerPath:
		member := literal("$." + strings.TrimPrefix(c.Name, "owner_"))
		return "(SELECT r.value ->> " + member + " FROM json_each(" + qualified + ", '$.metadata.ownerReferences') r WHERE json_type(r.value, '$.controller') = 'true' LIMIT 1)"
	case containersPath:
		result := "coalesce(sum(s.value ->> '$.restartCount'), 0)"
		if c.Type == query.Text {
			result = "coalesce(sum(json_type(s.value, '$.ready') = 'true'), 0) || '/' || count(*)"
		}
		return "CASE json_type(" + v + ", '$.status.containerStatuses') WHEN 'array' THEN (SELECT " + result + " FROM json_each(" + qualified + ", '$.status.containerStatuses') s) END"
	}
	path := literal(sqlitePath(c.Path))
	kind, value, raw := "json_type("+v+", "+path+")", v+" ->> "+path, v+" -> "+path
	scalar := "CASE " + kind + " WHEN 'text' THEN " + value + " WHEN 'integer' THEN " + raw + " WHEN 'real' THEN " + raw + " END"
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
		return "CASE WHEN " + kind + " = 'text' AND " + value + " GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]*' THEN " +
			"CASE WHEN " + value + " LIKE '%.%Z' THEN substr(rtrim(" + value + ", 'Z') || '00000', 1, 26) || 'Z' WHEN " + value + " LIKE '%Z' THEN " + value +
			" ELSE strftime('%Y-%m-%dT%H:%M:%SZ', " + value + ") END END" //nolint:dupword // SQL
	}
	return scalar
}

// sqliteQuantity is the number of a quantity, whose text is %s. t is the text, n its number, s its suffix, and e where the
// exponent of n is. A number below a nano is not rounded up to it, as resource.ParseQuantity does.
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
