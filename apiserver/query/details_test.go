package query

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"byre/sqlstore"
)

func TestDetailTables_SpanAllTables(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write("pods", "shop", "web", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop","labels":{"app":"web","a\"b":"c\\d"},"annotations":{"note":"n"},
		"ownerReferences":[{"kind":"ReplicaSet","name":"rs","uid":"u","controller":true},{"kind":"Thing","name":"t","uid":"v"}]},"spec":{},
		"status":{"conditions":[{"type":"Ready","status":"False","reason":"No","message":null,"lastTransitionTime":"2026-01-02T03:04:05Z"},{"type":"Initialized","status":"True"}]}}`)
	f.write("pods", "bank", "db",
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"db","namespace":"bank","labels":{"app":"db"}},"spec":{}}`)
	f.write("nodes", "", "n1",
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","labels":{"app":"kubelet"}},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	f.expect("admin", "SELECT resource, namespace, name, key, value FROM labels ORDER BY 1, 2, 3, 4",
		"\"nodes\" \"\" \"n1\" \"app\" \"kubelet\"\n\"pods\" \"bank\" \"db\" \"app\" \"db\"\n\"pods\" \"shop\" \"web\" \"a\\\"b\" \"c\\\\d\"\n\"pods\" \"shop\" \"web\" \"app\" \"web\"")
	f.expect("admin", "SELECT name, value FROM labels WHERE resource = 'pods' AND key = 'app' ORDER BY 1",
		"\"db\" \"db\"\n\"web\" \"web\"")
	f.expect("admin",
		"SELECT resource FROM labels WHERE key = 'app' AND resource IN ('pods', 'nodes') AND value <> 'db' ORDER BY 1",
		"\"nodes\"\n\"pods\"")
	f.expect("admin", "SELECT count(*) FROM labels WHERE resource = 'things' OR resource = NULL", "0")
	f.expect("admin", "SELECT name, key, value FROM annotations", `"web" "note" "n"`)
	f.expect("admin", "SELECT kind, owner, uid, controller FROM owners WHERE name = 'web' ORDER BY 1",
		"\"ReplicaSet\" \"rs\" \"u\" true\n\"Thing\" \"t\" \"v\" null")
	f.expect("admin", "SELECT resource, type, reason, message, changed FROM conditions WHERE status = 'False'",
		`"pods" "Ready" "No" null "2026-01-02T03:04:05Z"`)
	f.expect("admin",
		"SELECT p.name, c.status FROM pods p LEFT JOIN conditions c ON c.resource = 'pods' AND c.namespace = p.namespace AND c.name = p.name AND c.type = 'Ready' ORDER BY 1",
		"\"db\" null\n\"web\" \"False\"")
	if got, err := f.ask("admin", "SELECT name FROM labels WHERE resource = ?1 AND value = ?2", `"pods"`,
		`"db"`); got != `"db"` || err != nil {
		t.Error(got, err)
	}
	f.expect("admin", "SELECT count(*) FROM byre_columns WHERE table_name = 'conditions'", "8")
	f.expect("admin",
		"SELECT count(*) FROM byre_columns WHERE table_name = 'conditions' OR (table_name = 'labels' AND name <> '')", "13")
}

// The objects of other tables than those of the resource that a statement names are neither loaded nor asked about.
func TestDetailTables_AskOnlyForTheResourceThatIsNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.pod("a", "p", "n")
	for sql, want := range map[string]int64{
		"SELECT count(*) FROM labels WHERE resource = 'pods' AND key = 'app'":                                               1,
		"SELECT count(*) FROM labels l JOIN pods p ON p.name = l.name WHERE l.resource = 'pods'":                            2,
		"SELECT count(*) FROM labels a JOIN labels b ON a.name = b.name WHERE a.resource = 'pods' AND b.resource = 'nodes'": 2,
		"SELECT count(*) FROM labels WHERE resource = 'none'":                                                               0,
		"SELECT count(*) FROM labels":                                int64(len(f.tables)),
		"SELECT count(*) FROM selectors WHERE resource = 'services'": 2,
		"SELECT labels FROM pods":                                    1,
	} {
		f.asked.Store(0)
		if _, err := f.ask("admin", sql); err != nil || f.asked.Load() != want {
			t.Errorf("%s: the authorizer was asked %d times, want %d; %v", sql, f.asked.Load(), want, err)
		}
	}
}

// failing are tables that can't be described.
type failing struct{ *fixture }

