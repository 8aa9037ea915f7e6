package sqlviews

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/query"
	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// hostile are values of JSON, and of none, for a column of any type.
var hostile = []string{
	`null`, `true`, `false`, `0`, `-1`, `1.5`, `1e3`, `-0`, `9223372036854775807`, `9223372036854775808`,
	`-9223372036854775808`, `123456789012345678901234567890`,
	`""`, `"text"`, `"it's \"quoted\" \\"`, `"5"`, `"1.5"`, `"true"`, `"null"`, `"é\u2028"`, `[]`, `[1,"a"]`, `{}`,
	`{"a":{"b":1}}`,
	`"100m"`, `"1Ki"`, `"1.5Gi"`, `"12E"`, `"1E3"`, `"5e3"`, `"1e-3"`, `"+1"`, `"-2k"`, `".5"`, `"1."`, `"1.5.2"`, `"1 "`,
	`"0x10"`, `"1KB"`, `"Ki"`, `"+"`, `"--1"`, `"1e"`, `"1e+2"`,
	`"2026-01-31T12:00:00Z"`, `"2026-01-31T12:00:00.5Z"`, `"2026-01-31T12:00:00.123456Z"`, `"2026-01-31"`,
	`"2026-01-31 12:00:00Z"`, `"T"`,
}

// decoded is what a database has for a value of a column, as the catalog has it.
func decoded(of query.Type, got any) any {
	switch got := got.(type) {
	case []byte:
		return decoded(of, string(got))
	case string:
		if of == query.JSON {
			var document any
			if json.Unmarshal([]byte(got), &document) == nil {
				return document
			}
		}
	case int64:
		switch of {
		case query.Boolean:
			return got == 1
		case query.Real, query.Quantity:
			return float64(got)
		}
	}
	return got
}

func isSame(a, b any) bool {
	x, isNumber := a.(float64)
	y, areNumbers := b.(float64)
	if isNumber && areNumbers {
		return x == y || math.Abs(x-y) <= 1e-12*math.Abs(y)
	}
	return reflect.DeepEqual(a, b)
}

var columnTypes = []query.Type{query.Text, query.Integer, query.Real, query.Quantity, query.Boolean,
	query.Time, query.JSON}

// expectColumns expects of the expressions of columns what the catalog makes of the same values: NULL where they have
// another type. No value makes an expression fail. selects returns the values of expressions for an object.
func expectColumns(
	t *testing.T, isPostgres bool, column func(*query.Column) string,
	selects func(object, expressions string, values []any) error,
) {
	t.Helper()
	for _, member := range []string{"plain", "it's", `a"b`, "null", "a.b/c"} {
		if strings.Contains(member, `"`) && !isPostgres {
			continue // SQLite has no way to write such a path; no schema of Kubernetes has such a member
		}
		var expressions []string
		var columns []query.Column
		for _, of := range columnTypes {
			c := query.NewColumn("c", of, "", "spec", member)
			columns, expressions = append(columns, c), append(expressions, column(&c))
		}
		for _, text := range append(hostile, "") {
			if isPostgres && (text == "1e3" || text == "-0") {
				continue // jsonb writes numbers in its own way
			}
			name, _ := json.Marshal(member) // a string
			object := fmt.Sprintf(`{"spec":{%s:%s}}`, name, text)
			if text == "" {
				object = `{"spec":"none"}`
			}
			got := make([]any, len(columns))
			if err := selects(object, strings.Join(expressions, ", "), got); err != nil {
				t.Errorf("%s fails: %v", object, err)
				continue
			}
			for i := range columns {
				want := columns[i].Value([]byte(text))
				if text == "" {
					want = nil
				}
				if raw, ok := want.(query.RawJSON); ok {
					_ = json.Unmarshal(raw, &want) // it is valid
				}
				if have := decoded(columns[i].Type, got[i]); !isSame(have, want) {
					t.Errorf("%s of %s is %#v, want %#v", columns[i].Type, object, have, want)
				}
			}
		}
	}
}

