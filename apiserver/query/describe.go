package query

import (
	"maps"
	"slices"

	"github.com/ncruces/go-sqlite3"
)

// The tables that describe the others.
const (
	tablesTable  = "byre_tables"
	columnsTable = "byre_columns"
)

// describe makes byre_tables and byre_columns known: what can be asked. Whoever may ask may read them, as
// discovery and OpenAPI.
func (e *engine) describe(tables Tables) error {
	for name, of := range map[string]description{
		tablesTable: {
			ddl: `CREATE TABLE t (table_name TEXT, "group" TEXT, resource TEXT, version TEXT, description TEXT)`,
			rows: func(name string, t *Table) [][]string {
				return [][]string{{name, t.Resource.Group, t.Resource.Resource, t.Version, t.Description}}
			},
		},
		columnsTable: {
			ddl: "CREATE TABLE t (table_name TEXT, name TEXT, type TEXT, description TEXT, path TEXT)",
			rows: func(name string, t *Table) (rows [][]string) {
				for i := range t.Columns {
					c := &t.Columns[i]
					if c.IsHidden() {
						continue
					}
					rows = append(rows, []string{name, c.Name, c.Type.Name(), c.Description, c.Source()})
				}
				return rows
			},
		},
	} {
		of.engine, of.tables = e, tables
		if err := addModule(e, name, of.ddl, func() description { return of }); err != nil {
			return err
		}
	}
	return nil
}

// description is a virtual table of texts, of which the first is the name of a table.
type description struct {
	engine *engine
	tables Tables
	ddl    string
	// rows returns the rows of a table.
	rows func(name string, t *Table) [][]string
}

// BestIndex implements sqlite3.VTab: the rows of one table are found without those of others.
func (d description) BestIndex(info *sqlite3.IndexInfo) error {
	info.EstimatedCost = 1e6
	for i, c := range info.Constraint {
		if c.Usable && c.Op == sqlite3.INDEX_CONSTRAINT_EQ && c.Column == 0 {
			info.ConstraintUsage[i].ArgvIndex = 1
			info.EstimatedCost = 100
			break
		}
	}
	return nil
}

// Open implements sqlite3.VTab.
func (d description) Open() (sqlite3.VTabCursor, error) { return &texts{of: d}, nil }

// texts is a scan of a description.
type texts struct {
	of   description
	rows []textRow
	at   int
}

// textRow is a row of a description. SQLite finds by the ID that two scans have met the same row, whatever each selects.
type textRow struct {
	id    int64
	texts []string
}

// textRowBytes is about what a row of a description takes.
const textRowBytes = 200

// Filter implements sqlite3.VTabCursor.
func (t *texts) Filter(_ int, _ string, args ...sqlite3.Value) error {
	names := slices.AppendSeq(slices.AppendSeq(t.of.tables.Names(), maps.Keys(edges)), maps.Keys(logTables))
	slices.Sort(names)
	t.of.engine.budget.left += int64(len(t.rows)) * textRowBytes
	t.rows, t.at = nil, 0
	for i, name := range names {
		if len(args) > 0 && name != args[0].Text() {
			continue
		}
		if err := t.of.engine.ctx.Err(); err != nil {
			return err
		}
		table, err := t.of.tables.Table(t.of.engine.ctx, name)
		if err != nil {
			return t.of.engine.cause.keep(err)
		}
		if edge, ok := edges[name]; ok {
			table = &Table{Description: edge.Description, Columns: edge.Columns}
		}
		if columns, ok := logTables[name]; ok {
			table = &Table{Description: logDescriptions[name], Columns: columnsOf(columns)}
		}
		if table == nil {
			continue
		}
		for j, row := range t.of.rows(name, table) {
			t.rows = append(t.rows, textRow{int64(i)<<20 | int64(j), row})
			if err := t.of.engine.budget.take(textRowBytes); err != nil {
				return t.of.engine.cause.keep(err)
			}
		}
	}
	return nil
}

// Next implements sqlite3.VTabCursor.
func (t *texts) Next() error {
	t.at++
	return nil
}

// EOF implements sqlite3.VTabCursor.
func (t *texts) EOF() bool { return t.at >= len(t.rows) }

// RowID implements sqlite3.VTabCursor.
func (t *texts) RowID() (int64, error) { return t.rows[t.at].id, nil }

// Column implements sqlite3.VTabCursor.
func (t *texts) Column(result sqlite3.Context, n int) error {
	result.ResultText(t.rows[t.at].texts[n])
	return nil
}
