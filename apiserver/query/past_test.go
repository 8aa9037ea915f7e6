package query

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"byre/sqlstore"
)

// change writes an object as a user, and returns the revision.
func (f *fixture) change(who string, op sqlstore.Op, resource, namespace, name, text string) int64 {
	f.Helper()
	key := sqlstore.Key{Namespace: namespace, Resource: resource, Name: name}
	w := sqlstore.Write{Op: op, Key: key, UID: "u-" + name,
		Author: sqlstore.Author{User: who, Verb: string(op), Manager: "m-" + who}}
	if op != sqlstore.Delete {
		w.Value = []byte(text)
	}
	if op != sqlstore.Create {
		old, _, err := f.driver.Get(f.Context(), key)
		if err != nil {
			f.Fatal(err)
		}
		w.Replaces = old.Revision
	}
	change, err := f.store.Commit(f.Context(), w)
	if err != nil {
		f.Fatal(err)
	}
	return change.Revision
}

func podText(namespace, name, node string) string {
	return fmt.Sprintf(
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u-%s","labels":{"node":%q}},"spec":{"nodeName":%q,"containers":[]},"status":{}}`, name, namespace, name, node, node)
}

func (f *fixture) namespace(name string) int64 {
	f.Helper()
	return f.change("admin", sqlstore.Create, "namespaces", "", name,
		`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"`+name+`"}}`)
}

func TestPast_ShowsWhatWas(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	f.change("ann", sqlstore.Create, "pods", "shop", "web", podText("shop", "web", "n1"))
	first := f.change("ann", sqlstore.Create, "pods", "shop", "db", podText("shop", "db", "n1"))
	f.change("bob", sqlstore.Update, "pods", "shop", "web", podText("shop", "web", "n2"))
	last := f.change("eve", sqlstore.Delete, "pods", "shop", "db", "")
	at := fmt.Sprint(first)
	f.expect("admin", "SELECT name, node FROM pods", `"web" "n2"`)
	for _, sql := range []string{
		"SELECT name, node FROM pods(" + at + ") ORDER BY 1",
		"SELECT name, node FROM pods('" + at + "') WHERE namespace = 'shop' ORDER BY 1",
		"SELECT p.name, p.node FROM (SELECT " + at + " AS moment) m JOIN pods(m.moment) p ORDER BY 1",
	} {
		f.expect("admin", sql, "\"db\" \"n1\"\n\"web\" \"n1\"")
	}
	f.expect("admin", "SELECT node FROM pods("+at+") WHERE namespace = 'shop' AND name = 'web'", `"n1"`)
	f.expect("admin", "SELECT name FROM pods("+at+") WHERE node = 'n1' AND uid = 'u-db'", `"db"`)
	f.expect("admin",
		"SELECT count(*) FROM pods("+at+") WHERE namespace = 'other' OR namespace = 'shop' AND name = 'none'", "0")
	f.expect("admin", "SELECT count(*) FROM pods(NULL)", "0")
	f.expect("admin", "SELECT now.node, was.node FROM pods now JOIN pods("+at+") was ON was.uid = now.uid", `"n2" "n1"`)
	f.expect("admin", "SELECT (SELECT count(*) FROM pods('-0s')), (SELECT count(*) FROM pods("+fmt.Sprint(last)+"))",
		"1 1")
	for table, want := range map[string]string{
		fmt.Sprintf("pods(%d)", last+1000): "400 there is no revision",
		"pods('soon')":                     "400 is neither a revision nor a time",
		"pods_history('-2h')":              "400 pods_history takes no moment: compare valid_from and valid_to",
	} {
		_, err := f.ask("admin", "SELECT * FROM "+table)
		got, message := code(err)
		if text := fmt.Sprint(got, " ", message); !strings.HasPrefix(text, want[:3]) || !strings.Contains(text, want[4:]) {
			t.Errorf("%s: %s, want %s", table, text, want)
		}
	}
	q := &Query{Spec: Spec{SQL: "SELECT name, node FROM pods ORDER BY 1", At: at}}
	if got, err := run(f.Context(), f.Storage, "admin", q); got != "\"db\" \"n1\"\n\"web\" \"n1\"" || err != nil ||
		q.Status.ResourceVersion != at {
		t.Errorf("%s at revision %s: %v", got, q.Status.ResourceVersion, err)
	}
	q = &Query{Spec: Spec{SQL: "SELECT name, value FROM labels WHERE resource = 'pods' ORDER BY 1", At: at}}
	if got, err := run(f.Context(), f.Storage, "admin", q); got != "\"db\" \"n1\"\n\"web\" \"n1\"" || err != nil {
		t.Errorf("labels at revision %s: %s, %v", at, got, err)
	}
	q = &Query{Spec: Spec{SQL: "SELECT max(revision), (SELECT max(valid_to) FROM pods_history) IS NULL, (SELECT count(*) FROM pods(changes.revision)) FROM changes", At: at}}
	if got, err := run(f.Context(), f.Storage, "admin", q); got != at+" 1 2" || err != nil {
		t.Errorf("a query of the past sees what is later: %s, %v", got, err)
	}
	// What retention has deleted is an error, not fewer rows.
	if _, _, err := f.driver.DeleteHistory(t.Context(),
		sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: last - 1, Limit: 100}); err != nil {
		t.Fatal(err)
	}
	_, err := f.ask("admin", "SELECT * FROM pods("+at+")")
	if got, message := code(err); got != 410 ||
		!strings.Contains(message, fmt.Sprintf("the earliest moment is revision %d", last-1)) {
		t.Errorf("after retention: %d %s", got, message)
	}
	f.expect("admin", "SELECT count(*) FROM changes WHERE resource = 'pods'", "1")
}