// Table implements Tables.
func (failing) Table(context.Context, string) (*Table, error) {
	return nil, apierrors.NewServiceUnavailable("not yet")
}

// A table that can't be described now is no fault of the statement.
func TestDetailTables_FailAsTheTablesDo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.config.Tables = failing{f}
	for _, sql := range []string{
		"SELECT * FROM labels", "SELECT * FROM labels WHERE resource = 'x'", "SELECT * FROM events_about",
		"SELECT * FROM byre_columns", "SELECT resource_of('v1', 'Pod')",
	} {
		_, err := f.ask("admin", sql)
		if got, message := code(err); got != 503 || message != "not yet" {
			t.Errorf("%s: %d %s", sql, got, message)
		}
	}
}

func TestDetailTables_HideOtherRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, namespace := range []string{"a", "b"} {
		f.write("pods", namespace, "p", fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":%q,"labels":{"app":"web"}},
			"spec":{"containers":[{"name":"c","envFrom":[{"secretRef":{"name":"s"}}]}]},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, namespace))
		f.write("services", namespace, "s",
			fmt.Sprintf(
				`{"kind":"Service","apiVersion":"v1","metadata":{"name":"s","namespace":%q,"labels":{"x":"y"}},"spec":{"selector":{"app":"web"}}}`, namespace))
	}
	f.allowed["alice pods b"], f.allowed["bob services "] = true, true
	for _, where := range []string{"", " WHERE namespace = 'a' OR namespace = 'b'", " WHERE name = 'p' OR name = 's'",
		" WHERE resource IN ('pods', 'services')", " WHERE namespace IN ('a', 'b') AND name IN ('p', 's')"} {
		f.expect("alice", "SELECT DISTINCT resource, namespace FROM labels"+where, `"pods" "b"`)
		f.expect("alice", "SELECT count(*) FROM conditions"+where, "1")
		f.expect("alice", "SELECT count(*) FROM container_env_refs"+where, "1")
		f.expect("alice", "SELECT count(*) FROM selectors"+where, "0")
		f.expect("bob", "SELECT count(*) FROM selectors"+where, "0")
		f.expect("admin", "SELECT count(*) FROM selectors"+where, "2")
	}
	for sql, want := range map[string]string{
		"SELECT count(*) FROM labels":                  "",
		"SELECT count(*) FROM owners":                  "",
		"SELECT labels FROM pods":                      "",
		"SELECT count(*) FROM pods, containers":        "",
		"SELECT count(*) FROM services":                "services is empty: you may not list services in all namespaces, nor in one that has some",
		"SELECT count(*) FROM node_taints":             "node_taints is empty: you may not list what it is made of",
		"SELECT 1 FROM labels WHERE resource='nodes'":  "labels is empty: you may not list what it is made of",
		"SELECT count(*) FROM selectors":               "selectors is empty: you may not list what it is made of",
		"SELECT count(*) FROM pods NATURAL JOIN nodes": "nodes is empty: you may not list nodes in all namespaces, nor in one that has some",
	} {
		var warnings warningRecorder
		if _, err := ask(warning.WithWarningRecorder(t.Context(), &warnings), f.Storage, "alice", sql); err != nil ||
			strings.Join(warnings, "; ") != want {
			t.Errorf("%s: warnings %q, want %q; %v", sql, warnings, want, err)
		}
	}
}

// warningRecorder keeps warnings.
type warningRecorder []string

// AddWarning implements warning.Recorder.
func (w *warningRecorder) AddWarning(_, text string) { *w = append(*w, text) }

