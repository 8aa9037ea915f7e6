package query

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/audit"
	genericaudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the scheme's core group
	"k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install" // the scheme's group of roles

	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// fixture is a Storage over some resources in memory.
type fixture struct {
	testing.TB
	*Storage
	store  *sqlstore.Store
	driver sqlstore.Driver
	tables map[string]*Table
	// allowed are "user resource namespace" that may be listed; "" is all namespaces.
	allowed map[string]bool
	asked   atomic.Int64
}

// Names implements Tables.
func (f *fixture) Names() (names []string) {
	for name := range f.tables {
		names = append(names, name)
	}
	return names
}

// Table implements Tables.
func (f *fixture) Table(_ context.Context, name string) (*Table, error) {
	return f.tables[name], nil
}

// Authorize implements the authorizer: admin may list everything.
func (f *fixture) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	f.asked.Add(1)
	if a.GetUser().GetName() == "admin" || f.allowed[a.GetUser().GetName()+" "+a.GetResource()+" "+a.GetNamespace()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return newFixtureOf(t, storetest.NewModel())
}

func newFixtureOf(t testing.TB, driver sqlstore.Driver) *fixture {
	t.Helper()
	f := &fixture{TB: t, driver: driver, allowed: map[string]bool{}}
	var feed *watch.Feed
	f.store, feed = dbtest.RunStore(t, f.driver, watch.Options{})
	getter := storage.NewRESTOptionsGetter(storage.Backend{Store: f.store, Feed: feed, Program: "v1.37"},
		storage.BuiltinResources(compatibility.NewEffectiveVersionFromString("1.37", "1.37", "1.37")))
	open := func(r schema.GroupResource, object, list func() runtime.Object) *storage.Store {
		opts, err := getter.GetRESTOptions(r, object())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix, nil, object, list,
			apistorage.DefaultNamespaceScopedAttr, nil, nil); err != nil {
			t.Fatal(err)
		}
		return getter.Lookup(r)
	}
	tableOf := func(gr schema.GroupResource, kind string, of *spec.Schema, object, list func() runtime.Object) *Table {
		gvk := schema.GroupVersionKind{Group: gr.Group, Version: "v1", Kind: kind}
		of.AddExtension("x-kubernetes-group-version-kind",
			[]any{map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": kind}})
		table := NewSchemas(map[string]*spec.Schema{kind: of}).Describe(gr, gvk)
		table.Store = open(gr, object, list)
		return table
	}
	table := func(plural, kind string, of *spec.Schema, object, list func() runtime.Object) *Table {
		return tableOf(core.Resource(plural), kind, of, object, list)
	}
	f.tables = map[string]*Table{
		"pods": table("pods", "Pod", podSchema(), func() runtime.Object {
			return &core.Pod{}
		}, func() runtime.Object { return &core.PodList{} }),
		"services": table("services", "Service", &spec.Schema{}, func() runtime.Object {
			return &core.Service{}
		}, func() runtime.Object { return &core.ServiceList{} }),
		"events": table("events", "Event", eventSchema(), func() runtime.Object {
			return &core.Event{}
		}, func() runtime.Object { return &core.EventList{} }),
		"clusterroles": tableOf(rbac.Resource("clusterroles"), "ClusterRole", &spec.Schema{}, func() runtime.Object {
			return &rbac.ClusterRole{}
		}, func() runtime.Object { return &rbac.ClusterRoleList{} }),
		"nodes": table("nodes", "Node", nodeSchema(), func() runtime.Object {
			return &core.Node{}
		}, func() runtime.Object { return &core.NodeList{} }),
	}
	log := &changes.Log{Driver: f.driver, Authorizer: f, Prefix: func(of sqlstore.Resource) string { return of.Resource }}
	f.Storage = New(Config{Feed: feed, Log: log, Tables: f, Timeout: storetest.Patience, Memory: 64 << 20, Concurrency: 2})
	return f
}

func object(properties map[string]spec.Schema) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: properties}}
}

func scalar(kind string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{kind}}}
}

func podSchema() *spec.Schema {
	s := object(map[string]spec.Schema{
		"spec": object(map[string]spec.Schema{"nodeName": scalar("string"), "priority": scalar("integer"),
			"hostNetwork": scalar("boolean")}),
		"status": object(map[string]spec.Schema{"phase": scalar("string"), "podIP": scalar("string")}),
	})
	return &s
}