func TestChanges_TellWhoChangedWhat(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	one := f.change("ann", sqlstore.Create, "pods", "shop", "web", podText("shop", "web", "n1"))
	two := f.change("bob", sqlstore.Update, "pods", "shop", "web", podText("shop", "web", "n2"))
	three := f.change("eve", sqlstore.Delete, "pods", "shop", "web", "")
	f.expect("admin",
		"SELECT revision, who, verb, manager, resource, namespace, name, uid, replaces FROM changes WHERE resource = 'pods'",
		fmt.Sprintf(
			`%d "ann" "create" "m-ann" "pods" "shop" "web" "u-web" null
%d "bob" "update" "m-bob" "pods" "shop" "web" "u-web" %d
%d "eve" "delete" "m-eve" "pods" "shop" "web" "u-web" %d`, one, two, one, three, two))
	f.expect("admin", "SELECT who, path, old, new FROM field_changes",
		"\"bob\" \"spec.nodeName\" \"n1\" \"n2\"\n\"bob\" \"metadata.labels.node\" \"n1\" \"n2\"")
	f.expect("admin",
		"SELECT before ->> '$.spec.nodeName', after FROM changes WHERE verb = 'delete' AND namespace = 'shop' AND name = 'web'", `"n2" null`)
	f.expect("admin", "SELECT count(*) FROM changes WHERE time > ago('1h') AND resource = 'pods'", "3")
	f.expect("admin", "SELECT count(*) FROM changes WHERE time > ago('-1h') OR time < ago('1h')", "0")
	f.expect("admin",
		"SELECT valid_from IS NULL, valid_to IS NULL, who, verb, ended_by, ended_verb, name, node FROM pods_history ORDER BY revision",
		"0 0 \"ann\" \"create\" \"bob\" \"update\" \"web\" \"n1\"\n0 0 \"bob\" \"update\" \"eve\" \"delete\" \"web\" \"n2\"")
	f.expect("admin", "SELECT count(*) FROM pods_history a JOIN pods_history b ON a.valid_to = b.valid_from", "1")
	f.expect("admin", "SELECT count(*) FROM byre_columns WHERE table_name = 'field_changes' AND name = 'path'", "1")
	if _, err := f.ask("admin", "SELECT ago('long')"); !strings.Contains(fmt.Sprint(err), "ago takes a duration") {
		t.Error(err)
	}
}

