package sqlite

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"byre/migrations"
	"byre/sqlstore/storetest"
)

// manyObjects creates 100,000 objects of ten resources in a hundred namespaces, and as many
// changes, half of them updates. "make growth" creates more.
const manyObjects = `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
INSERT INTO objects (revision, "group", resource, owner, namespace, name, uid, created_revision, time, verb, who, form, expires, value)
SELECT i, '', 'resource' || (i % 10), 'builtin', 'namespace' || (i / 10 % 100), 'name' || i, 'uid', i,
       '2026-01-01T00:00:00.000000Z', 'create', 'someone', '', CASE WHEN i % 50 = 0 THEN '2026-01-01T00:00:00.000000Z' END, '{}'
FROM n;
INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value)
SELECT revision, time, CASE WHEN revision % 2 THEN 'create' ELSE 'update' END, verb, who, '', "group", resource, owner, namespace, name, uid,
       CASE WHEN revision % 2 THEN 0 ELSE revision - 1 END, created_revision, form, expires, value
FROM objects;
INSERT INTO archive SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, NULL, NULL FROM changes;
UPDATE counters SET revision = 100000`

// plans has, for each statement, the beginnings of the lines that EXPLAIN QUERY PLAN must
// return.
var plans = map[string]struct {
	query string
	want  []string
}{
	"whole":       {selectObjects, []string{"SCAN objects USING INDEX objects_key"}},
	"whole undo":  {selectUndo, []string{"MERGE (UNION ALL)", "LEFT", "SEARCH archive USING INTEGER PRIMARY KEY (rowid<?)", "SCALAR SUBQUERY", "SEARCH s", "RIGHT", "SEARCH changes USING INTEGER PRIMARY KEY (rowid>?)", "SCALAR SUBQUERY", "SEARCH s"}},
	"state":       {selectState, []string{"SEARCH s USING INTEGER PRIMARY KEY (rowid=?)", "SCALAR SUBQUERY", "SEARCH changes"}},
	"object":      {selectObject, []string{"SEARCH s USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH o USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?) LEFT-JOIN", "SCALAR SUBQUERY", "SEARCH changes"}},
	"revision":    {selectRevision, []string{"SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?)"}},
	"expired":     {selectExpired, []string{"SEARCH objects USING INDEX objects_expires (expires>? AND expires<?)"}},
	"replaced":    {insertReplaced, []string{"SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?)"}},
	"update":      {updateObject, []string{"SEARCH objects USING INTEGER PRIMARY KEY (rowid=?)"}},
	"delete":      {deleteObject, []string{"SEARCH objects USING INTEGER PRIMARY KEY (rowid=?)"}},
	"compact":     {deleteChanges, []string{"SEARCH changes USING INTEGER PRIMARY KEY (rowid<?)"}},
	"changes":     {selectChanges, []string{"SEARCH c USING INTEGER PRIMARY KEY (rowid>?)", "SEARCH n USING INDEX changes_key (group=? AND resource=? AND owner=? AND namespace=? AND name=? AND replaces=?) LEFT-JOIN", "SEARCH o USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"}},
	"list":        {listResource, []string{"SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND (namespace,name)>(?,?))"}},
	"list ns":     {listNamespace, []string{"SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name>?)"}},
	"list one":    {listObject, []string{"SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?)"}},
	"list at":     {listResourceAt, []string{"MERGE (UNION ALL)", "LEFT", "SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND (namespace,name)>(?,?))", "RIGHT", "SEARCH changes USING INDEX changes_key (group=? AND resource=? AND owner=? AND (namespace,name)>(?,?))"}},
	"list ns at":  {listNamespaceAt, []string{"MERGE (UNION ALL)", "LEFT", "SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name>?)", "RIGHT", "SEARCH changes USING INDEX changes_key (group=? AND resource=? AND owner=? AND namespace=? AND name>?)"}},
	"list one at": {listObjectAt, []string{"MERGE (UNION ALL)", "LEFT", "SEARCH objects USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?)", "RIGHT", "SEARCH changes USING INDEX changes_key (group=? AND resource=? AND owner=? AND namespace=? AND name=? AND replaces>? AND replaces<?)"}},
	"count":       {countResource, []string{"SEARCH objects USING COVERING INDEX objects_key (group=? AND resource=? AND owner=? AND (namespace,name)>(?,?))"}},
	"count ns":    {countNamespace, []string{"SEARCH objects USING COVERING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name>?)"}},
	"count at":    {countResourceAt, []string{"SCAN CONSTANT ROW", "SCALAR SUBQUERY", "SEARCH objects USING COVERING INDEX objects_key", "SCALAR SUBQUERY", "SEARCH changes USING INDEX changes_key", "CORRELATED SCALAR SUBQUERY", "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)"}},
	"count ns at": {countNamespaceAt, []string{"SCAN CONSTANT ROW", "SCALAR SUBQUERY", "SEARCH objects USING COVERING INDEX objects_key", "SCALAR SUBQUERY", "SEARCH changes USING INDEX changes_key", "CORRELATED SCALAR SUBQUERY", "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)"}},
	"usage":       {selectUsage, []string{"MATERIALIZE o", "SCAN objects", "SCAN o", "USE TEMP B-TREE FOR GROUP BY"}},
	"used":        {selectUsed, []string{"SCAN pages VIRTUAL TABLE INDEX 0:", "SCAN size VIRTUAL TABLE INDEX 0:", "SCAN free VIRTUAL TABLE INDEX 0:"}},
	"archive":     {insertArchive, []string{"SEARCH changes USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"}},
	"archived":    {selectNextArchived, []string{"SEARCH archive USING COVERING INDEX archive_time ((group,resource)>(?,?))"}},
	"prune":       {deleteArchived, []string{"SEARCH archive USING INTEGER PRIMARY KEY (rowid=?)", "LIST SUBQUERY", "SEARCH archive USING COVERING INDEX archive_time (group=? AND resource=? AND time<?)"}},
	"resources":   {selectResources, []string{"SEARCH changes USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", "USE TEMP B-TREE FOR DISTINCT"}},
	"history": {
		`SELECT * FROM history WHERE "group" = ? AND resource = ? AND owner = ? AND namespace = ? AND name = ? ORDER BY revision`,
		[]string{
			"CO-ROUTINE history", "COMPOUND QUERY", "LEFT-MOST SUBQUERY",
			"SEARCH c USING INDEX changes_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?)",
			"CORRELATED SCALAR SUBQUERY", "SEARCH n USING INDEX changes_key (group=? AND resource=? AND owner=? AND namespace=? AND name=? AND replaces=?)",
			"CORRELATED SCALAR SUBQUERY", "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)",
			"UNION ALL", "SEARCH a USING INDEX archive_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?)",
			"CORRELATED SCALAR SUBQUERY", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
			"CORRELATED SCALAR SUBQUERY", "SEARCH n USING INDEX archive_key (group=? AND resource=? AND owner=? AND namespace=? AND name=? AND replaces=?)",
			"CORRELATED SCALAR SUBQUERY", "SEARCH n USING INDEX changes_key (group=? AND resource=? AND owner=? AND namespace=? AND name=? AND replaces=?)",
			"CORRELATED SCALAR SUBQUERY", "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)",
			"UNION ALL", "SEARCH o USING INDEX objects_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?",
			"CORRELATED SCALAR SUBQUERY", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
			"CORRELATED SCALAR SUBQUERY", "SEARCH a USING INTEGER PRIMARY KEY (rowid=?)",
			"SCAN history", "USE TEMP B-TREE FOR ORDER BY",
		},
	},
	"one's history": {
		`SELECT * FROM changes WHERE "group" = ? AND resource = ? AND owner = ? AND namespace = ? AND name = ?`,
		[]string{"SEARCH changes USING INDEX changes_key (group=? AND resource=? AND owner=? AND namespace=? AND name=?)"},
	},
}