func eventSchema() *spec.Schema {
	date := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}, Format: "date-time"}}
	s := object(map[string]spec.Schema{
		"type": scalar("string"), "reason": scalar("string"), "message": scalar("string"), "count": scalar("integer"),
		"firstTimestamp": date, "lastTimestamp": date, "eventTime": date, "reportingComponent": scalar("string"),
		"source": object(map[string]spec.Schema{"component": scalar("string")}),
		"series": object(map[string]spec.Schema{"count": scalar("integer"), "lastObservedTime": date}),
		"involvedObject": object(map[string]spec.Schema{"apiVersion": scalar("string"), "kind": scalar("string"),
			"namespace": scalar("string"), "name": scalar("string")}),
	})
	return &s
}

func nodeSchema() *spec.Schema {
	s := object(map[string]spec.Schema{"spec": object(map[string]spec.Schema{"podCIDR": scalar("string")})})
	return &s
}

// write stores an object as it is given.
func (f *fixture) write(resource, namespace, name, text string) {
	f.Helper()
	key := sqlstore.Key{Namespace: namespace, Resource: resource, Name: name}
	w := sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(text), UID: "u-" + name}
	if _, err := f.store.Commit(f.Context(), w); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) pod(namespace, name, node string) {
	f.Helper()
	f.write("pods", namespace, name,
		fmt.Sprintf(
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u-%s","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web"}},"spec":{"nodeName":%q,"priority":7,"hostNetwork":true,"containers":[]},"status":{"phase":"Running"}}`, name, namespace, name, node))
}

// ask runs a query as a user, and returns the result as text, one row a line, or the error.
func (f *fixture) ask(who, sql string, parameters ...string) (string, error) {
	f.Helper()
	return ask(f.Context(), f.Storage, who, sql, parameters...)
}

func ask(ctx context.Context, s *Storage, who, sql string, parameters ...string) (string, error) {
	q := &Query{Spec: Spec{SQL: sql}}
	for _, p := range parameters {
		q.Spec.Parameters = append(q.Spec.Parameters, json.RawMessage(p))
	}
	return run(ctx, s, who, q)
}

// run runs a query as a user, and returns the result as text.
func run(ctx context.Context, s *Storage, who string, q *Query) (string, error) {
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: who})
	if _, err := s.Create(ctx, q, func(context.Context, runtime.Object) error { return nil }, nil); err != nil {
		return "", err
	}
	var lines []string
	for _, row := range q.Status.Rows {
		var cells []string
		for _, cell := range row {
			cells = append(cells, string(cell))
		}
		lines = append(lines, strings.Join(cells, " "))
	}
	return strings.Join(lines, "\n"), nil
}

func (f *fixture) expect(who, sql, want string) {
	f.Helper()
	got, err := f.ask(who, sql)
	for end := time.Now().Add(storetest.Patience); apierrors.IsServiceUnavailable(err) && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond) // on a busy machine a connection to the database takes longer than it may
		got, err = f.ask(who, sql)
	}
	if err != nil || got != want {
		f.Errorf("%s asks %s:\n%s (%v)\nwant\n%s", who, sql, got, err, want)
	}
}

// code returns the HTTP code of an error, and its message.
func code(err error) (int32, string) {
	if status, ok := err.(apierrors.APIStatus); ok {
		return status.Status().Code, status.Status().Message
	}
	return 0, fmt.Sprint(err)
}