// The rows of the past are those of who may list changes too, and of the namespace that there is now.
func TestPast_FollowsTheRightsOfChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	f.namespace("bank")
	f.pod("bank", "canary-bank", "n")
	old := f.change("ann", sqlstore.Create, "pods", "shop", "canary-old", podText("shop", "canary-old", "n"))
	f.change("ann", sqlstore.Delete, "pods", "shop", "canary-old", "")
	f.change("admin", sqlstore.Delete, "namespaces", "", "shop", "")
	f.namespace("shop")
	f.pod("shop", "mine", "n")
	last := f.change("ann", sqlstore.Update, "pods", "shop", "mine", podText("shop", "mine", "n2"))
	f.allowed["lister pods shop"], f.allowed["tenant pods shop"], f.allowed["tenant changes shop"] = true, true, true
	f.allowed["all pods "], f.allowed["all changes "] = true, true
	for who, want := range map[string]string{"lister": "0 0 0 1", "tenant": "0 1 2 2", "all": "2 2 5 4"} {
		f.expect(who,
			fmt.Sprintf(
				"SELECT (SELECT count(*) FROM pods(%d)), (SELECT count(*) FROM pods(%d)), (SELECT count(*) FROM changes), (SELECT count(*) FROM pods_history)", old, last), want)
	}
	for _, sql := range []string{
		fmt.Sprintf("SELECT object FROM pods(%d)", old),
		fmt.Sprintf("SELECT object FROM pods(%d) WHERE namespace = 'shop' AND name = 'canary-old'", old),
		fmt.Sprintf("SELECT object FROM pods(%d) WHERE namespace = 'bank'", last), "SELECT before, after, name FROM changes",
		"SELECT object FROM pods_history WHERE namespace = 'bank'",
		"SELECT * FROM field_changes", "SELECT name FROM pods_history WHERE uid LIKE '%canary%'",
	} {
		for _, who := range []string{"lister", "tenant"} {
			if got, err := f.ask(who, sql); strings.Contains(got, "canary") || err != nil {
				t.Errorf("%s asks %s: %s %v", who, sql, got, err)
			}
		}
	}
}

