package sqlviews

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/query"
	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// TestSchema_CutsLongColumns: PostgreSQL cuts names of more than 63 bytes. A view of such columns is made, and is replaced while
// another view depends on it, where it gets another column.
func TestSchema_CutsLongColumns(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := d.Schema("k8s")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := d.Execute(t.Context(), `CREATE VIEW mine AS SELECT * FROM k8s."gears.example.com"`); err != nil {
		t.Fatal(err)
	}
	update(long+"a", long+"b", "spec_another", "spec_last")
}
