package postgres

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// manyObjects creates 100,000 objects of ten resources in a hundred namespaces, and as many
// changes, half of them updates. "make growth" creates more.
const manyObjects = `
INSERT INTO objects (revision, "group", resource, owner, namespace, name, uid, created_revision, time, verb, who, form, expires, value)
SELECT i, '', 'resource' || (i % 10), 'builtin', 'namespace' || (i / 10 % 100), 'name' || i, 'uid', i, now(), 'create', 'someone', '',
       CASE WHEN i % 50 = 0 THEN now() END, '{}'
FROM generate_series(1, 100000) i;
INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value)
SELECT revision, time, CASE revision % 2 WHEN 1 THEN 'create' ELSE 'update' END, verb, who, '', "group", resource, owner, namespace, name, uid,
       CASE revision % 2 WHEN 1 THEN 0 ELSE revision - 1 END, created_revision, form, expires, value
FROM objects;
INSERT INTO archive SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value FROM changes;
UPDATE store SET revision = 1`

// plan is one node of EXPLAIN (FORMAT JSON).
type plan struct {
	NodeType     string `json:"Node Type"`
	RelationName string `json:"Relation Name"`
	CTEName      string `json:"CTE Name"`
	IndexName    string `json:"Index Name"`
	Plans        []plan
}

// violations lists the nodes that a plan must not have: scans of a whole table, hashes, and
// sorts of anything but the rows of a CTE, of a function or of the last changes.
func (p plan) violations() (all []string) {
	switch {
	case p.NodeType == "Seq Scan" && p.RelationName != "store":
		all = append(all, "Seq Scan on "+p.RelationName)
	case strings.HasPrefix(p.NodeType, "Hash"):
		all = append(all, p.NodeType)
	case strings.Contains(p.NodeType, "Sort") && !p.reads("CTE Scan") && !p.reads("Function Scan") && !p.sortsLastChanges():
		all = append(all, p.NodeType)
	}
	for _, child := range p.Plans {
		all = append(all, child.violations()...)
	}
	return all
}

// sortsLastChanges reports whether the plan sorts the few changes since a revision, which the
// planner may prefer for a list at a recent revision.
func (p plan) sortsLastChanges() bool {
	return len(p.Plans) == 1 && p.Plans[0].IndexName == "changes_pkey"
}

func (p plan) reads(node string) bool {
	if p.NodeType == node {
		return true
	}
	for _, child := range p.Plans {
		if child.reads(node) {
			return true
		}
	}
	return false
}

var (
	// page are the arguments of a list of one page; the first seven are those of a count.
	page  = []any{"", "resource3", "builtin", "namespace20", "name3", "", int64(90_000), int64(500), true}
	write = func() []any {
		one := []string{"x"}
		return []any{one, one, one, one, one, one, []int64{0}, one, one, []string{""}, one, one, one, one,
			int64(99_000), "epoch", "2020-01-01T00:00:00Z", "uid"}
	}()
)

// configurations are the statements, with arguments, that run before a statement in its
// transaction.
var configurations = map[string][]any{"apply": {configure, "1000", true}, "compact": {configureCompact, "1000"},
	"whole": {configureScan}, "whole undo": {configureScan},
	"resources": {configureCompact, "1000"}, "archive": {configureCompact, "1000"}, "prune": {configureCompact, "1000"},
}

// Every statement uses an index: right after the rows were written, when the planner has no
// statistics, and after ANALYZE.
func TestPlans_UseTheirIndexes(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `ALTER TABLE objects SET (autovacuum_enabled = off); ALTER TABLE changes SET (autovacuum_enabled = off); ALTER TABLE archive SET (autovacuum_enabled = off)`); err != nil {
		t.Fatal(err)
	}
	if err := conn.PgConn().Exec(t.Context(), storetest.AtScale(manyObjects)).Close(); err != nil {
		t.Fatal(err)
	}
	checkPlans(t, conn, "")
	if _, err := conn.Exec(t.Context(), `VACUUM ANALYZE`); err != nil {
		t.Fatal(err)
	}
	checkPlans(t, conn, " with statistics")
}

func checkPlans(t *testing.T, conn *pgx.Conn, when string) {
	for name, query := range map[string]struct {
		text      string
		arguments []any
	}{
		"whole":         {selectObjects, nil},
		"whole undo":    {selectUndo, nil},
		"state":         {selectState, []any{int64(99_000)}},
		"object":        {selectObject, []any{int64(99_000), "", "resource3", "builtin", "namespace20", "name203"}},
		"expired":       {selectExpired, []any{"2020-01-01T00:00:00Z", 500}},
		"changes":       {selectChanges, []any{99_000, 1000, 1 << 20}},
		"compact":       {deleteChanges, []any{1000, 100}},
		"epoch":         {newEpoch, []any{int64(99_000), "", "uid", epochGap, "@1/1"}},
		"moved epoch":   {moveEpoch, []any{"epoch", epochGap, "@1/1"}},
		"list":          {listResource, page},
		"list ns":       {listNamespace, page},
		"list one":      {listObject, page},
		"list at":       {listResourceAt, page},
		"list ns at":    {listNamespaceAt, page},
		"list one at":   {listObjectAt, page},
		"count":         {countResource, page[:7]},
		"count ns":      {countNamespace, page[:7]},
		"count at":      {countResourceAt, page[:7]},
		"count ns at":   {countNamespaceAt, page[:7]},
		"apply":         {applyBatch, write},
		"resources":     {selectResources, []any{1000, 1100}},
		"archive":       {insertArchive, []any{1000, 1100, "", "resource3"}},
		"archived":      {selectNextArchived, []any{"", "resource3"}},
		"prune":         {deleteArchived, []any{"", "resource3", "2020-01-01T00:00:00Z", 100}},
		"one's history": {`SELECT * FROM changes WHERE "group" = $1 AND resource = $2 AND owner = $3 AND namespace = $4 AND name = $5`, page[:5]},
	} {
		p := explain(t, conn, query.text, query.arguments, configurations[name])
		if violations := p.violations(); len(violations) > 0 {
			text, _ := json.MarshalIndent(p, "", " ")
			t.Errorf("%s%s: %v\n%s", name, when, violations, text)
		}
	}
}

// explain returns the plan of a query, in a transaction with the given configuration.
func explain(t *testing.T, conn *pgx.Conn, query string, arguments []any, configuration []any) plan {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if configuration != nil {
		if _, err := tx.Exec(t.Context(), configuration[0].(string), configuration[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	var text []byte
	if err := tx.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) "+query, arguments...).Scan(&text); err != nil {
		t.Fatalf("%v\n%s", err, query)
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}