func TestDetailTables_NameWhereVariablesComeFrom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write("pods", "shop", "web", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop"},"spec":{
		"initContainers":[{"name":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"containerName":"c","resource":"limits.cpu"}}}]}],
		"containers":[{"name":"c","env":[{"name":"B","value":"b"},{"name":"C","valueFrom":{"configMapKeyRef":{"name":"cm","key":"k","optional":true}}},
			{"name":"D","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}},{"name":"E","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}},
			{"name":"F","valueFrom":{"fileKeyRef":{"volumeName":"v","path":"p","key":"k"}}}],
			"envFrom":[{"prefix":"x","configMapRef":{"name":"all"}},{"secretRef":{"name":"more","optional":true}}]}],
		"volumes":[{"name":"p","projected":{"sources":[{"configMap":{"name":"pc"}},{"secret":{"name":"ps"}},{"downwardAPI":{}}]}}]}}`)
	f.expect("admin",
		"SELECT container, variable, type, source, key, optional FROM container_env_refs ORDER BY variable, type",
		strings.Join([]string{
			`"c" null "configMap" "all" null false`, `"c" null "secret" "more" null true`,
			`"i" "A" "resource" "c" "limits.cpu" false`, `"c" "C" "configMap" "cm" "k" true`,
			`"c" "D" "secret" "s" "k" false`, `"c" "E" "field" null "metadata.name" false`, `"c" "F" "file" "v" "k" false`},
			"\n"))
	f.expect("admin", "SELECT type, source FROM volumes ORDER BY type",
		"\"configMap\" \"pc\"\n\"downwardAPI\" null\n\"projected\" null\n\"secret\" \"ps\"")
}

func TestDetailTables_TellWhatEventsAreAbout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write("events", "shop", "e1", `{"kind":"Event","apiVersion":"v1","metadata":{"name":"e1","namespace":"shop"},"involvedObject":{"kind":"Pod","apiVersion":"v1","namespace":"shop","name":"web"},
		"type":"Warning","reason":"BackOff","message":"m","count":3,"firstTimestamp":"2026-01-02T03:04:05Z","lastTimestamp":"2026-01-02T03:05:05Z","reportingComponent":"","source":{"component":"kubelet"}}`)
	f.write("events", "default", "e2", `{"kind":"Event","apiVersion":"v1","metadata":{"name":"e2","namespace":"default"},"involvedObject":{"kind":"Node","name":"n1"},
		"type":"Normal","reason":"R","eventTime":"2026-01-02T03:04:05.5Z","series":{"count":7,"lastObservedTime":"2026-01-02T04:04:05Z"},"firstTimestamp":null,"reportingComponent":"c"}`)
	f.write("events", "default", "e3",
		`{"kind":"Event","apiVersion":"v1","metadata":{"name":"e3","namespace":"default"},"involvedObject":{"kind":"Gear","apiVersion":"example.com/v1","name":"g"},"reason":"R"}`)
	f.expect("admin", "SELECT * FROM events_about ORDER BY name DESC", strings.Join([]string{
		`"pods" "shop" "web" "Warning" "BackOff" "m" 3 "2026-01-02T03:04:05Z" "2026-01-02T03:05:05Z" "kubelet"`,
		`"nodes" "" "n1" "Normal" "R" null 7 "2026-01-02T03:04:05.500000Z" "2026-01-02T04:04:05.000000Z" "c"`,
		`null "" "g" null "R" null 1 null null null`}, "\n")) //nolint:dupword // values that are NULL
	f.expect("admin", "SELECT resource_of('v1', 'Pod'), resource_of('apps/v1', 'Pod'), resource_of('', 'Node'), resource_of(NULL, NULL), resource_of('a/b/c', 'Pod')", `"pods" null "nodes" null null`) //nolint:dupword // values that are NULL
}

// Selectors of both forms, and labels without an order, select what upstream's code selects.
func TestSelectors_SelectAsUpstream(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`services {"app":"web"}`: "web web2", `services {"app":"web","tier":"x"}`: "web2", `services {}`: "",
		`services null`: "", `services {"app":7}`: "",
		`services {"tier":"x","app":"web"}`: "web2", `replicationcontrollers {"app":"db"}`: "db",
		`deployments {"matchLabels":{"app":"web"}}`: "web web2", `poddisruptionbudgets {}`: "db none web web2",
		`poddisruptionbudgets null`: "", `networkpolicies {}`: "db none web web2",
		`jobs {"matchExpressions":[{"key":"app","operator":"In","values":["web","db"]}]}`:            "db web web2",
		`jobs {"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]}`:              "db none",
		`jobs {"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]}`:                        "none",
		`jobs {"matchLabels":{"app":"web"},"matchExpressions":[{"key":"tier","operator":"Exists"}]}`: "web2",
		`jobs {"matchExpressions":[{"key":"app","operator":"Equals"}]}`:                              "", `jobs []`: "",
	} {
		resource, selector, _ := strings.Cut(text, " ")
		parsed := selectors[resource].parse([]byte(selector))
		var got []string
		for _, p := range []pod{{"db", labelsOf(`{"app":"db"}`)}, {"none", nil}, {"web", labelsOf(`{"app":"web"}`)},
			{"web2", labelsOf(`{"tier":"x","app":"web"}`)}} {
			if parsed.Matches(p.labels) {
				got = append(got, p.name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s selects %q, want %q", text, got, want)
		}
	}
	f := newFixture(t)
	f.pod("shop", "web-1", "n")
	f.pod("shop", "web-2", "n")
	f.pod("bank", "web-3", "n")
	f.write("services", "shop", "s",
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"s","namespace":"shop"},"spec":{"selector":{"app":"web"}}}`)
	f.write("services", "shop", "idle",
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"idle","namespace":"shop"},"spec":{"selector":{"app":"none"}}}`)
	f.expect("admin", "SELECT resource, namespace, name, pod FROM selectors ORDER BY pod",
		"\"services\" \"shop\" \"s\" \"web-1\"\n\"services\" \"shop\" \"s\" \"web-2\"")
	f.expect("admin", "SELECT name FROM selectors WHERE namespace = 'shop' AND pod = 'web-2'", `"s"`)
	f.expect("admin",
		"SELECT name FROM services s WHERE NOT EXISTS (SELECT 1 FROM selectors e WHERE e.resource = 'services' AND e.namespace = s.namespace AND e.name = s.name)", `"idle"`)
}

