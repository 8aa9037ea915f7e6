package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/audit"
	genericaudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func TestQuery_AnswersWithTypedColumns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.pod("shop", "web-1", "n1")
	f.pod("shop", "web-2", "n2")
	f.pod("bank", "db", "n1")
	f.write("nodes", "", "n1", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"spec":{"podCIDR":"10.0.0.0/24"}}`)
	f.write("nodes", "", "n2", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n2"},"spec":{"podCIDR":"10.0.1.0/24"}}`)
	f.expect("admin", "select count(*) from pods", "3")
	f.expect("admin", "SELECT name, node FROM pods WHERE namespace = 'shop' ORDER BY name", "\"web-1\" \"n1\"\n\"web-2\" \"n2\"")
	f.expect("admin", "SELECT spec_priority, spec_host_network, created, labels, uid FROM pods WHERE namespace = 'bank' AND name = 'db'",
		`7 true "2026-01-02T03:04:05Z" {"app":"web"} "u-db"`)
	f.expect("admin", "SELECT labels ->> 'app', typeof(deleted), owner_kind FROM pods WHERE uid = 'u-db'", `"web" "null" null`)
	f.expect("admin", "SELECT p.name, n.spec_pod_cidr FROM pods p JOIN nodes n ON n.name = p.node WHERE p.namespace = 'shop' ORDER BY 1",
		"\"web-1\" \"10.0.0.0/24\"\n\"web-2\" \"10.0.1.0/24\"")
	f.expect("admin", "SELECT a.name, b.name FROM pods a JOIN pods b ON b.node = a.node AND b.uid > a.uid", `"db" "web-1"`)
	f.expect("admin", "SELECT node, count(*) FROM pods GROUP BY node ORDER BY node", "\"n1\" 2\n\"n2\" 1")
	f.expect("admin", "SELECT name FROM pods WHERE name IN ('db', 'web-2', 'gone') ORDER BY name", "\"db\"\n\"web-2\"")
	f.expect("admin", "SELECT object ->> '$.metadata.resourceVersion' = revision FROM pods WHERE name = 'db'", "1")
	f.expect("admin", "SELECT name FROM pods WHERE node = NULL", "")
	f.expect("admin", "SELECT 1 + 1, 'a', 2.5, NULL, x'01'", `2 "a" 2.5 null "AQ=="`)
	if got, err := f.ask("admin", "SELECT name FROM pods WHERE node = ?1 AND spec_priority = ?2 ORDER BY 1", `"n1"`, "7"); got != "\"db\"\n\"web-1\"" || err != nil {
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
	f.expect("admin", "SELECT name FROM pods WHERE spec_priority IS NOT NULL OR spec_host_network IS NOT NULL OR node IS NOT NULL OR created IS NOT NULL OR owner_name IS NOT NULL", "")
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

func TestEdges_ShowWhatObjectsHaveSeveralOf(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write("pods", "shop", "web", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop"},"spec":{
		"containers":[{"name":"a","image":"i:1","resources":{"requests":{"cpu":"250m","memory":"1Gi"},"limits":{"cpu":"2"}}},{"name":"b","image":"i:2"}],
		"initContainers":[{"name":"first","image":"i:3"}],
		"volumes":[{"name":"v","configMap":{"name":"settings"}},{"name":"w","emptyDir":{}},{"name":"x","persistentVolumeClaim":{"claimName":"disk"}}]},
		"status":{"containerStatuses":[{"name":"b","ready":true,"restartCount":3,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}`)
	f.write("nodes", "", "n1", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`)
	f.expect("admin", "SELECT kind, container, image, cpu_request, memory_request, cpu_limit, memory_limit FROM containers WHERE name = 'web' ORDER BY container",
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
		"2026-01-31T12:00:05.000000Z": "2026-01-31T12:00:05.000000Z", "2026-01-31T13:00:05.1234567+01:00": "2026-01-31T12:00:05.123456Z",
		"2026-01-31T12:00:05Z": "2026-01-31T12:00:05Z",
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
	if err := f.run(request.WithUser(t.Context(), &user.DefaultInfo{Name: "admin"}), q, mostStreamed, newStream(w, CSV)); err != nil {
		t.Fatal(err)
	}
	if got, want := w.Body.String(), "a\nx\n\"\"\n\"\"\ny\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// plugin is an admission plugin that keeps the kind of the options.
type plugin struct {
	*admission.Handler
	options schema.GroupVersionKind
}

// Admit implements admission.MutationInterface.
func (p *plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p.options = a.GetOperationOptions().GetObjectKind().GroupVersionKind()
	return nil
}

// What is audited with its answers is not streamed: the log would not have the rows.
func TestStreams_AreAdmittedAndAudited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := &plugin{Handler: admission.NewHandler(admission.Create)}
	h := NewHandler(f.Storage, p, http.NotFoundHandler())
	for level, want := range map[audit.Level]int{audit.LevelNone: 200, audit.LevelRequest: 200, audit.LevelRequestResponse: 406} {
		ctx := genericaudit.WithAuditContext(request.WithRequestInfo(t.Context(), &request.RequestInfo{}))
		if err := genericaudit.AuditContextFrom(ctx).Init(genericaudit.RequestAuditConfig{Level: level}, nil); err != nil {
			t.Fatal(err)
		}
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, Path, strings.NewReader("SELECT 1"))
		r.Header.Set("Content-Type", sqlType)
		r.Header.Set("Accept", CSV)
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("at the level %s: %d %s, want %d", level, w.Code, w.Body, want)
		}
	}
	if want := metav1.SchemeGroupVersion.WithKind("CreateOptions"); p.options != want {
		t.Errorf("plugins see the options %s, want %s", p.options, want)
	}
}