// What a table shows of a moment is what it showed then, and the plan changes no answer.
func TestPast_EqualsWhatWasRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test
	for i := range 3 {
		f.namespace(fmt.Sprint("ns", i))
	}
	const all = " ORDER BY namespace, name"
	recorded, live := map[int64]string{}, map[string]bool{}
	for range 150 {
		namespace, name := fmt.Sprint("ns", random.IntN(3)), fmt.Sprint("p", random.IntN(8))
		op, key := sqlstore.Create, namespace+"/"+name
		if live[key] {
			op = []sqlstore.Op{sqlstore.Update, sqlstore.Update, sqlstore.Delete}[random.IntN(3)]
		}
		live[key] = op != sqlstore.Delete
		revision := f.change("ann", op, "pods", namespace, name, podText(namespace, name, fmt.Sprint("n", random.IntN(4))))
		got, err := f.ask("admin", "SELECT namespace, name, revision, node FROM pods"+all)
		if err != nil {
			t.Fatal(err)
		}
		recorded[revision] = got
	}
	for revision, want := range recorded {
		f.expect("admin", fmt.Sprintf("SELECT namespace, name, revision, node FROM pods(%d)", revision)+all, want)
		f.expect("admin", fmt.Sprintf("SELECT namespace, name, revision, node FROM pods_history WHERE revision <= %d AND "+
			"NOT EXISTS (SELECT 1 FROM changes c WHERE c.resource = 'pods' AND c.revision > pods_history.revision AND c.revision <= %[1]d AND c.namespace = pods_history.namespace AND c.name = pods_history.name)", revision)+all, want)
		break // one of them at random: the second statement reads the changes for each row
	}
	for revision, want := range recorded {
		f.expect("admin", fmt.Sprintf("SELECT namespace, name, revision, node FROM pods(%d)", revision)+all, want)
	}
	f.expect("admin",
		"SELECT count(*) FROM pods_history WHERE revision NOT IN (SELECT revision FROM changes WHERE verb <> 'delete')", "0")
	values := map[string][]string{"namespace": {"'ns1'", "'none'", "7"}, "name": {"'p3'", "NULL"},
		"resource": {"'pods'", "'none'"}, "revision": {"30", "'x'", "2.5", "-9223372036854775808", "9223372036854775807"},
		"time": {"ago('1h')", "'2026-01-01'", "datetime()", "unixepoch()", "'yesterday 14:00'"}}
	for range 300 {
		var planned, scanned []string
		for column, of := range values {
			if random.IntN(2) == 0 {
				continue
			}
			operator, value := []string{"=", ">", ">=", "<", "<="}[random.IntN(5)], of[random.IntN(len(of))]
			kind := map[bool]string{true: "INTEGER", false: "TEXT"}[column == "revision"]
			// No plan uses a CAST, which has the affinity of the column.
			planned, scanned = append(planned, column+" "+operator+" "+value),
				append(scanned, "CAST("+column+" AS "+kind+") "+operator+" "+value)
		}
		table := []string{"changes", "field_changes"}[random.IntN(2)]
		order, limit := []string{"revision", "revision DESC"}[random.IntN(2)], random.IntN(20)
		rows := func(terms []string, order string) string {
			got, err := f.ask("admin",
				fmt.Sprintf(
					"SELECT count(*), total(revision), group_concat(revision) FROM (SELECT revision FROM %s WHERE %s ORDER BY %s LIMIT %d)", table, strings.Join(append(terms, "1"), " AND "), order, limit))
			return fmt.Sprint(got, err)
		}
		if got, want := rows(planned, order), rows(scanned, "+"+order); got != want {
			t.Fatalf("%s: %s, want %s", strings.Join(planned, " AND "), got, want)
		}
	}
}

// A detail table at a moment of its own shows what the query at this moment does, whatever the plan.
func TestPast_ShowsDetailTablesOfAMoment(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	f.change("ann", sqlstore.Create, "services", "shop", "s",
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"s","namespace":"shop"},"spec":{"selector":{"node":"n1"}}}`)
	f.change("ann", sqlstore.Create, "nodes", "", "n1",
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`)
	event := func(op sqlstore.Op, count int) int64 {
		return f.change("ann", op, "events", "shop", "e",
			fmt.Sprintf(
				`{"kind":"Event","apiVersion":"v1","metadata":{"name":"e","namespace":"shop"},"involvedObject":{"kind":"Pod","apiVersion":"v1","namespace":"shop","name":"p1"},"count":%d}`, count))
	}
	moments := []int64{event(sqlstore.Create, 1)}
	for i := range 6 {
		moments = append(moments,
			f.change("ann", sqlstore.Create, "pods", "shop", fmt.Sprint("p", i), podText("shop", fmt.Sprint("p", i), "n1")))
	}
	moments = append(moments, event(sqlstore.Update, 2),
		f.change("ann", sqlstore.Update, "pods", "shop", "p1", podText("shop", "p1", "n2")),
		f.change("ann", sqlstore.Delete, "pods", "shop", "p2", ""),
		f.change("ann", sqlstore.Update, "nodes", "", "n1",
			`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"spec":{}}`))
	distinct := map[string]bool{}
	for name := range detailTables {
		for _, moment := range moments {
			for _, where := range []string{"", " WHERE name = 'p1'", " WHERE namespace = 'shop' AND name = 's'",
				" WHERE resource = 'pods'", " WHERE resource = 'pods' AND namespace = 'shop'"} {
				want, err := run(t.Context(), f.Storage, "admin",
					&Query{Spec: Spec{SQL: "SELECT * FROM " + name + where, At: fmt.Sprint(moment)}})
				if err != nil {
					t.Fatal(err)
				}
				f.expect("admin", fmt.Sprintf("SELECT * FROM %s(%d)%s", name, moment, where), want)
				distinct[name+want] = true
			}
		}
	}
	if len(distinct) < 30 {
		t.Errorf("the detail tables showed no more than %d states", len(distinct))
	}
	f.expect("admin",
		fmt.Sprintf(
			"SELECT (SELECT count(*) FROM selectors(m.value)), (SELECT count(*) FROM selectors), (SELECT count(*) FROM selectors('-1h')), (SELECT count(*) FROM selectors(NULL)) FROM json_each('[%d]') m", moments[4]), "4 4 0 0")
	f.expect("admin",
		fmt.Sprintf("SELECT a.count, b.count FROM events_about(%d) a JOIN events_about b USING (resource, namespace, name)",
			moments[0]), "1 2")
	f.expect("admin",
		"SELECT e.count FROM pods p JOIN events_about e ON e.resource = 'pods' AND e.namespace = p.namespace AND e.name = p.name WHERE p.name = 'p1'", "2")

	// The rights are those of the past.
	f.allowed["lister pods "], f.allowed["tenant pods shop"], f.allowed["tenant changes shop"] = true, true, true
	for who, want := range map[string]string{"lister": "0", "tenant": "5", "nobody": "0"} {
		f.expect(who, fmt.Sprintf("SELECT count(*) FROM labels(%d) WHERE resource = 'pods' AND key = 'node'", moments[5]),
			want)
	}
	if _, _, err := f.driver.DeleteHistory(t.Context(),
		sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: moments[9], Limit: 100}); err != nil {
		t.Fatal(err)
	}
	if got, _ := code(func() error {
		_, err := f.ask("admin", fmt.Sprintf("SELECT * FROM labels(%d)", moments[0]))
		return err
	}()); got != 410 {
		t.Errorf("after retention the code is %d", got)
	}
	f.expect("admin", fmt.Sprintf("SELECT count(*) FROM node_taints(%d)", moments[0]), "1")
}

