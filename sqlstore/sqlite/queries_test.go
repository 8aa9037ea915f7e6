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
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9)
INSERT INTO resources (id, "group", resource, defined_by, compacted) SELECT i, '', 'resource' || i, 'builtin', 0 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
INSERT INTO current_objects (revision, resource_id, namespace, name, uid, generation, created_revision, time, verb, subresource, manager, who, real_user, encoding, expires, value)
SELECT i, i % 10, 'namespace' || (i / 10 % 100), 'name' || i, 'uid', 0, i,
       '2026-01-01T00:00:00.000000Z', 'create', '', '', 'someone', '', '', CASE WHEN i % 50 = 0 THEN '2026-01-01T00:00:00.000000Z' END, '{}'
FROM n;
INSERT INTO undo_log (revision, time, op, verb, subresource, manager, who, real_user, audit_id, resource_id, namespace, name, uid, replaces, created_revision, encoding, expires, value)
SELECT revision, time, CASE WHEN revision % 2 THEN 'create' ELSE 'update' END, verb, '', '', who, '', '', resource_id, namespace, name, uid,
       CASE WHEN revision % 2 THEN 0 ELSE revision - 1 END, created_revision, encoding, expires, value
FROM current_objects;
UPDATE store SET revision = 100000`

// ofResourceLine is the line of a plan that finds the id of a resource.
const ofResourceLine = "SEARCH resources USING COVERING INDEX sqlite_autoindex_resources_1 (group=? AND resource=? AND defined_by=?)"

// plans has, for each statement, the beginnings of the lines that EXPLAIN QUERY PLAN must
// return.
var plans = map[string]struct {
	query string
	want  []string
}{
	"whole": {selectObjects, []string{
		"SCAN r USING COVERING INDEX sqlite_autoindex_resources_1",
		"SEARCH o USING INDEX current_objects_key (resource_id=?)",
	}},
	"whole undo": {selectUndo, []string{
		"SCAN u",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
	}},
	"state": {selectState, []string{
		"SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
		"SCALAR SUBQUERY",
		"SEARCH u",
	}},
	"compacted": {selectCompacted, []string{
		"SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
		"SCALAR SUBQUERY",
		"SEARCH r USING INDEX sqlite_autoindex_resources_1 (group=? AND resource=? AND defined_by=?)",
	}},
	"complete after": {selectCompleteAfter, []string{
		"SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
		"SCALAR SUBQUERY",
		"SEARCH r USING INDEX sqlite_autoindex_resources_1 (group=? AND resource=? AND defined_by=?)",
	}},
	"revision at": {selectRevisionAt, []string{
		"CO-ROUTINE search",
		"SETUP",
		"SCAN CONSTANT ROW",
		"SCALAR SUBQUERY",
		"SEARCH undo_log",
		"RECURSIVE STEP",
		"SEARCH s USING INTEGER PRIMARY KEY (rowid=?)", // a row of the search: it holds one at a time
		"SEARCH u USING INTEGER PRIMARY KEY (rowid=?)",
		"CORRELATED SCALAR SUBQUERY",
		"SEARCH undo_log USING INTEGER PRIMARY KEY (rowid>?)",
		"SEARCH search",
	}},
	"add": {insertResource, []string{
		"SEARCH store USING INTEGER PRIMARY KEY (rowid=?)",
	}},
	"object": {selectObject, []string{
		"SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
		"SEARCH o USING INDEX current_objects_key (resource_id=? AND namespace=? AND name=?) LEFT-JOIN",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"SCALAR SUBQUERY",
		"SEARCH u",
	}},
	"resource": {selectResource, []string{
		ofResourceLine,
	}},
	"revision": {selectRevision, []string{
		"SEARCH current_objects USING INDEX current_objects_key (resource_id=? AND namespace=? AND name=?)",
	}},
	"expired": {selectExpired, []string{
		"SEARCH o USING INDEX current_objects_expires (expires>? AND expires<?)",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
	}},
	"replaced": {insertReplaced, []string{
		"SEARCH current_objects USING INDEX current_objects_key (resource_id=? AND namespace=? AND name=?)",
	}},
	"update": {updateObject, []string{
		"SEARCH current_objects USING INTEGER PRIMARY KEY (rowid=?)",
	}},
	"delete": {deleteObject, []string{
		"SEARCH current_objects USING INTEGER PRIMARY KEY (rowid=?)",
	}},
	"histories": {selectHistories, []string{
		"SCAN r",
		"SEARCH f USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
		"CORRELATED SCALAR SUBQUERY",
		"SEARCH u USING COVERING INDEX undo_log_resource (resource_id=?)",
	}},
	"count changes": {countChanges, []string{
		"CO-ROUTINE (subquery-2)",
		"SEARCH u USING COVERING INDEX undo_log_resource (resource_id=? AND rowid<?)",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"SCAN (subquery-2)",
	}},
	"oldest": {selectOldest, []string{
		"SEARCH undo_log USING INDEX undo_log_resource (resource_id=? AND rowid<?)",
	}},
	"compact": {deleteChanges, []string{
		"SEARCH undo_log USING INDEX undo_log_resource (resource_id=? AND rowid<?)",
	}},
	"changes": {selectChanges, []string{
		"SEARCH c USING INTEGER PRIMARY KEY (rowid>?)",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
		"SEARCH n USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=? AND replaces=?) LEFT-JOIN",
		"SEARCH o USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
	}},
	"changes of": {selectChangesOf, []string{
		"SEARCH c USING INDEX undo_log_resource (resource_id=? AND rowid>?)",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
		"REUSE SUBQUERY",
		"SEARCH n USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=? AND replaces=?) LEFT-JOIN",
		"SEARCH o USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
	}},
	"keys of changes of": {selectChangeKeysOf, []string{
		"SEARCH u USING INDEX undo_log_resource (resource_id=? AND rowid>?)",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
		"REUSE SUBQUERY",
	}},
	"changes before": {selectChangesBefore, []string{
		"SEARCH c USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
		"SEARCH n USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=? AND replaces=?) LEFT-JOIN",
		"SEARCH o USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
	}},
	"changes of, before": {selectChangesOfBefore, []string{
		"SEARCH c USING INDEX undo_log_resource (resource_id=? AND rowid>? AND rowid<?)",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
		"REUSE SUBQUERY",
		"SEARCH n USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=? AND replaces=?) LEFT-JOIN",
		"SEARCH o USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
	}},
	"changes in, before": {selectChangesInBefore, []string{
		"SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
		"LIST SUBQUERY 1",
		"SCAN a",
		"SEARCH u USING COVERING INDEX undo_log_key (resource_id=? AND namespace=? AND name>? AND name<?)",
		"USE TEMP B-TREE FOR ORDER BY",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
		"SEARCH n USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=? AND replaces=?) LEFT-JOIN",
		"SEARCH o USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
	}},
	"changes in": {selectChangesIn, []string{
		"SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
		"LIST SUBQUERY 1",
		"SCAN a",
		"SEARCH u USING COVERING INDEX undo_log_key (resource_id=? AND namespace=? AND name>? AND name<?)",
		"USE TEMP B-TREE FOR ORDER BY",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
		"SEARCH n USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=? AND replaces=?) LEFT-JOIN",
		"SEARCH o USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
	}},
	"list": {listNow, []string{
		"SEARCH current_objects USING INDEX current_objects_key (resource_id=? AND (namespace,name)>(?,?) AND (namespace,name)<(?,?))",
		"SCALAR SUBQUERY",
		ofResourceLine,
	}},
	"list at": {listAt, []string{
		"MERGE (UNION ALL)",
		"LEFT",
		"SEARCH current_objects USING INDEX current_objects_key (resource_id=? AND (namespace,name)>(?,?) AND (namespace,name)<(?,?))",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"RIGHT",
		"SEARCH undo_log USING INDEX undo_log_key (resource_id=? AND (namespace,name)>(?,?) AND (namespace,name)<(?,?))",
		"SCALAR SUBQUERY",
		ofResourceLine,
	}},
	"many since": {hasManySince, []string{
		"SCAN CONSTANT ROW",
		"SCALAR SUBQUERY",
		"SEARCH undo_log USING COVERING INDEX undo_log_resource (resource_id=? AND rowid>?)",
		"SCALAR SUBQUERY",
		ofResourceLine,
	}},
	"list since": {listSince, []string{
		"MERGE (UNION ALL)",
		"LEFT",
		"SEARCH current_objects USING INDEX current_objects_key (resource_id=? AND (namespace,name)>(?,?) AND (namespace,name)<(?,?))",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"RIGHT",
		"SEARCH undo_log USING INDEX undo_log_resource (resource_id=? AND rowid>?)",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"USE TEMP B-TREE FOR ORDER BY",
	}},
	"count": {countNow, []string{
		"SEARCH current_objects USING COVERING INDEX current_objects_key (resource_id=? AND (namespace,name)>(?,?) AND (namespace,name)<(?,?))",
		"SCALAR SUBQUERY",
		ofResourceLine,
	}},
	"count at": {countAt, []string{
		"SCAN CONSTANT ROW",
		"SCALAR SUBQUERY",
		"SEARCH current_objects USING COVERING INDEX current_objects_key (resource_id=? AND (namespace,name)>(?,?) AND (namespace,name)<(?,?))",
		"SCALAR SUBQUERY",
		ofResourceLine,
		"SCALAR SUBQUERY",
		"SEARCH undo_log USING INDEX undo_log_resource (resource_id=? AND rowid>?)",
		"SCALAR SUBQUERY",
		ofResourceLine,
	}},
	"usage": {selectUsage, []string{
		"MATERIALIZE u",
		"MATERIALIZE o",
		"SCAN current_objects",
		"SCAN o",
		"USE TEMP B-TREE FOR GROUP BY",
		"SCAN u",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
	}},
	"used": {selectUsed, []string{
		"SCAN pages VIRTUAL TABLE INDEX 0:",
		"SCAN size VIRTUAL TABLE INDEX 0:",
		"SCAN free VIRTUAL TABLE INDEX 0:",
	}},
	"objects, as in the README": {`SELECT namespace, name, who, value ->> '$.spec.replicas' FROM objects WHERE resource = 'deployments'`, []string{
		"SCAN r",
		"SEARCH o USING INDEX current_objects_key (resource_id=?)",
	}},
	"history": {`SELECT * FROM history WHERE resource = ? AND namespace = ? AND name = ? ORDER BY revision`, []string{
		"CO-ROUTINE history",
		"COMPOUND QUERY",
		"LEFT-MOST SUBQUERY",
		"SCAN r",
		"SEARCH u USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=?)",
		"CORRELATED SCALAR SUBQUERY",
		"SEARCH n USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=? AND replaces=?)",
		"CORRELATED SCALAR SUBQUERY",
		"SEARCH o USING INTEGER PRIMARY KEY (rowid=?)",
		"UNION ALL",
		"SCAN r",
		"SEARCH o USING INDEX current_objects_key (resource_id=? AND namespace=? AND name=?)",
		"CORRELATED SCALAR SUBQUERY",
		"SEARCH u USING INTEGER PRIMARY KEY (rowid=?)",
		"SCAN history",
		"USE TEMP B-TREE FOR ORDER BY",
	}},
	"one's history": {`SELECT * FROM changes WHERE "group" = ? AND resource = ? AND defined_by = ? AND namespace = ? AND name = ?`, []string{
		"SEARCH r USING COVERING INDEX sqlite_autoindex_resources_1 (group=? AND resource=? AND defined_by=?)",
		"SEARCH u USING INDEX undo_log_key (resource_id=? AND namespace=? AND name=?)",
	}},
	"last changes": {`SELECT revision, who FROM changes ORDER BY revision DESC LIMIT 20`, []string{
		"SCAN u",
		"SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
	}},
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
