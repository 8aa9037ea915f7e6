package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// manyObjects creates 100,000 objects of ten resources in a hundred namespaces, and as many
// changes, half of them updates. "make growth" creates more.
const manyObjects = `
INSERT INTO resources (id, "group", resource, defined_by, compacted) SELECT i, '', 'resource' || i, 'builtin', 0 FROM generate_series(0, 9) i;
INSERT INTO current_objects (revision, resource_id, namespace, name, uid, generation, created_revision, time, verb, subresource, manager, who, real_user, encoding, expires, value)
SELECT i, i % 10, 'namespace' || (i / 10 % 100), 'name' || i, 'uid', 0, i, now(), 'create', '', '', 'someone', '', '',
       CASE WHEN i % 50 = 0 THEN now() END, '{}'
FROM generate_series(1, 100000) i;
INSERT INTO undo_log (revision, time, op, verb, subresource, manager, who, real_user, audit_id, resource_id, namespace, name, uid, replaces, created_revision, encoding, expires, value)
SELECT revision, time, CASE revision % 2 WHEN 1 THEN 'create' ELSE 'update' END, verb, '', '', who, '', '', resource_id, namespace, name, uid,
       CASE revision % 2 WHEN 1 THEN 0 ELSE revision - 1 END, created_revision, encoding, expires, value
FROM current_objects;
UPDATE store SET revision = 1`

// plan is one node of EXPLAIN (FORMAT JSON).
type plan struct {
	NodeType     string `json:"Node Type"`
	RelationName string `json:"Relation Name"`
	CTEName      string `json:"CTE Name"`
	IndexName    string `json:"Index Name"`
	IndexCond    string `json:"Index Cond"`
	Plans        []plan
}

// violations lists the nodes that a plan must not have: scans of a whole table, hashes, and
// sorts of anything but the rows of a CTE, of a function or of the last changes.
func (p plan) violations() (all []string) {
	switch {
	case p.NodeType == "Seq Scan" && p.RelationName != "store" && p.RelationName != "resources": // both are small
		all = append(all, "Seq Scan on "+p.RelationName)
	case strings.HasPrefix(p.NodeType, "Hash"):
		all = append(all, p.NodeType)
	case strings.Contains(p.NodeType, "Sort") && !p.reads("CTE Scan") && !p.reads("Function Scan") &&
		!p.sortsLastChanges() && !p.sortsNothing():
		all = append(all, p.NodeType)
	}
	for _, child := range p.Plans {
		all = append(all, child.violations()...)
	}
	return all
}

// searchesFor reports whether a search of an index has a condition with a text.
func (p plan) searchesFor(index, text string) bool {
	return p.IndexName == index && strings.Contains(p.IndexCond, text) ||
		slices.ContainsFunc(p.Plans, func(child plan) bool { return child.searchesFor(index, text) })
}

// sortsLastChanges reports whether the plan sorts the few changes since a revision.
func (p plan) sortsLastChanges() bool {
	for _, child := range p.Plans {
		if child.IndexName == "undo_log_pkey" || child.IndexName == "undo_log_resource" || child.sortsLastChanges() {
			return true
		}
	}
	return false
}