func TestQuery_AnswersWithTypedColumns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.pod("shop", "web-1", "n1")
	f.pod("shop", "web-2", "n2")
	f.pod("bank", "db", "n1")
	f.write("nodes", "", "n1",
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"spec":{"podCIDR":"10.0.0.0/24"}}`)
	f.write("nodes", "", "n2",
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n2"},"spec":{"podCIDR":"10.0.1.0/24"}}`)
	f.expect("admin", "select count(*) from pods", "3")
	f.expect("admin", "SELECT name, node FROM pods WHERE namespace = 'shop' ORDER BY name",
		"\"web-1\" \"n1\"\n\"web-2\" \"n2\"")
	f.expect("admin",
		"SELECT spec_priority, spec_host_network, created, labels, uid FROM pods WHERE namespace = 'bank' AND name = 'db'",
		`7 true "2026-01-02T03:04:05Z" {"app":"web"} "u-db"`)
	f.expect("admin", "SELECT labels ->> 'app', typeof(deleted), owner_kind FROM pods WHERE uid = 'u-db'",
		`"web" "null" null`)
	f.expect("admin",
		"SELECT p.name, n.spec_pod_cidr FROM pods p JOIN nodes n ON n.name = p.node WHERE p.namespace = 'shop' ORDER BY 1",
		"\"web-1\" \"10.0.0.0/24\"\n\"web-2\" \"10.0.1.0/24\"")
	f.expect("admin", "SELECT a.name, b.name FROM pods a JOIN pods b ON b.node = a.node AND b.uid > a.uid", `"db" "web-1"`)
	f.expect("admin", "SELECT node, count(*) FROM pods GROUP BY node ORDER BY node", "\"n1\" 2\n\"n2\" 1")
	f.expect("admin", "SELECT name FROM pods WHERE name IN ('db', 'web-2', 'gone') ORDER BY name", "\"db\"\n\"web-2\"")
	f.expect("admin", "SELECT object ->> '$.metadata.resourceVersion' = revision FROM pods WHERE name = 'db'", "1")
	f.expect("admin", "SELECT name FROM pods WHERE node = NULL", "")
	f.expect("admin", "SELECT 1 + 1, 'a', 2.5, NULL, x'01'", `2 "a" 2.5 null "AQ=="`)
	if got, err := f.ask("admin", "SELECT name FROM pods WHERE node = ?1 AND spec_priority = ?2 ORDER BY 1", `"n1"`,
		"7"); got != "\"db\"\n\"web-1\"" || err != nil {
		t.Error(got, err)
	}
}

// What does not fit a column is NULL.
func TestQuery_TakesOddObjects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, text := range map[string]string{
		"empty":    `{}`,
		"types":    `{"metadata":{"name":"types","labels":7,"creationTimestamp":"yesterday","ownerReferences":{}},"spec":{"priority":"seven","hostNetwork":1,"nodeName":{"a":1}},"status":[]}`,
		"null":     `{"metadata":null,"spec":null,"status":{"phase":null}}`,
		"escapes":  `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"escapes"},"status":{"phase":"a\"b\\c\u0000d\ud83d\ude00"}}`,
		"unlisted": `{"spec":{"priority":99999999999999999999}}`,
	} {
		f.write("pods", "odd", name, text)
	}
	f.expect("admin",
		"SELECT name FROM pods WHERE spec_priority IS NOT NULL OR spec_host_network IS NOT NULL OR node IS NOT NULL OR created IS NOT NULL OR owner_name IS NOT NULL", "")
	f.expect("admin", "SELECT name, phase FROM pods WHERE phase IS NOT NULL", `"escapes" "a\"b\\c\u0000d😀"`)
	f.expect("admin", "SELECT count(object) FROM pods", "5")
}

func TestQuery_RefusesWhatIsNoSelect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.pod("a", "b", "n")
	for sql, want := range map[string]struct {
		code    int32
		message string
	}{
		"":                                   {422, "spec.sql: Required"},
		"-- nothing":                         {400, "no statement"},
		"SELECT 1; SELECT 2":                 {400, "more than one statement"},
		"SELECT nam FROM pods":               {400, "no such column: nam, at line 1, column 8"},
		"SELECT 1,\n  nam FROM pods":         {400, "at line 2, column 3"},
		"SELEC 1":                            {400, "syntax error, at line 1, column 1"},
		"SELECT * FROM secrets":              {400, "no such table: secrets"},
		"DELETE FROM pods":                   {400, "may not be modified"},
		"DROP TABLE pods":                    {400, ""},
		"CREATE TABLE t (a)":                 {400, "only one SELECT"},
		"CREATE TEMP VIEW v AS SELECT 1":     {400, "only one SELECT"},
		"ATTACH '/etc/passwd' AS p":          {400, ""},
		"VACUUM INTO '/tmp/x'":               {400, ""},
		"PRAGMA temp_store = FILE":           {400, "only one SELECT"},
		"PRAGMA table_list":                  {400, "only one SELECT"},
		"SELECT * FROM pragma_database_list": {400, ""},
		"SELECT load_extension('x')":         {400, ""},
		"SELECT sqlite_version()":            {400, "not authorized to use function: sqlite_version"},
		"SELECT randomblob(1000000000)":      {400, "not authorized to use function: randomblob"},
		"BEGIN":                              {400, "only one SELECT"},
		"EXPLAIN DELETE FROM pods":           {400, ""},
		"SELECT max(1" + strings.Repeat(", 2", 32) + ")": {400, "too many arguments on function max"},
		"SELECT ?1":                   {400, "wrong number of parameters: the statement has 1"},
		"SELECT zeroblob(1000000000)": {413, "--sql-memory"},
		"SELECT " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000): {400, ""},
		"SELECT '" + strings.Repeat("a", maxSQL) + "'":                          {422, "Too long"},
	} {
		_, err := f.ask("admin", sql)
		if got, message := code(err); got != want.code || !strings.Contains(message, want.message) {
			t.Errorf("%.60s: %d %s, want %d %s", sql, got, message, want.code, want.message)
		}
	}
}