func scan(row interface{ Scan(...any) error }, values []any) error {
	to := make([]any, len(values))
	for i := range values {
		to[i] = &values[i]
	}
	return row.Scan(to...)
}

func TestSQLiteColumn_IsWhatTheCatalogMakes(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	selects := func(object, expressions string, values []any) error {
		return scan(db.QueryRowContext(t.Context(), "SELECT "+expressions+" FROM (SELECT ?1 AS value) o", object), values)
	}
	expectColumns(t, false, func(c *query.Column) string { return sqliteColumn(c, sqliteElement("o")) }, selects)
	for _, encrypted := range []string{"k8s:enc:aesgcm:v1:x", "", "{"} {
		c := query.NewColumn("c", query.Text, "", "spec", "x")
		got := make([]any, 1)
		if err := selects(encrypted, sqliteColumn(&c, sqliteElement("o")), got); err != nil || got[0] != nil {
			t.Errorf("of %q: %v, %v", encrypted, got[0], err)
		}
	}
}

func TestPostgresColumn_IsWhatTheCatalogMakes(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	selects := func(object, expressions string, values []any) error {
		return scan(db.QueryRowContext(t.Context(), "SELECT "+expressions+" FROM (SELECT $1::text::jsonb AS v) o", object),
			values)
	}
	expectColumns(t, true, func(c *query.Column) string { return postgresColumn(c, "o.v") }, selects)
}

// Whatever an owner names, it is one text or one name to the database.
func TestQuoting_KeepsNamesWhole(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, name := range []string{"plain", `it's "quoted"`, `'; DROP TABLE objects; --`, `\`, ""} {
		var got, column string
		rows, err := db.QueryContext(t.Context(), "SELECT "+literal(name)+" AS "+identifier("c"+name))
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		columns, _ := rows.Columns() // of an open query
		if rows.Next() {
			err = rows.Scan(&got)
		}
		if column = columns[0]; err != nil || rows.Err() != nil || got != name || column != "c"+name {
			t.Errorf("%q is %q, its column %q: %v", name, got, column, err)
		}
		rows.Close() //nolint:sqlclosecheck // in a loop, where a defer would keep the connection
	}
}

func table(group, resource string, isCustom bool, columns ...query.Column) Table {
	return Table{&query.Table{Resource: schema.GroupResource{Group: group, Resource: resource}, Columns: columns},
		isCustom}
}

// PostgreSQL cuts names: of two columns with one name then, the first stays.
func TestPostgresColumns_HaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 40)
	of := table("", "things", false, query.NewColumn(long+"a", query.Text, "", "a"),
		query.NewColumn(long+"b", query.Text, "", "b"), query.NewColumn("c", query.Text, "", "c"))
	columns := postgresColumns(&of)
	if len(columns) != 2 || len(columns[0].Name) > maxIdentifier || columns[0].Path[0] != "a" || columns[1].Name != "c" {
		t.Errorf("the columns are %+v", columns)
	}
}

// TestSchema_CutsLongColumns: PostgreSQL cuts names of more than 63 bytes. A view of such columns is made, and is
// replaced while another view depends on it, where it gets another column.
func TestSchema_CutsLongColumns(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSchema(t.Context(), dsn, "k8s")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	long := "spec_" + strings.Repeat("long_", 12)
	update := func(names ...string) {
		t.Helper()
		table := query.Table{Resource: schema.GroupResource{Group: "example.com", Resource: "gears"}, Kind: "Gear"}
		for _, name := range names {
			table.Columns = append(table.Columns, query.NewColumn(name, query.Text, "", "spec", name))
		}
		left, err := s.Update(t.Context(), []Table{{Table: &table, IsCustom: true}})
		if err != nil || left["gears.example.com"] != nil {
			t.Fatal(left, err)
		}
	}
	update(long+"a", long+"b", "spec_last")
	if _, err := s.db.ExecContext(t.Context(), `CREATE VIEW mine AS SELECT * FROM k8s."gears.example.com"`); err != nil {
		t.Fatal(err)
	}
	update(long+"a", long+"b", "spec_another", "spec_last")
}