// The plan of a query of a detail table changes no answer.
func TestDetailPlans_GiveEqualRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test
	for i := range 200 {
		namespace, name := fmt.Sprint("ns", random.IntN(4)), fmt.Sprint("o", i)
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": name, "namespace": namespace,
			"labels": map[string]string{fmt.Sprint("k", random.IntN(3)): fmt.Sprint("v", random.IntN(3)), "k9": "v9"}}})
		if err != nil {
			t.Fatal(err)
		}
		f.write([]string{"pods", "services"}[random.IntN(2)], namespace, name, string(text))
	}
	columns := []string{"resource", "namespace", "name", "key", "value"}
	values := []string{"'pods'", "'services'", "'ns1'", "'o7'", "'k1'", "'v1'", "'k9'", "NULL", "7",
		"(SELECT max(key) FROM labels)"}
	for range 300 {
		var planned, scanned []string
		for range 1 + random.IntN(3) {
			column, value := columns[random.IntN(len(columns))], values[random.IntN(len(values))]
			operator := []string{"=", "=", "IS", "<", "IN", "COLLATE NOCASE ="}[random.IntN(6)]
			if operator == "IN" {
				value = "(" + value + ", 'k2', 'ns2', 'pods')"
			}
			planned, scanned = append(planned, column+" "+operator+" "+value), append(scanned, "+"+column+" "+operator+" "+value)
		}
		conjunction := []string{" AND ", " OR "}[random.IntN(2)]
		const head = "SELECT resource, namespace, name, key FROM labels WHERE "
		want, err := f.ask("admin", head+strings.Join(scanned, conjunction)+" ORDER BY 1, 2, 3, 4")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.ask("admin", head+strings.Join(planned, conjunction)+" ORDER BY 1, 2, 3, 4"); got != want ||
			err != nil {
			t.Fatalf("WHERE %s: %d rows %v, want %d", strings.Join(planned, conjunction), strings.Count(got, "\n"), err,
				strings.Count(want, "\n"))
		}
	}
}

// What is no list or map has no elements.
func TestDetailTables_TakeOddObjects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, text := range map[string]string{
		"empty": `{}`,
		"types": `{"metadata":{"labels":[1,{"a":"b"}],"annotations":7,"ownerReferences":{"a":"b"}},"spec":[],"status":{"conditions":{"type":"x"}}}`,
		"null":  `{"metadata":{"labels":null,"annotations":null,"ownerReferences":null},"spec":null,"status":null}`,
		"deep":  `{"metadata":{"labels":{"a":{"b":1}},"ownerReferences":[1,"a",null,[]]},"spec":{"containers":{"a":1},"initContainers":[1,{"env":{},"envFrom":[7]}]},"status":{"conditions":[{"type":{}}]}}`,
	} {
		for _, resource := range []string{"pods", "services"} {
			w := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Namespace: "odd", Resource: resource, Name: name},
				Value: []byte(text), UID: "u-" + name, Encoding: "v1.37/v1"}
			if _, err := f.store.Commit(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "admin"})
	for name := range detailTables {
		q := &Query{Spec: Spec{SQL: "SELECT * FROM " + name}}
		if _, err := f.Create(ctx, q, func(context.Context, runtime.Object) error {
			return nil
		}, nil); err != nil && name != "rbac_rules" {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.expect("admin", "SELECT key, value FROM labels WHERE resource = 'pods'", `"a" null`)
}