func TestDetailTables_HaveARowForEachElement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write("pods", "shop", "web", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop"},"spec":{
		"containers":[{"name":"a","image":"i:1","resources":{"requests":{"cpu":"250m","memory":"1Gi"},"limits":{"cpu":"2"}}},{"name":"b","image":"i:2"}],
		"initContainers":[{"name":"first","image":"i:3"}],
		"volumes":[{"name":"v","configMap":{"name":"settings"}},{"name":"w","emptyDir":{}},{"name":"x","persistentVolumeClaim":{"claimName":"disk"}}]},
		"status":{"containerStatuses":[{"name":"b","ready":true,"restartCount":3,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}`)
	f.write("nodes", "", "n1",
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`)
	f.expect("admin",
		"SELECT kind, container, image, cpu_request, memory_request, cpu_limit, memory_limit FROM containers WHERE name = 'web' ORDER BY container",
		"\"main\" \"a\" \"i:1\" 0.25 1073741824 2 null\n\"main\" \"b\" \"i:2\" null null null null\n\"init\" \"first\" \"i:3\" null null null null") //nolint:dupword // values that are NULL
	f.expect("admin", "SELECT container, state, reason, ready, restarts FROM containers WHERE kind = 'main' ORDER BY 1", "\"a\" null null null null\n\"b\" \"waiting\" \"CrashLoopBackOff\" true 3") //nolint:dupword // values that are NULL
	f.expect("admin", "SELECT volume, type, source FROM volumes WHERE namespace = 'shop' ORDER BY 1",
		"\"v\" \"configMap\" \"settings\"\n\"w\" \"emptyDir\" null\n\"x\" \"persistentVolumeClaim\" \"disk\"")
	f.expect("admin", "SELECT name, key, value, effect FROM node_taints", `"n1" "k" null "NoSchedule"`)
	f.expect("nobody", "SELECT (SELECT count(*) FROM containers), (SELECT count(*) FROM node_taints)", "0 0")
	f.expect("admin", "SELECT quantity('1.5Ki'), quantity(2), quantity('x'), quantity(NULL)", "1536 2 null null") //nolint:dupword // values that are NULL
}

// Times are in the order of their texts.
func TestTimes_HaveSixDigits(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]string{
		"2026-01-31T12:00:05.12Z": "2026-01-31T12:00:05.120000Z", "2026-01-31T12:00:05.123Z": "2026-01-31T12:00:05.123000Z",
		"2026-01-31T12:00:05.000000Z":       "2026-01-31T12:00:05.000000Z",
		"2026-01-31T13:00:05.1234567+01:00": "2026-01-31T12:00:05.123456Z",
		"2026-01-31T12:00:05Z":              "2026-01-31T12:00:05Z",
	} {
		if got := Time.Value([]byte(`"` + stored + `"`)); got != want {
			t.Errorf("%s: %v, want %s", stored, got, want)
		}
	}
}