// reads is a driver that counts the lists, the changes that are read, and the bytes of their values.
type reads struct {
	sqlstore.Driver
	lists, changes, bytes int
}

// List implements sqlstore.Driver.
func (r *reads) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	r.lists++
	return r.Driver.List(ctx, q, yield)
}

// Changes implements sqlstore.Driver.
func (r *reads) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	read, err := r.Driver.Changes(ctx, q)
	r.changes += len(read)
	for i := range read {
		r.bytes += read[i].Size()
	}
	return read, err
}

// A statement reads the changes that it asks for, and no values unless it names them.
func TestChanges_AreReadAsFarAsAsked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	last := int64(0)
	for i := range 400 {
		name := fmt.Sprint("p", i)
		f.change("ann", sqlstore.Create, "pods", "shop", name, podText("shop", name, "n1"))
		last = f.change("ann", sqlstore.Update, "pods", "shop", name, podText("shop", name, "n2"))
	}
	driver := &reads{Driver: f.driver}
	f.config.Log.Driver = driver
	for _, c := range []struct {
		sql, want string
		// most bounds the changes that are read.
		most   int
		values bool
	}{
		{"SELECT revision, who FROM changes ORDER BY revision DESC LIMIT 2",
			fmt.Sprintf("%d \"ann\"\n%d \"ann\"", last, last-1), fewChanges, false},
		{"SELECT revision, verb FROM changes WHERE resource = 'pods' AND namespace = 'shop' ORDER BY revision DESC LIMIT 1",
			fmt.Sprintf("%d \"update\"", last), fewChanges, false},
		{"SELECT after ->> '$.metadata.name' FROM changes ORDER BY revision DESC LIMIT 1", `"p399"`, fewChanges, true},
		{"SELECT revision, path FROM field_changes ORDER BY revision DESC LIMIT 1", fmt.Sprintf("%d \"spec.nodeName\"", last),
			fewChanges, true},
		{"SELECT revision FROM changes ORDER BY revision LIMIT 1", "1", fewChanges, false},
		{fmt.Sprintf("SELECT verb FROM changes WHERE revision = %d", last-1), `"create"`, 2, false},
		{fmt.Sprintf("SELECT max(revision) FROM changes WHERE revision < %d", last-500), fmt.Sprint(last - 501), 600, false},
		{"SELECT count(*), count(uid), count(replaces) FROM changes", fmt.Sprintf("%d %d 400", last, last), int(last), false},
		{fmt.Sprintf("SELECT count(*) FROM (SELECT * FROM changes WHERE revision IN (7, %d) ORDER BY revision DESC)", last),
			"2", 200, true},
	} {
		driver.changes, driver.bytes = 0, 0
		f.expect("admin", c.sql, c.want)
		if driver.changes > c.most || (driver.bytes > 0) != c.values {
			t.Errorf("%s: %d changes of %d bytes were read, want at most %d, and values: %v", c.sql, driver.changes,
				driver.bytes, c.most, c.values)
		}
	}
}