// Every statement uses an index, with and without the planner's statistics, and SQLite sorts no
// list.
func TestPlans_UseTheirIndexes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), "BEGIN;"+storetest.AtScale(manyObjects)+"; COMMIT"); err != nil {
		t.Fatal(err)
	}
	comparePlans(t, db, "")
	if _, err := db.ExecContext(t.Context(), `ANALYZE`); err != nil {
		t.Fatal(err)
	}
	comparePlans(t, db, " with statistics")
}

func comparePlans(t *testing.T, db *sql.DB, when string) {
	for name, p := range plans {
		got := explain(t, db, p.query)
		same := len(got) == len(p.want)
		for i := 0; same && i < len(got); i++ {
			same = strings.HasPrefix(got[i], p.want[i])
		}
		if !same {
			t.Errorf("%s%s:\n\t%s\nwant:\n\t%s", name, when, strings.Join(got, "\n\t"), strings.Join(p.want, "\n\t"))
		}
	}
}

func explain(t *testing.T, db *sql.DB, query string) (plan []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, make([]any, 17)...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var line string
		if err := rows.Scan(&id, &parent, &unused, &line); err != nil {
			t.Fatal(err)
		}
		if line == "SCAN s" { // the table store has one row, so that a scan is as fast as a search
			line = "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)"
		}
		plan = append(plan, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}