// A line that is empty is no row for readers of CSV.
func TestStreams_HaveALineForEachRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := httptest.NewRecorder()
	q := &Spec{SQL: "SELECT column1 AS a FROM (VALUES ('x'), (NULL), (''), ('y'))"}
	if err := f.run(request.WithUser(t.Context(), &user.DefaultInfo{Name: "admin"}), q, mostStreamed,
		newStream(w, CSV)); err != nil {
		t.Fatal(err)
	}
	if got, want := w.Body.String(), "a\nx\n\"\"\n\"\"\ny\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// plugin is an admission plugin that keeps the kind of the options, and changes a query as upstream's plugins do.
type plugin struct {
	*admission.Handler
	options schema.GroupVersionKind
}

// Admit implements admission.MutationInterface.
func (p *plugin) Admit(_ context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p.options = a.GetOperationOptions().GetObjectKind().GroupVersionKind()
	return o.GetObjectConvertor().Convert(&Query{Spec: Spec{SQL: "SELECT 'changed'"}}, a.GetObject(), nil)
}

// What is audited with its answers is not streamed: the log would not have the rows.
func TestStreams_AreAdmittedAndAudited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := &plugin{Handler: admission.NewHandler(admission.Create)}
	h := NewHandler(f.Storage, p, http.NotFoundHandler())
	for level, want := range map[audit.Level]int{audit.LevelNone: 200, audit.LevelRequest: 200,
		audit.LevelRequestResponse: 406} {
		ctx := genericaudit.WithAuditContext(request.WithRequestInfo(t.Context(), &request.RequestInfo{}))
		if err := genericaudit.AuditContextFrom(ctx).Init(genericaudit.RequestAuditConfig{Level: level}, nil); err != nil {
			t.Fatal(err)
		}
		w, r := httptest.NewRecorder(),
			httptest.NewRequestWithContext(ctx, http.MethodPost, Path, strings.NewReader("SELECT 1"))
		r.Header.Set("Content-Type", sqlType)
		r.Header.Set("Accept", CSV)
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("at the level %s: %d %s, want %d", level, w.Code, w.Body, want)
		}
		if w.Code == http.StatusOK && !strings.Contains(w.Body.String(), "changed") {
			t.Errorf("the plugin's change is lost: %s", w.Body)
		}
	}
	if want := metav1.SchemeGroupVersion.WithKind("CreateOptions"); p.options != want {
		t.Errorf("plugins see the options %s, want %s", p.options, want)
	}
}

// Whatever a statement does, it sees the rows that its user may list, and no trace of others.
func TestRights_HideOtherRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 40 {
		f.pod(fmt.Sprintf("ns-%d", i%8), fmt.Sprintf("canary-%d", i), fmt.Sprintf("n%d", i%3))
	}
	f.write("nodes", "", "canary-node", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"canary-node"}}`)
	f.allowed["alice pods ns-3"], f.allowed["alice pods ns-5"] = true, true
	f.allowed["bob nodes "] = true
	f.expect("alice", "SELECT DISTINCT namespace FROM pods ORDER BY 1", "\"ns-3\"\n\"ns-5\"")
	f.expect("alice", "SELECT count(*), (SELECT count(*) FROM nodes) FROM pods", "10 0")
	f.expect("bob", "SELECT (SELECT count(*) FROM pods), name FROM nodes", `0 "canary-node"`)
	mine := func(s string) string {
		for i := range 40 {
			if i%8 == 3 || i%8 == 5 {
				s = strings.ReplaceAll(s, fmt.Sprintf(`"canary-%d"`, i), "")
				s = strings.ReplaceAll(s, fmt.Sprintf(`u-canary-%d"`, i), "")
			}
		}
		return s
	}
	for _, where := range []string{
		"namespace = 'ns-1'", "name = 'canary-1'", "namespace = 'ns-1' AND name = 'canary-1'", "uid = 'u-canary-1'",
		"node = 'n1'",
		"namespace IN ('ns-1', 'ns-2')", "name IN (SELECT name FROM pods)", "name LIKE 'can%'", "1", "revision > 0",
		"NOT EXISTS (SELECT 1 FROM pods o WHERE o.name > pods.name)", "name > ''",
		"abs(-9223372036854775807 - (namespace = 'ns-1')) IS NULL",
	} {
		for _, what := range []string{"name", "count(*), max(name)", "object", "json_group_array(uid)", "name || uid"} {
			got, err := f.ask("alice", "SELECT "+what+" FROM pods WHERE "+where)
			if got = mine(got); strings.Contains(got, "ns-1") || strings.Contains(got, "n-1\"") || err != nil &&
				strings.Contains(err.Error(), "canary") {
				t.Errorf("%s WHERE %s: %s %v", what, where, got, err)
			}
		}
	}
	// No answer of the authorizer is kept for the next query.
	delete(f.allowed, "alice pods ns-3")
	f.expect("alice", "SELECT DISTINCT namespace FROM pods", `"ns-5"`)
}