// A subquery of the past that is evaluated for each row of another table reads it once, and what it holds is counted
// once.
func TestPast_IsReadOnceForAllRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	empty := f.namespace("shop")
	var first, last int64
	for i := range 50 {
		name := fmt.Sprint("p", i)
		first = f.change("ann", sqlstore.Create, "pods", "shop", name, podText("shop", name, "n1"))
	}
	for i := range 50 {
		name := fmt.Sprint("p", i)
		last = f.change("ann", sqlstore.Update, "pods", "shop", name, podText("shop", name, "n2"))
	}
	driver := &reads{Driver: f.driver}
	f.config.Log.Driver, f.config.Memory = driver, 1<<20
	namespaces := "json_each('[" + strings.TrimSuffix(strings.Repeat(`"shop",`, 300), ",") + "]') r"
	for table, want := range map[string]string{
		fmt.Sprintf("pods(%d)", empty): "0", fmt.Sprintf("pods(%d)", first): "15000", fmt.Sprintf("pods(%d)", last): "15000",
		"pods_history": "30000",
	} {
		driver.lists = 0
		f.expect("admin", "SELECT sum((SELECT count(*) FROM "+table+" o WHERE o.namespace = r.value)) FROM "+namespaces, want)
		if driver.lists > 3 {
			t.Errorf("%s was read %d times", table, driver.lists)
		}
	}
	// All rows, of which there are none.
	driver.lists = 0
	f.expect("admin",
		fmt.Sprintf("SELECT sum((SELECT count(*) FROM pods(%d) o WHERE o.name > r.value)) FROM ", empty)+namespaces, "0")
	if driver.lists > 3 {
		t.Errorf("a table without rows was read %d times", driver.lists)
	}
}