// sortsNothing reports whether the plan sorts the rows of a SELECT whose condition is false.
func (p plan) sortsNothing() bool {
	return len(p.Plans) == 1 && p.Plans[0].NodeType == "Result" && len(p.Plans[0].Plans) == 0
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

// noWrites are the arguments of applyBatch for a batch on another instance.
var noWrites = func() []any {
	one := []string{"x"}
	all := []any{one, one, one, one, one, one, []int64{0}, one, []int64{0}, one, []string{""}, one, one, one, one, one,
		one, one,
		int64(99_000), "2020-01-01T00:00:00Z", "uid", "instance"}
	return append(all,
		others([]sqlstore.Write{{Requires: &sqlstore.Requirement{}, RequiresNone: &sqlstore.Resource{}}})...)
}()

// configurations are the statements, with arguments, that run before a statement in its
// transaction.
var configurations = map[string][]any{"apply": {configure, "1000", true}, "compact": {configureCompact, "1000"},
	"whole": {configureScan}, "whole undo": {configureScan}, "usage": {allowScan},
	"one's history": {asPerson}, "by resource": {asPerson}, "history": {asPerson},
}

// asPerson takes back what configureReads turns off, for queries of a person.
const asPerson = `
SELECT set_config(name, 'on', true) FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) AS s(name)`

// searches are the indexes that some plans must search, each with a part of its condition.
var searches = map[string][2]string{
	"changes at": {"undo_log_key", "(name >= "}, "changes of": {"undo_log_resource", "resource_id"},
	"before, of": {"undo_log_resource", "(revision > "}, "keys of": {"undo_log_resource", "resource_id"},
	"histories":     {"undo_log_resource", "resource_id"},
	"count changes": {"undo_log_resource", "resource_id"}, "compact": {"undo_log_resource", "(resource_id >= "},
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
	if _, err := conn.Exec(t.Context(),
		`ALTER TABLE current_objects SET (autovacuum_enabled = off); ALTER TABLE undo_log SET (autovacuum_enabled = off)`); err != nil {
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

// statement is a statement with its arguments.
type statement struct {
	text      string
	arguments []any
}

// allStatements returns the driver's statements that read or write objects and changes. last is the last revision, and
// limit how many rows a list, or changes, return at most.
func allStatements(last, limit int) map[string]statement {
	of := []any{"", "resource3", "builtin"}
	page := append(slices.Clone(of), "namespace20", "name3", "", int64(last*9/10), int64(limit), true)
	at, count := append(slices.Clone(page), true), page[:7]
	near := last - last/100
	after, before := []any{near, limit, 1 << 20}, []any{0, limit, 1 << 20}
	in := func(page []any, more ...any) []any { return append(slices.Clone(page), more...) }
	return map[string]statement{
		"whole":      {selectObjects, of},
		"whole undo": {selectUndo, nil},
		"state":      {selectState, []any{int64(near)}},
		"object":     {selectObject, []any{int64(near), "", "resource3", "builtin", "namespace20", "name203"}},
		"expired":    {selectExpired, []any{"2019-01-01T00:00:00Z", "2020-01-01T00:00:00Z", limit}},
		"changes":    {selectChanges, after},
		"changes of": {selectChangesOf, in(after, of...)},
		"changes in": {selectChangesIn, in(after, "", "", "builtin", "namespace20", "namespace20", "", "z", 0)},
		"changes at": {selectChangesIn,
			in(after, "", "resource3", "builtin", "namespace20", "namespace20", "name203", "name203", 0)},
		"keys of":    {selectChangeKeysOf, in(after[:2], of...)},
		"before":     {selectChangesBefore, in(before, near)},
		"before, of": {selectChangesOfBefore, in(in(before, of...), near)},
		"before, at": {selectChangesIn,
			in(before, "", "resource3", "builtin", "namespace20", "namespace20", "name203", "name203", near)},
		"compact":       {deleteHistory, in(of, 1000, "2020-01-01T00:00:00Z", 100)},
		"histories":     {selectHistories, nil},
		"compacted":     {selectCompacted, of},
		"complete":      {selectCompleteAfter, of},
		"revision at":   {selectRevisionAt, []any{"2020-01-01T00:00:00Z"}},
		"compact all":   {compactAll, nil},
		"count changes": {countChanges, in(of, int64(last), limit)},
		"add":           {addResources, []any{[]string{""}, []string{"resource3"}, []string{"builtin"}, "instance"}},
		"epoch":         {beginEpoch, []any{int64(last * 10), "1/1/1"}},
		"lineage":       {storeLineage, []any{"1/1/1"}},
		"list":          {listResource, page},
		"list ns":       {listNamespace, page},
		"list one":      {listObject, page},
		"list at":       {listResourceAt, at},
		"list ns at":    {listNamespaceAt, at},
		"list since":    {listResourceSince, at},
		"list ns since": {listNamespaceSince, at},
		"list one at":   {listObjectAt, at},
		"count":         {countResource, count},
		"count ns":      {countNamespace, count},
		"count at":      {countResourceAt, count},
		"count ns at":   {countNamespaceAt, count},
		"apply":         {applyBatch, noWrites},
		"usage":         {selectUsage, nil},
		"retained for":  {updateRetainedFor, []any{[]string{""}, []string{"resource3"}, []string{"builtin"}, []int64{60}}},
		"history of":    {updateHistory, in(of, near)},
		"store":         {updateCompacted, []any{near}},
		"lock":          {lock, []any{"1000", "instance"}},
	}
}

// views are queries of a person.
var views = map[string]statement{
	"one's history": {`SELECT * FROM changes WHERE "group" = $1 AND resource = $2 AND defined_by = $3 AND namespace = $4 AND name = $5`, []any{"", "resource3", "builtin", "namespace20", "name203"}},
	"by resource":   {`SELECT namespace, name, who, doc(value) #>> '{spec,replicas}' FROM objects WHERE resource = $1 AND namespace = $2`, []any{"resource3", "namespace20"}},
	"history": {`SELECT * FROM history WHERE resource = $1 AND namespace = $2 AND name = $3`,
		[]any{"resource3", "namespace20", "name203"}},
}

func checkPlans(t *testing.T, conn *pgx.Conn, when string) {
	all := allStatements(100_000, 500)
	maps.Copy(all, views)
	for name, query := range all {
		p := explain(t, conn, query.text, query.arguments, configurations[name])
		violations := p.violations()
		if name == "usage" { // of all objects
			violations = slices.DeleteFunc(violations, func(v string) bool { return v == "Seq Scan on current_objects" })
		}
		if want, found := searches[name]; found && !p.searchesFor(want[0], want[1]) {
			violations = append(violations, "no search of "+want[0]+" for "+want[1])
		}
		if len(violations) > 0 {
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
	if _, err := tx.Exec(t.Context(), configureReads); err != nil {
		t.Fatal(err)
	}
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

// selectPages counts the pages that the transaction has read from the tables, their indexes and TOAST tables, in
// shared buffers or not.
const selectPages = `
SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::bigint FROM pg_class
WHERE relnamespace IN (current_schema()::regnamespace, 'pg_toast'::regnamespace)`

// growing is a store with sessions that were opened while it was empty.
type growing struct {
	dsn            string
	reader, writer *pgx.Conn
}

func (g *growing) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), g.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// open opens the sessions.
func (g *growing) open(t *testing.T) {
	t.Helper()
	g.reader, g.writer = g.connect(t), g.connect(t)
	if _, err := g.reader.Exec(t.Context(), configureReads); err != nil {
		t.Fatal(err)
	}
	if _, err := g.writer.Exec(t.Context(), configure, "1000", false); err != nil {
		t.Fatal(err)
	}
}

// run executes a statement, in a transaction that it rolls back, and returns how many pages it reads and how many rows
// it returns.
func (g *growing) run(t *testing.T, name string, s statement) (pages, rows int) {
	t.Helper()
	conn := g.reader
	if s.text == applyBatch {
		conn = g.writer
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if c := configurations[name]; c != nil && s.text != applyBatch {
		if _, err := tx.Exec(t.Context(), c[0].(string), c[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	var before, after int
	if err := tx.QueryRow(t.Context(), selectPages).Scan(&before); err != nil {
		t.Fatal(err)
	}
	result, err := tx.Query(t.Context(), s.text, s.arguments...)
	if err != nil {
		t.Fatal(name, err)
	}
	for result.Next() {
		rows++
	}
	if err := result.Err(); err != nil {
		t.Fatal(name, err)
	}
	if err := tx.QueryRow(t.Context(), selectPages).Scan(&after); err != nil {
		t.Fatal(err)
	}
	return after - before, rows
}

// grown is how many objects the store grows to.
const grown = 20_000

// grow fills the store on another session: it had the first rows before, and has all of them then.
func (g *growing) grow(t *testing.T, before, all int) {
	t.Helper()
	text := strings.NewReplacer(
		"generate_series(1, 100000)", fmt.Sprintf("generate_series(%d, %d)", before+1, all),
		"'{}'", `'{"a":"' || repeat(md5(i::text), 20) || '"}'`, "FROM current_objects;",
		fmt.Sprintf("FROM current_objects WHERE revision > %d;", before),
		"generate_series(0, 9) i;", "generate_series(0, 9) i ON CONFLICT DO NOTHING;").Replace(manyObjects)
	if err := g.connect(t).PgConn().Exec(t.Context(), text).Close(); err != nil {
		t.Fatal(err)
	}
}

// batches returns batches of 30 writes of each kind, as applyBatch with its arguments. Each requires an object, which
// is there, and that another resource has none.
func (g *growing) batches(t *testing.T) map[string]statement {
	t.Helper()
	var o observation
	if err := g.reader.QueryRow(t.Context(), selectState, int64(grown)).Scan(o.columns()...); err != nil {
		t.Fatal(err)
	}
	key := func(i int) sqlstore.Key {
		return sqlstore.Key{Resource: fmt.Sprint("resource", i%10), Namespace: fmt.Sprint("namespace", i/10%100),
			Name: fmt.Sprint("name", i)}
	}
	all := map[string]statement{}
	for _, op := range []sqlstore.Op{sqlstore.Create, sqlstore.Update, sqlstore.Delete} {
		var batch []sqlstore.Write
		for n := range 30 {
			i := 3 + 60*n
			w := sqlstore.Write{
				Op: op, Key: key(i), Replaces: int64(i), UID: "uid", Value: []byte(`{}`),
				Requires: &sqlstore.Requirement{Key: key(i + 10)}, RequiresNone: &sqlstore.Resource{Resource: "none"},
			}
			if op == sqlstore.Create {
				w.Key.Name, w.Replaces = w.Key.Name+"a", 0
			}
			batch = append(batch, w)
		}
		arguments := append(arrays(batch), o.Revision, "", "", o.instance)
		all[string(op)] = statement{applyBatch, append(arguments, others(batch)...)}
	}
	return all
}

// examined is how many rows or entries of an index some statements look at beside those that they return.
var examined = map[string]int{
	"count": grown / 10, "count at": grown/10 + grown/100, "count ns at": grown / 100, "list since": grown / 100,
	"list ns since": grown / 100,
	"changes in":    grown / 100, "compact": 100, "usage": grown,
}

// TestPlans_StayLookupsWhenTablesGrow: plans that the server made while the tables were empty or small, and those that
// it makes without statistics, as of an imported database and after pg_upgrade, read a few pages a row, however many
// rows there are.
func TestPlans_StayLookupsWhenTablesGrow(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	cluster, err := pgtest.Config{Settings: []string{"autovacuum=off"}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Remove)
	for _, test := range []struct {
		name string
		// before are the rows when the sessions are opened. analyzed says that they are counted then, and
		// warm that each statement is executed then, until the server has a generic plan.
		before         int
		analyzed, warm bool
	}{
		{"empty", 0, false, true},
		{"analyzed_empty", 0, true, true},
		{"analyzed_small", 20, true, true},
		{"analyzed", grown, true, true},
		{"imported", grown, false, false},
		{"imported_generic", grown, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := cluster.Exec(t.Context(), `CREATE DATABASE `+test.name); err != nil {
				t.Fatal(err)
			}
			g := &growing{dsn: cluster.DSN(test.name)}
			if _, err := migrations.Up(t.Context(), g.dsn); err != nil {
				t.Fatal(err)
			}
			g.grow(t, 0, test.before)
			if test.analyzed {
				if _, err := g.connect(t).Exec(t.Context(), `VACUUM ANALYZE`); err != nil {
					t.Fatal(err)
				}
			}
			g.open(t)
			if test.warm {
				g.warm(t)
			}
			g.grow(t, test.before, grown)
			statements := allStatements(grown, 10)
			maps.Copy(statements, g.batches(t))
			for name, s := range statements {
				pages, rows := g.run(t, name, s)
				if limit := 40 + 12*rows + 2*examined[name]; pages > limit {
					t.Errorf("%s reads %d pages for %d rows, more than %d", name, pages, rows, limit)
				}
				t.Logf("%s: %d pages, %d rows", name, pages, rows)
			}
		})
	}
}

// warm executes each statement until the server has a generic plan, which it makes at the sixth execution.
func (g *growing) warm(t *testing.T) {
	t.Helper()
	for name, s := range allStatements(grown, 10) {
		for range 7 {
			g.run(t, name, s)
		}
	}
}

// While a snapshot is open, as that of pg_dump is for its whole run, PostgreSQL can't remove
// deleted and replaced rows. Commits and compaction continue nevertheless, and a read of the
// store's state touches as few pages as before.
func TestReads_StayFlatUnderAnOldSnapshot(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver, err := Open(t.Context(), dsn+"&options=-c%20synchronous_commit%3Doff", Options{AllowLoss: true})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	resource := func(i int) string { return fmt.Sprint("resource", i) }
	create := func(resources, from, to int) (last int64) {
		t.Helper()
		for i := from; i < to; i++ {
			o, err := driver.Commit(t.Context(), []sqlstore.Write{{
				Op: sqlstore.Create, Key: sqlstore.Key{Resource: resource(i % resources), Name: fmt.Sprint(i)}, Value: []byte(`{}`),
			}})
			if err != nil || o[0].Err != nil {
				t.Fatal(o, err)
			}
			last = o[0].Revision
		}
		return last
	}
	conns := make([]*pgx.Conn, 2)
	for i := range conns {
		if conns[i], err = pgx.Connect(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close(context.Background())
	}
	create(1, 0, 10)
	dump, conn := conns[0], conns[1]
	if _, err := dump.Exec(t.Context(),
		`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM objects`); err != nil {
		t.Fatal(err)
	}
	before := buffers(t, conn, selectState, int64(10))
	last := create(1, 10, 1500)
	if now := buffers(t, conn, selectState, last); now > before+4 {
		t.Errorf("a read of the state touched %d pages before 1500 commits, and %d after", before, now)
	}
	storetest.Compact(t, driver, last)
	if now := buffers(t, conn, selectState, last); now > before+8 {
		t.Errorf("a read of the state touched %d pages before a compaction of all, and %d after", before, now)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != last || state.Compacted != last {
		t.Errorf("state: %+v, %v", state, err)
	}
	if next := create(1, 1500, 1501); next != last+1 {
		t.Errorf("revision %d after %d", next, last)
	}

	// Only the chunks of the first resource raise the compacted revision of the store.
	const resources = 100
	last = create(resources, 1501, 3000)
	before = buffers(t, conn, selectState, last)
	for i := resources - 1; i >= 0; i-- {
		deletion := sqlstore.Deletion{Of: sqlstore.Resource{Resource: resource(i)}, UpTo: last, Limit: 1}
		for deleted := 1; deleted > 0; {
			if deleted, _, err = driver.DeleteHistory(t.Context(), deletion); err != nil {
				t.Fatal(err)
			}
		}
	}
	if now := buffers(t, conn, selectState, last); now > before+4 {
		t.Errorf("a read of the state touched %d pages before a compaction of %d resources, and %d after", before, resources,
			now)
	}
}

// buffers returns how many pages a query touches.
func buffers(t *testing.T, conn *pgx.Conn, query string, arguments ...any) int {
	t.Helper()
	var text []byte
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query,
		arguments...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}