// All tables of a query show one revision, while others write to them.
func TestQuery_ShowsOneRevision(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var writing sync.WaitGroup
	writing.Go(func() {
		// A Node is written before each Pod of its name: every revision has as many Nodes
		// as Pods, or one more.
		for i := range 300 {
			name := fmt.Sprintf("o%d", i)
			f.write("nodes", "", name, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"`+name+`"}}`)
			f.pod("a", name, name)
		}
	})
	last := int64(0)
	for last < 300 {
		got, err := f.ask("admin",
			"SELECT (SELECT count(*) FROM nodes) - (SELECT count(*) FROM pods), (SELECT count(*) FROM pods)")
		var ahead, pods int64
		if _, scanned := fmt.Sscan(got, &ahead, &pods); scanned != nil || err != nil {
			t.Fatal(got, err)
		}
		if ahead < 0 || ahead > 1 || pods < last {
			t.Fatalf("%d Nodes more than Pods, of which there are %d after %d", ahead, pods, last)
		}
		last = pods
	}
	writing.Wait()
}

// A query that begins after a write was answered shows it.
func TestQuery_ShowsWhatIsWritten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 50 {
		f.pod("a", fmt.Sprint("p", i), "n")
		f.expect("admin", "SELECT count(*) FROM pods", fmt.Sprint(i+1))
	}
}

// The plan of a query changes no answer.
func TestPlans_GiveEqualRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	for i := range 300 {
		f.pod(fmt.Sprint("ns", random.IntN(5)), fmt.Sprint("p", i), fmt.Sprint("n", random.IntN(7)))
	}
	columns := []string{"namespace", "name", "uid", "node", "phase"}
	values := []string{"'ns1'", "'p7'", "'u-p9'", "'n3'", "'Running'", "'none'", "NULL", "7", "x'6e33'",
		"(SELECT max(node) FROM pods)"}
	for range 400 {
		var planned, scanned []string
		for range 1 + random.IntN(3) {
			column, value := columns[random.IntN(len(columns))], values[random.IntN(len(values))]
			operator := []string{"=", "IS", "<", "IN", "COLLATE NOCASE ="}[random.IntN(5)]
			if operator == "IN" {
				value = "(" + value + ", 'n5', 'ns2')"
			}
			planned = append(planned, column+" "+operator+" "+value)
			scanned = append(scanned, "+"+column+" "+operator+" "+value) // no plan uses "+column"
		}
		conjunction := []string{" AND ", " OR "}[random.IntN(2)]
		const head = "SELECT namespace, name FROM pods WHERE "
		want, err := f.ask("admin", head+strings.Join(scanned, conjunction)+" ORDER BY 1, 2")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.ask("admin", head+strings.Join(planned, conjunction)+" ORDER BY 1, 2"); got != want || err != nil {
			t.Fatalf("WHERE %s: %d rows %v, want %d", strings.Join(planned, conjunction), strings.Count(got, "\n"), err,
				strings.Count(want, "\n"))
		}
	}
}

// hooked is an authorizer that calls before each question.
type hooked struct {
	authorizer.UnconditionalAuthorizer
	before func(authorizer.Attributes)
}

func (h hooked) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	h.before(a)
	return h.UnconditionalAuthorizer.Authorize(ctx, a)
}

// Rows of a namespace that gets its first ones while the authorizer is asked are there at the revision of the answer.
func TestRights_AreThoseAtTheRevision(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.pod("a", "p", "n")
	f.allowed["tenant pods a"], f.allowed["tenant pods b"] = true, true
	written := false
	f.config.Log.Authorizer = hooked{f, func(a authorizer.Attributes) {
		if a.GetNamespace() == "a" && !written {
			written = true
			f.pod("b", "q", "n")
			f.pod("c", "r", "n")
		}
	}}
	q := &Query{Spec: Spec{SQL: "SELECT namespace, revision FROM pods ORDER BY 1"}}
	got, err := run(t.Context(), f.Storage, "tenant", q)
	if want := "\"a\" 1\n\"b\" 2"; err != nil || got != want || q.Status.ResourceVersion != "3" {
		t.Errorf("at revision %s: %s (%v), want %s", q.Status.ResourceVersion, got, err, want)
	}
}

// A condition on the namespace reads no other, whatever else it is combined with, now and in the past.
func TestPlans_ReadOneNamespace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node, last := strings.Repeat("n", 1000), int64(0)
	for i := range 1000 {
		namespace, name := fmt.Sprint("ns", i%10), fmt.Sprint("p", i)
		f.change("ann", sqlstore.Create, "pods", namespace, name, podText(namespace, name, node))
		last = f.change("ann", sqlstore.Update, "pods", namespace, name, podText(namespace, name, node))
	}
	f.config.Memory = 1 << 20
	for _, table := range []string{"pods", fmt.Sprintf("pods(%d)", last-1)} {
		f.expect("admin", "SELECT count(*) FROM "+table+" WHERE namespace = 'ns3' AND node = '"+node+"'", "100")
		if _, err := f.ask("admin", "SELECT count(*) FROM "+table+" WHERE node = '"+node+"'"); err == nil {
			t.Error("all Pods fit into memory")
		}
	}
}

// FuzzQuery_ShowsNoOtherRows asks generated statements as a user who may list nothing: neither an answer nor
// an error has a part of an object, and no statement harms the process.
func FuzzQuery_ShowsNoOtherRows(f *testing.F) {
	const canary = "zqxj"
	fixture := newFixture(f)
	fixture.config.Timeout = 100 * time.Millisecond
	fixture.pod(canary, canary, canary)
	for _, sql := range []string{
		"SELECT * FROM pods", "SELECT count(*) FROM pods a JOIN nodes b ON a.node = b.name",
		"WITH a AS (SELECT object FROM pods) SELECT * FROM a",
		"SELECT max(name) OVER (PARTITION BY namespace) FROM pods",
		"SELECT name FROM pods WHERE uid = 'x' OR node IN (SELECT name FROM nodes) ORDER BY 1 LIMIT 3",
		"SELECT * FROM byre_columns WHERE table_name = 'pods'",
		"SELECT key, value FROM labels WHERE resource = 'pods' OR name > ''",
		"SELECT * FROM selectors NATURAL JOIN containers", "SELECT * FROM conditions c, owners o WHERE c.name IN (o.name)",
		"EXPLAIN QUERY PLAN SELECT * FROM pods", "SELECT json_each.value FROM pods, json_each(pods.labels)",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if strings.Contains(strings.ToLower(sql), canary) {
			return
		}
		got, err := ask(t.Context(), fixture.Storage, "nobody", sql)
		if strings.Contains(strings.ToLower(got+fmt.Sprint(err)), canary) {
			t.Errorf("%q: %s %v", sql, got, err)
		}
		if status, message := code(err); err != nil && (status < 400 || status >= 500) {
			t.Errorf("%q: %d %s", sql, status, message)
		}
	})
}

// BenchmarkQueries asks 100,000 Pods of 3.3 KB, on 1,000 Nodes and in 100 namespaces.
func BenchmarkQueries(b *testing.B) {
	f := newFixture(b)
	const pods, nodes, namespaces = 100_000, 1_000, 100
	const form = "v1.37/v1" // what this program writes
	padding := strings.Repeat(`{"name":"A_VARIABLE","value":"and what it is set to"},`, 44)
	var writes []sqlstore.Write
	for i := range pods {
		namespace, name, node := fmt.Sprintf("ns-%d", i%namespaces), fmt.Sprintf("pod-%d", i), fmt.Sprintf("node-%d", i%nodes)
		text := fmt.Sprintf(
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u-%s","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web-%d"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"rs-%d","uid":"x","controller":true}]},"spec":{"containers":[{"name":"c","image":"example.org/web:1","env":[%s{"name":"LAST","value":""}]}],"nodeName":%q,"priority":7,"hostNetwork":true},"status":{"conditions":[{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"},{"type":"Ready","status":"False","lastTransitionTime":"2026-01-02T03:04:05Z","reason":"ContainersNotReady"}],"phase":"Running","podIP":"10.0.0.1"}}`,
			name, namespace, name, i%100, i%1000, padding, node)
		writes = append(writes,
			sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Namespace: namespace, Resource: "pods", Name: name},
				Value: []byte(text), UID: "u-" + name, Encoding: form})
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		writes = append(writes,
			sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "nodes", Name: name}, UID: "u-" + name,
				Encoding: form,
				Value: []byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"` + name +
					`"},"spec":{"podCIDR":"10.0.0.0/24"}}`)})
	}
	for i := range 20 * namespaces {
		namespace, name := fmt.Sprintf("ns-%d", i%namespaces), fmt.Sprintf("service-%d", i)
		writes = append(writes,
			sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Namespace: namespace, Resource: "services", Name: name},
				UID: "u-" + name, Encoding: form,
				Value: fmt.Appendf(nil,
					`{"kind":"Service","apiVersion":"v1","metadata":{"name":%q,"namespace":%q},"spec":{"selector":{"app":"web-%d"}}}`,
					name, namespace, i%100)})
	}
	b.Logf("%d bytes a Pod", len(writes[0].Value))
	for _, w := range writes {
		if _, err := f.store.Commit(b.Context(), w); err != nil {
			b.Fatal(err)
		}
	}
	ctx := request.WithUser(b.Context(), &user.DefaultInfo{Name: "admin"})
	for _, c := range []struct{ name, sql string }{
		{"Count", "SELECT count(*) FROM pods"},
		{"ByKey", "SELECT phase FROM pods WHERE namespace = 'ns-7' AND name = 'pod-7'"},
		{"Namespace", "SELECT name, phase FROM pods WHERE namespace = 'ns-7'"},
		{"GroupedByNodeAndPhase", "SELECT node, phase, count(*) FROM pods GROUP BY node, phase"},
		{"ThirteenColumns",
			"SELECT sum(length(namespace) + length(name) + length(uid) + revision + length(created) + length(labels) + length(owner_kind) + length(owner_name) + length(node) + spec_priority + spec_host_network + length(phase) + length(ip)) FROM pods"},
		{"JoinNodes", "SELECT count(*), count(n.spec_pod_cidr) FROM pods p JOIN nodes n ON n.name = p.node"},
		{"JoinOnNode", "SELECT count(*) FROM nodes n JOIN pods p ON p.node = n.name WHERE p.phase = 'Running'"},
		{"LabelsInUse", "SELECT value, count(*) FROM labels WHERE resource = 'pods' AND key = 'app' GROUP BY value"},
		{"LabelsOfAll", "SELECT count(*) FROM labels WHERE key = 'app'"},
		{"LabelsInNamespace", "SELECT value, count(*) FROM labels WHERE namespace = 'ns-7' AND key = 'app' GROUP BY value"},
		{"LabelsOfOne", "SELECT key, value FROM labels WHERE resource = 'pods' AND namespace = 'ns-7' AND name = 'pod-7'"},
		{"JoinLabels",
			"SELECT count(*) FROM pods p JOIN labels l ON l.resource = 'pods' AND l.namespace = p.namespace AND l.name = p.name WHERE l.key = 'app' AND l.value = 'web-7'"},
		{"Owners", "SELECT owner, count(*) FROM owners WHERE resource = 'pods' GROUP BY owner"},
		{"NotReady", "SELECT count(*) FROM conditions WHERE resource = 'pods' AND type = 'Ready' AND status = 'False'"},
		{"Selectors", "SELECT count(*) FROM selectors WHERE resource = 'services'"},
		{"SelectorsInNamespace", "SELECT count(*) FROM selectors WHERE resource = 'services' AND namespace = 'ns-7'"},
		{"ServicesWithoutPods",
			"SELECT count(*) FROM services s WHERE NOT EXISTS (SELECT 1 FROM selectors e WHERE e.resource = 'services' AND e.namespace = s.namespace AND e.name = s.name)"},
		{"Containers", "SELECT image, count(*) FROM containers GROUP BY image"},
		{"EnvRefs", "SELECT count(*) FROM container_env_refs"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				q := &Query{Spec: Spec{SQL: c.sql}}
				if _, err := f.Create(ctx, q, func(context.Context, runtime.Object) error { return nil }, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