// Of a resource whose definition is gone there is what the history has, for who may do everything.
func TestPast_OutlivesDefinitions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	key := sqlstore.Key{Group: "example.com", Resource: "gears", Owner: sqlstore.Custom, Namespace: "shop", Name: "big"}
	text := func(teeth int) []byte {
		return fmt.Appendf(nil,
			`{"kind":"Gear","apiVersion":"example.com/v1","metadata":{"name":"big","namespace":"shop","labels":{"size":"xl"}},"spec":{"teeth":%d}}`, teeth)
	}
	var revisions []int64
	for i, op := range []sqlstore.Op{sqlstore.Create, sqlstore.Update, sqlstore.Delete} {
		w := sqlstore.Write{Op: op, Key: key, UID: "u-big", Value: text(i),
			Author: sqlstore.Author{User: "ann", Verb: string(op)}}
		if i > 0 {
			w.Replaces = revisions[i-1]
		}
		change, err := f.store.Commit(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, change.Revision)
	}
	f.allowed["all gears.example.com "], f.allowed["all gears "], f.allowed["all changes "] = true, true, true
	f.allowed["tenant gears shop"], f.allowed["tenant changes shop"] = true, true
	for sql, want := range map[string]string{
		"SELECT verb, before ->> '$.spec.teeth', after ->> '$.spec.teeth' FROM changes WHERE resource = 'gears.example.com'": "\"create\" null 0\n\"update\" 0 1\n\"delete\" 1 null",
		"SELECT path, old, new FROM field_changes WHERE resource = 'gears.example.com'":                                      `"spec.teeth" 0 1`,
		fmt.Sprintf(`SELECT name, revision, uid, labels, object ->> '$.spec.teeth' FROM "gears.example.com"(%d)`,
			revisions[0]): fmt.Sprintf(`"big" %d null {"size":"xl"} 0`, revisions[0]),
		fmt.Sprintf(`SELECT count(*) FROM "gears.example.com"(%d)`,
			revisions[2]): "0",
		`SELECT ended_verb, object ->> '$.spec.teeth' FROM "gears.example.com_history" WHERE namespace = 'shop' AND name = 'big' ORDER BY revision`: "\"update\" 0\n\"delete\" 1",
	} {
		f.expect("admin", sql, want)
		for _, who := range []string{"all", "tenant", "nobody"} {
			got, err := f.ask(who, sql)
			if !strings.Contains(sql, `"`) {
				if err != nil || got != "" {
					t.Errorf("%s asks %s: %s %v", who, sql, got, err)
				}
				continue
			}
			// To who may not see it, it is as if it had never been.
			_, never := f.ask(who, strings.ReplaceAll(sql, "gears.example.com", "wheels.example.com"))
			if n, message := code(err); n != 400 ||
				message != strings.ReplaceAll(fmt.Sprint(never), "wheels.example.com", "gears.example.com") {
				t.Errorf("%s asks %s: %s %v; of one that has never been: %v", who, sql, got, err, never)
			}
		}
	}
	got, err := run(t.Context(), f.Storage, "admin",
		&Query{Spec: Spec{SQL: `SELECT object ->> '$.spec.teeth' FROM "gears.example.com"`, At: fmt.Sprint(revisions[1])}})
	if got != "1" || err != nil {
		t.Errorf("%s %v", got, err)
	}
	_, err = f.ask("admin", `SELECT * FROM "gears.example.com"`)
	if got, message := code(err); got != 400 ||
		!strings.Contains(message, "no such table: gears.example.com: its definition is gone") {
		t.Errorf("%d %s", got, message)
	}
}

// Objects whose definition this server does not know, because it is gone without them or has just been made by another
// server, are shown to nobody who may not see their past.
func TestPast_HidesObjectsWithoutDefinition(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	key := sqlstore.Key{Group: "example.com", Resource: "gears", Owner: sqlstore.Custom, Namespace: "shop", Name: "big"}
	w := sqlstore.Write{Op: sqlstore.Create, Key: key, UID: "u-big",
		Value: []byte(`{"kind":"Gear","apiVersion":"example.com/v1","metadata":{"name":"big","namespace":"shop"}}`)}
	if _, err := f.store.Commit(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	f.allowed["tenant gears shop"], f.allowed["tenant changes shop"] = true, true
	for _, sql := range []string{`SELECT name FROM "gears.example.com_history"`,
		`SELECT name FROM "gears.example.com_history" WHERE namespace = 'shop' AND name = 'big'`} {
		f.expect("admin", sql, `"big"`)
		for _, who := range []string{"tenant", "nobody"} {
			if got, err := f.ask(who, sql); err == nil || !strings.Contains(err.Error(), "no such table") {
				t.Errorf("%s: %s %v", who, got, err)
			}
		}
	}
}

// A moment as SQLite writes it keeps its fraction.
func TestPast_TakesFractionsOfSQLite(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.namespace("shop")
	f.change("ann", sqlstore.Create, "pods", "shop", "web", podText("shop", "web", "n1"))
	f.change("ann", sqlstore.Update, "pods", "shop", "web", podText("shop", "web", "n2"))
	f.expect("admin",
		"SELECT p.node FROM changes c JOIN pods(replace(rtrim(c.time, 'Z'), 'T', ' ')) p WHERE c.verb = 'update'", `"n2"`)
}
