package main

import (
	"context"
	stdsql "database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"byre/apiserver/query"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// ask sends a statement as a user, and returns the answer with its body.
func (h *chronicle) ask(user, accept, statement string) (*http.Response, string) {
	h.Helper()
	config := rest.CopyConfig(h.config)
	config.Impersonate.UserName = user
	client, err := rest.HTTPClientFor(config)
	h.must(err)
	request, err := http.NewRequestWithContext(h.Context(), http.MethodPost, config.Host+query.Path,
		strings.NewReader(statement))
	h.must(err)
	request.Header.Set("Content-Type", "application/sql")
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	h.must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	h.must(err)
	return response, string(body)
}

// csv returns the rows of an answer, without the names of the columns.
func (h *chronicle) csv(user, statement string) []string {
	h.Helper()
	response, body := h.ask(user, query.CSV, statement)
	if response.StatusCode != http.StatusOK {
		h.Fatalf("%s as %q: %d %s", statement, user, response.StatusCode, body)
	}
	return strings.Split(strings.TrimSpace(body), "\n")[1:]
}

// The rows of a user are those of the user's lists, for random rights, and no answer has a value of another
// object.
func TestSQL_EqualsListsForRandomRights(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(26, 1))
			h := newChronicle(t, flags(t)...)
			namespaces, users := []string{"a", "b", "c"}, []string{"u0", "u1", "u2", "u3", "u4", "u5"}
			for _, namespace := range namespaces {
				h.makeNamespace(namespace)
			}
			values := h.changeAtRandom(random, namespaces, 60)
			granted := h.grantAtRandom(random, users, namespaces)
			for user := range granted {
				h.bind("", user, "byre:sql-user")
				storetest.Eventually(t, user+" may ask what lists answer", func() bool {
					response, _ := h.ask(user, query.CSV, "SELECT 1")
					if response.StatusCode != http.StatusOK {
						return false
					}
					for _, resource := range []string{"configmaps", "secrets"} {
						if got, want := h.csv(user,
							"SELECT namespace, name, revision FROM "+resource+" WHERE namespace IN ('a', 'b', 'c') ORDER BY 1, 2"),
							h.listed(user, resource, namespaces); !slices.Equal(got, want) {
							t.Logf("%s asks for %s: %q, want %q", user, resource, got, want)
							return false
						}
					}
					return true
				})
				text := strings.Join(h.csv(user,
					"SELECT c.object, s.object FROM configmaps c FULL JOIN secrets s ON s.namespace = c.namespace"), "\n")
				for of, canaries := range values {
					namespace, resource, _ := strings.Cut(of, "/")
					if slices.Contains(granted.in(user, namespace), resource) {
						continue
					}
					for _, canary := range canaries {
						if strings.Contains(text, canary) {
							t.Errorf("%s, who may list %v, has read a value of %s", user, granted[user], of)
						}
					}
				}
			}
		})
	}
}

// listed returns what a user's lists have, as rows of namespace, name and revision.
func (h *chronicle) listed(user, resource string, namespaces []string) []string {
	config := rest.CopyConfig(h.config)
	config.Impersonate.UserName = user
	client, err := dynamic.NewForConfig(config)
	h.must(err)
	rows := []string{}
	for _, namespace := range namespaces {
		list, err := client.Resource(schema.GroupVersionResource{Version: "v1",
			Resource: resource}).Namespace(namespace).List(h.Context(), metav1.ListOptions{})
		if err != nil {
			continue // the user may not
		}
		for _, item := range list.Items {
			rows = append(rows, strings.Join([]string{namespace, item.GetName(), item.GetResourceVersion()}, ","))
		}
	}
	return rows
}

// The instances of a definition are a table, with the columns of its schema, until it is deleted.
func TestSQL_AsksForWhatIsDefined(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newChronicle(t, flags(t)...)
			h.makeNamespace("shop")
			client, err := dynamic.NewForConfig(h.config)
			h.must(err)
			create := func(resource schema.GroupVersionResource, namespace, text string) {
				var object unstructured.Unstructured
				h.must(object.UnmarshalJSON([]byte(text)))
				storetest.Eventually(t, resource.Resource+" are served", func() bool {
					_, err := client.Resource(resource).Namespace(namespace).Create(t.Context(), &object, metav1.CreateOptions{})
					return err == nil
				})
			}
			definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
				Resource: "customresourcedefinitions"}
			create(definitions, "", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.example.com"},
				"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gears","singular":"gear","kind":"Gear","listKind":"GearList"},
				"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[{"name":"Tooth Count","type":"integer","jsonPath":".spec.teeth"}],
				"schema":{"openAPIV3Schema":{"type":"object","description":"A Gear turns.","properties":{"spec":{"type":"object","properties":{
				"teeth":{"type":"integer"},"isWorn":{"type":"boolean"},"width":{"x-kubernetes-int-or-string":true}}}}}}}]}}`)
			create(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gears"}, "shop",
				`{"apiVersion":"example.com/v1","kind":"Gear","metadata":{"name":"big","labels":{"size":"xl"}},"spec":{"teeth":40,"isWorn":false,"width":"3mm"}}`)
			want, seen := []string{"big,40,false,3mm"}, ""
			defer func() {
				if t.Failed() {
					t.Log(seen)
				}
			}()
			storetest.Eventually(t, "the table is there", func() bool {
				response, body := h.ask("", query.CSV,
					`SELECT name, tooth_count, spec_is_worn, spec_width FROM "gears.example.com" WHERE namespace = 'shop'`)
				seen = body
				return response.StatusCode == http.StatusOK && slices.Equal(strings.Split(strings.TrimSpace(body), "\n")[1:], want)
			})
			if got := h.csv("", "SELECT description FROM byre_tables WHERE table_name = 'gears.example.com'"); !slices.Equal(got,
				[]string{"A Gear turns."}) {
				t.Errorf("%q", got)
			}
			for statement, want := range map[string]string{
				"SELECT spec_names_kind, spec_scope FROM customresourcedefinitions WHERE name = 'gears.example.com'":                                         "Gear,Namespaced",
				"SELECT spec_version FROM \"apiservices.apiregistration.k8s.io\" WHERE name = 'v1.example.com'":                                              "v1",
				"SELECT resource, name FROM labels WHERE key = 'size' AND value = 'xl'":                                                                      "gears.example.com,big",
				"SELECT resource, name FROM labels('-0s') WHERE key = 'size'":                                                                                "gears.example.com,big",
				"SELECT name, verb FROM changes WHERE resource = 'gears.example.com' ORDER BY revision DESC LIMIT 1":                                         "big,create",
				"SELECT count(*) FROM (SELECT revision FROM changes ORDER BY revision DESC LIMIT 3)":                                                         "3",
				"SELECT namespace FROM labels WHERE resource = 'gears.example.com'":                                                                          "shop",
				"SELECT status FROM conditions WHERE resource = 'customresourcedefinitions' AND type = 'Established'":                                        "True",
				"SELECT resource_of('example.com/v1', 'Gear'), resource_of('apps/v1', 'Deployment'), resource_of('apiregistration.k8s.io/v1', 'APIService')": "gears.example.com,deployments,apiservices",
			} {
				if got := h.csv("", statement); !slices.Equal(got, []string{want}) {
					t.Errorf("%s: %q, want %q", statement, got, want)
				}
			}
			revision := h.csv("", `SELECT revision FROM "gears.example.com"`)[0]
			h.must(client.Resource(definitions).Delete(t.Context(), "gears.example.com", metav1.DeleteOptions{}))
			storetest.Eventually(t, "the table is gone", func() bool {
				response, body := h.ask("", query.CSV, `SELECT name FROM "gears.example.com"`)
				return response.StatusCode == http.StatusBadRequest && strings.Contains(body, "no such table")
			})
			for _, statement := range []string{
				`SELECT who <> '', after ->> '$.spec.teeth' FROM changes WHERE resource = 'gears.example.com' AND verb = 'create'`,
				fmt.Sprintf(`SELECT name = 'big', object ->> '$.spec.teeth' FROM "gears.example.com"(%s)`, revision),
				`SELECT ended_by <> '', object ->> '$.spec.teeth' FROM "gears.example.com_history" WHERE ended_by IS NOT NULL LIMIT 1`,
			} {
				if got := h.csv("", statement); !slices.Equal(got, []string{"1,40"}) {
					t.Errorf("%s: %q", statement, got)
				}
			}
		})
	}
}

func TestSQL_AnswersInEveryForm(t *testing.T) {
	t.Parallel()
	h := newChronicle(t)
	const statement = "SELECT 'a,b' AS text, 2 AS number, NULL AS void, json_array(1, 'x') AS list, labels FROM namespaces WHERE name = 'default'"
	for accept, want := range map[string]string{
		query.CSV:          "text,number,void,list,labels\n\"a,b\",2,,\"[1,\"\"x\"\"]\",\"{\"\"kubernetes.io/metadata.name\"\":\"\"default\"\"}\"\n",
		query.NDJSON:       `{"text":"a,b","number":2,"void":null,"list":"[1,\"x\"]","labels":{"kubernetes.io/metadata.name":"default"}}` + "\n",
		"application/json": `"rows":[["a,b",2,null,"[1,\"x\"]",{"kubernetes.io/metadata.name":"default"}]]`,
		"application/yaml": "- - a,b\n    - 2\n    - null\n",
		"application/json;as=Table;v=v1;g=meta.k8s.io": `"cells":["a,b",2,null,"[1,\"x\"]","{\"kubernetes.io/metadata.name\":\"default\"}"]`,
	} {
		response, body := h.ask("", accept, statement)
		if !strings.Contains(body, want) || response.StatusCode >= http.StatusBadRequest {
			t.Errorf("%s: %d %s, want %s", accept, response.StatusCode, body, want)
		}
	}
	const many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 200000) SELECT n FROM r"
	response, body := h.ask("", query.NDJSON, many)
	if rows := strings.Count(body, "\n"); rows != 100_000 || response.Header.Get(query.LimitHeader) != "100000" ||
		response.Header.Get("Byre-Columns") != `[{"name":"n"}]` {
		t.Errorf("%d rows, header %v", rows, response.Header)
	}
	if _, metrics := h.as("", "/metrics", "text/plain"); !strings.Contains(metrics,
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="sql.byre.dev",resource="queries",scope="cluster",subresource="",verb="POST",version="v1"} 3`) {
		t.Error("the streams are not counted")
	}
	// A statement that fails before its first row is an error, also for who asks for a stream.
	for statement, want := range map[string]int{"SELECT x": http.StatusBadRequest, "": http.StatusUnprocessableEntity,
		"SELECT zeroblob(100000000)": http.StatusRequestEntityTooLarge} {
		if response, body := h.ask("", query.CSV, statement); response.StatusCode != want ||
			!strings.Contains(body, "Failure") {
			t.Errorf("%s: %d %s, want %d", statement, response.StatusCode, body, want)
		}
	}
	// One that fails later ends the connection: a short answer would look whole.
	config, err := rest.HTTPClientFor(h.config)
	h.must(err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.config.Host+query.Path,
		strings.NewReader(
			"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 90000) SELECT n, CASE WHEN n = 80000 THEN zeroblob(100000000) END FROM r"))
	h.must(err)
	request.Header.Set("Content-Type", "application/sql")
	request.Header.Set("Accept", query.NDJSON)
	late, err := config.Do(request)
	h.must(err)
	defer late.Body.Close()
	if body, err := io.ReadAll(late.Body); err == nil {
		t.Errorf("a stream that has failed ended as if it were whole, after %d bytes", len(body))
	}
}

// What discovery and kubectl create need is there, and --enable-sql=false removes it.
func TestSQL_IsServedUnlessItIsOff(t *testing.T) {
	t.Parallel()
	on, off := newChronicle(t), newChronicle(t, "--enable-sql=false")
	if status, body := on.as("", "/apis/sql.byre.dev/v1", "application/json"); status != http.StatusOK ||
		!strings.Contains(body, `"verbs":["create"]`) {
		t.Error(status, body)
	}
	if status, body := off.as("", "/apis/sql.byre.dev/v1", "application/json"); status != http.StatusNotFound {
		t.Error(status, body)
	}
	if response, body := off.ask("", "application/json", "SELECT 1"); response.StatusCode != http.StatusNotFound {
		t.Error(response.StatusCode, body)
	}
	on.makeNamespace("shop")
	kubeconfig := filepath.Join(on.dir, "admin.kubeconfig")
	for args, want := range map[string]string{
		"sql|SELECT name FROM namespaces WHERE name = 'shop'|-o|csv":       "name\nshop\n",
		"sql|SELECT name, deleted FROM namespaces WHERE name = ?1|-p|shop": "NAME   DELETED\nshop   <none>\n",
		"sql|SELECT ?1, ?2, ?3|-p|7|-p|\"7\"|-p|true|-o|ndjson":            `{"?1":7,"?2":"7","?3":1}` + "\n",
		"sql|SELECT 1|-o|xml":                                "byre: --output must be table, csv, json, ndjson or yaml, not \"xml\"",
		"sql|SELECT nam FROM pods":                           "byre: no such column: nam, at line 1, column 8",
		"sql|SELECT 1|-f|x":                                  "byre: name a statement or --filename, not both",
		"sql|--at|soon|SELECT count(*) FROM namespaces":      "byre: --at: \"soon\" is neither a revision nor a time: write a revision, a time such as 14:00, \"yesterday 14:00\", 2026-12-01 or 2026-12-01T15:04:05Z, or how long ago it was, such as 2h or 3d\n",
		"sql|SELECT count(*) AS n FROM namespaces(1)|-o|csv": "n\n0\n",
		"sql|SELECT who, verb FROM changes WHERE resource = 'namespaces' AND name = 'shop'|-o|csv": "who,verb\nbyre-admin,create\n",
		"sql|SELECT count(*) > 50 AS many FROM (SELECT DISTINCT resource FROM byre_tables)":        "MANY\n1\n",
	} {
		if _, out, errOut := call(append(strings.Split(args, "|"), "--kubeconfig",
			kubeconfig)...); strings.TrimSpace(out+errOut) != strings.TrimSpace(want) {
			t.Errorf("%s: %q, want %q", args, out+errOut, want)
		}
	}
	if _, out, errOut := call("sql", "--at", "-0s", "SELECT count(*) AS n FROM namespaces WHERE name = 'shop'",
		"--kubeconfig", kubeconfig); out != "N\n1\n" || !strings.HasPrefix(errOut, "--at -0s is 2") {
		t.Errorf("a moment ago: %q, %q", out, errOut)
	}
}

// The names and types of the columns of built-in resources are a promise: queries that people keep depend on
// them. A new release of Kubernetes may add some. BYRE_GOLDEN=1 writes the file.
func TestSQL_ColumnsAreThoseOfTheGoldenFile(t *testing.T) {
	t.Parallel()
	h := newChronicle(t)
	rows := h.csv("", "SELECT table_name, name, type FROM byre_columns")
	got := strings.Join(rows, "\n") + "\n"
	const file = "testdata/sql-columns.csv"
	if os.Getenv("BYRE_GOLDEN") != "" {
		h.must(os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	h.must(err)
	if got == string(want) {
		return
	}
	for row := range strings.Lines(string(want)) {
		if !slices.Contains(rows, strings.TrimSpace(row)) {
			t.Errorf("the column %s is gone", row)
		}
	}
	for _, row := range rows {
		if !strings.Contains(string(want), row+"\n") {
			t.Errorf("the column %s is new", row)
		}
	}
}

// Admission policies for queries judge and change them in every form.
func TestSQL_IsJudgedByAdmissionPolicies(t *testing.T) {
	t.Parallel()
	h := newChronicle(t)
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	policies := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
		Resource: "validatingadmissionpolicies"}
	for resource, text := range map[schema.GroupVersionResource]string{
		policies: `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"no-secrets"},"spec":{
			"matchConstraints":{"resourceRules":[{"apiGroups":["sql.byre.dev"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["queries"]}]},
			"validations":[{"expression":"!object.spec.sql.contains('secrets')","message":"not of secrets"}]}}`,
		policies.GroupVersion().WithResource("validatingadmissionpolicybindings"): `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"no-secrets"},"spec":{
			"policyName":"no-secrets","validationActions":["Deny"]}}`,
		policies.GroupVersion().WithResource("mutatingadmissionpolicies"): `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"other"},"spec":{
			"matchConstraints":{"resourceRules":[{"apiGroups":["sql.byre.dev"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["queries"]}]},
			"matchConditions":[{"name":"one","expression":"object.spec.sql == 'SELECT 1'"}],"failurePolicy":"Fail","reinvocationPolicy":"Never",
			"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'replace', path: '/spec/sql', value: \"SELECT 'changed'\"}]"}}]}}`,
		policies.GroupVersion().WithResource(
			"mutatingadmissionpolicybindings"): `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"other"},"spec":{"policyName":"other"}}`,
	} {
		var object unstructured.Unstructured
		h.must(object.UnmarshalJSON([]byte(text)))
		_, err := client.Resource(resource).Create(t.Context(), &object, metav1.CreateOptions{})
		h.must(err)
	}
	for _, accept := range []string{"application/json", query.CSV, query.NDJSON} {
		storetest.Eventually(t, "the policy is in force for "+accept, func() bool {
			response, body := h.ask("", accept, "SELECT name FROM secrets")
			return response.StatusCode == http.StatusUnprocessableEntity && strings.Contains(body, "not of secrets")
		})
		if response, body := h.ask("", accept, "SELECT name FROM pods"); response.StatusCode >= http.StatusBadRequest {
			t.Errorf("%s: %d %s", accept, response.StatusCode, body)
		}
		storetest.Eventually(t, "the policy changes "+accept, func() bool {
			response, body := h.ask("", accept, "SELECT 1")
			if response.StatusCode >= http.StatusBadRequest {
				t.Fatalf("%s: %d %s", accept, response.StatusCode, body)
			}
			return strings.Contains(body, "changed")
		})
	}
}

// The audit log has the statement at the level Request.
func TestSQL_IsAudited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy,
		[]byte(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Request","resources":[{"group":"sql.byre.dev"}]},{"level":"None"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newChronicle(t, "--audit-policy-file="+policy, "--audit-log-path="+log, "--audit-log-mode=blocking-strict")
	for i, accept := range []string{"application/json", query.CSV} {
		statement := fmt.Sprintf("SELECT %d AS marker", 1000+i)
		h.ask("", accept, statement)
		text, err := os.ReadFile(log)
		h.must(err)
		found := false
		for line := range strings.Lines(string(text)) {
			var event struct {
				Verb          string
				RequestObject query.Query
			}
			h.must(json.Unmarshal([]byte(line), &event))
			found = found || event.Verb == "create" && event.RequestObject.Spec.SQL == statement
		}
		if !found {
			t.Errorf("no event has the statement %s: %s", statement, text)
		}
	}
}

// Who does not read an answer keeps others from asking for no longer than a query may take.
func TestSQL_EndsForWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--sql-concurrency=1", "--sql-timeout=1s")
	client, err := rest.HTTPClientFor(h.config)
	h.must(err)
	const many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 90000) SELECT n, printf('%1000d', n) FROM r"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.config.Host+query.Path,
		strings.NewReader(many))
	h.must(err)
	request.Header.Set("Content-Type", "application/sql")
	request.Header.Set("Accept", query.NDJSON)
	unread, err := client.Do(request)
	h.must(err)
	defer unread.Body.Close()
	if response, body := h.ask("", query.CSV, "SELECT 1"); response.StatusCode != http.StatusOK {
		t.Errorf("beside an answer that nobody reads: %d %s", response.StatusCode, body)
	}
	if response, body := h.ask("", query.CSV, "SELECT 2"); response.StatusCode != http.StatusOK {
		t.Errorf("after it: %d %s", response.StatusCode, body)
	}
}

// A query that has had its time is answered so in every form, by both versions of HTTP.
func TestSQL_TellsThatItTookTooLong(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--sql-timeout=1s")
	http1 := rest.CopyConfig(h.config)
	http1.NextProtos = []string{"http/1.1"}
	for _, config := range []*rest.Config{h.config, http1} {
		for _, accept := range []string{"application/json", query.CSV, query.NDJSON} {
			asks := *h
			asks.config = config
			response, body := asks.ask("", accept,
				"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r")
			if response.StatusCode != http.StatusRequestTimeout || !strings.Contains(body, "took longer than 1s") {
				t.Errorf("%s %s: %d %s", response.Proto, accept, response.StatusCode, body)
			}
		}
	}
}

// The tables and the columns are listed in every form.
func TestSQL_ListsTablesAndColumns(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(newChronicle(t).dir, "admin.kubeconfig")
	for args, want := range map[string]string{
		"sql tables K":                          "TABLE_NAME ",
		"sql tables K -o csv":                   "\npods,,v1,Pod is a collection of containers that can run on a host.\n",
		"sql columns K pods":                    "\nrestarts ",
		"sql columns K deployments.apps -o csv": "\nready,integer,status.readyReplicas,",
		"sql columns K pods -o ndjson":          `{"name":"namespace","type":"text","path":"metadata.namespace",`,
		"sql columns K nope":                    `byre: there is no table "nope": "byre sql tables" lists them`,
		"__complete sql columns K deploy":       "deployments\ndeployments.apps\n",
	} {
		if _, out, errOut := call(strings.Fields(strings.Replace(args, " K", " --kubeconfig "+kubeconfig,
			1))...); !strings.Contains(out+errOut, want) {
			t.Errorf("%s: %q, want %q", args, out+errOut, want)
		}
	}
}

// A table at a moment is the list that was recorded then, on the server itself, on another replica and after a restore.
// What a compaction has put out of reach is 410, never other rows.
func TestSQL_MomentsEqualRecordedLists(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		t.Parallel()
		h := newChronicle(t, flags...)
		h.config.QPS = -1
		h.kube = kubernetes.NewForConfigOrDie(h.config)
		recorded := h.recordLists()
		for name, server := range map[string]*chronicle{"itself": h, "replica": h.replica(), "restored": h.restored()} {
			if server == nil {
				continue
			}
			for revision, want := range recorded {
				if got := server.csv("",
					"SELECT name, data ->> 'key' FROM configmaps("+revision+
						") WHERE namespace = 'default' AND name LIKE 'c_' ORDER BY name"); !slices.Equal(got, want) {
					t.Errorf("%s at %s: %q, want %q", name, revision, got, want)
				}
			}
		}
		h.write("default", "later", "") // a compaction keeps the last revision
		succeed(t, append([]string{"compact", "--keep=0s", "--resource=configmaps"}, h.database()...)...)
		h.expectOutOfReach(recorded)
	})
}

// recordLists changes ConfigMaps at random, and returns the lists meanwhile, as rows of a query, by their
// resourceVersion.
func (h *chronicle) recordLists() map[string][]string {
	h.Helper()
	maps, random := h.kube.CoreV1().ConfigMaps("default"), rand.New(rand.NewPCG(5, 6)) //nolint:gosec // a test
	recorded := map[string][]string{}
	for i := range 60 {
		name := fmt.Sprint("c", random.IntN(5))
		if err := maps.Delete(h.Context(), name, metav1.DeleteOptions{}); err != nil || random.IntN(3) > 0 {
			h.write("default", name, fmt.Sprint(i))
		}
		list, err := maps.List(h.Context(), metav1.ListOptions{})
		h.must(err)
		rows := []string{""} // what csv returns of no rows
		for j := range list.Items {
			if item := &list.Items[j]; strings.HasPrefix(item.Name, "c") && len(item.Name) == 2 {
				rows = append(rows, item.Name+","+item.Data["key"])
			}
		}
		recorded[list.ResourceVersion] = rows[min(1, len(rows)-1):]
	}
	return recorded
}

// expectOutOfReach expects each moment to be 410.
func (h *chronicle) expectOutOfReach(recorded map[string][]string) {
	h.Helper()
	for revision := range recorded {
		if response, body := h.ask("", query.CSV,
			"SELECT count(*) FROM configmaps("+revision+")"); response.StatusCode != http.StatusGone {
			h.Errorf("at %s: %d %s", revision, response.StatusCode, body)
		}
	}
}

// Past states of custom resources are as they were stored: without the defaults of today's definition, and also in a
// version that is gone.
func TestSQL_PastIsWithoutTodaysDefinition(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		t.Parallel()
		h := newChronicle(t, flags...)
		client := dynamic.NewForConfigOrDie(h.config)
		definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"})
		define := func(version, mode string) map[string]any {
			var object map[string]any
			h.must(json.Unmarshal(fmt.Appendf(nil, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.example.com"},
				"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"gears","singular":"gear","kind":"Gear","listKind":"GearList"},
				"versions":[{"name":%q,"served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
				"teeth":{"type":"integer"},"mode":{"type":"string"%s}}}}}}}]}}`, version, mode), &object))
			return object
		}
		_, err := definitions.Create(t.Context(), &unstructured.Unstructured{Object: define("v1", "")},
			metav1.CreateOptions{})
		h.must(err)
		var made *unstructured.Unstructured
		storetest.Eventually(t, "gears are served", func() (ok bool) {
			gear := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Gear",
				"metadata": map[string]any{"name": "big"}, "spec": map[string]any{"teeth": int64(40)}}}
			made, err = client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
				Resource: "gears"}).Create(t.Context(), gear, metav1.CreateOptions{})
			return err == nil
		})
		redefine := func(versions ...any) {
			storetest.Eventually(t, "the definition is changed", func() bool {
				crd, err := definitions.Get(t.Context(), "gears.example.com", metav1.GetOptions{})
				h.must(err)
				h.must(unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
				_, err = definitions.Update(t.Context(), crd, metav1.UpdateOptions{})
				return err == nil
			})
		}
		version := func(name, mode string) map[string]any {
			return define(name, mode)["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		}
		expect := func(want, statement string) {
			t.Helper()
			storetest.Eventually(t, want+" is the answer to "+statement, func() bool {
				response, body := h.ask("", query.CSV, statement)
				return response.StatusCode == http.StatusOK &&
					slices.Equal(strings.Split(strings.TrimSpace(body), "\n")[1:], []string{want})
			})
		}
		redefine(version("v1", `,"default":"fast"`))
		expect("fast", `SELECT spec_mode FROM "gears.example.com"`)
		expect("1,40",
			fmt.Sprintf(`SELECT spec_mode IS NULL, spec_teeth FROM "gears.example.com"(%s)`, made.GetResourceVersion()))
		expect("1,40,"+made.GetResourceVersion(),
			`SELECT spec_mode IS NULL, spec_teeth, object ->> '$.metadata.resourceVersion' FROM "gears.example.com_history"`)
		old := version("v1", "")
		old["storage"] = false
		redefine(old, version("v2", ""))
		_, err = definitions.Patch(t.Context(), "gears.example.com", types.MergePatchType,
			[]byte(`{"status":{"storedVersions":["v2"]}}`), metav1.PatchOptions{}, "status")
		h.must(err)
		redefine(version("v2", ""))
		expect("v2",
			`SELECT spec_versions ->> '$[0].name' FROM (SELECT object -> '$.spec.versions' AS spec_versions FROM customresourcedefinitions)`)
		expect("1,40", `SELECT object IS NOT NULL, spec_teeth FROM "gears.example.com_history"`)
	})
}

// kubernetesOwn matches rows of what Kubernetes itself makes in each cluster.
var kubernetesOwn = regexp.MustCompile(`system:|kube-|kubeadm:|,ServiceAccount,`)

// timeOfChange matches the time of a change.
var timeOfChange = regexp.MustCompile(`[0-9-]{10}T[0-9:]{8}\.[0-9]{6}Z`)

// answers are the other rows of the statements of docs/sql.md, by their comments.
var answers = map[string]string{
	"which images run, by tag, in how many containers":     "example.org/web:1,2|example.org/log:2,1",
	"what the Pods of each node ask for, of what it has":   "n1,0.25,4,67108864,8589934592|n2,0.25,0.5,,",
	"which containers have no memory limit":                "shop,web-2,log|shop,web-2,web",
	"which Pods are on a node":                             "shop,web-1,Running",
	"what is known of a Pod that does not run":             "2026-01-02T03:04:05Z,FailedMount,3,no such volume",
	"which workloads have fewer ready Pods than they want": "deployments,shop,web,1,3",
	"which Services select no Pod":                         "shop,idle",
	"which ConfigMaps no Pod uses":                         "shop,forgotten",
	"which claims no Pod mounts":                           "shop,spare",
	"which nodes are not well":                             "n2,DiskPressure,True,KubeletHasDiskPressure|n2,Ready,Unknown,NodeStatusUnknown",
	"which values a label has":                             "deployments,web,1|pods,web,2",
	"who may read the Secrets of a namespace":              ",User,carol|shop,User,alice",
	"which Pods are on nodes that take no more":            "shop,web-2,n2",
	"which Pods use a Secret":                              "shop,web-1|shop,web-2",
	"which field managers have created ConfigMaps":         "byre.test,3",
	"who has scaled a Deployment since yesterday":          "TIME,erin,2,3",
	"what a deleted ConfigMap held":                        `TIME,frank,"{""color"":""blue""}"`,
	"which Pods were on a node an hour ago":                "",
	"who has changed something in the last ten minutes":    "byre-admin|dave|erin|frank",
	"which Pods are older than a day":                      "",
	"who changed something in an hour of yesterday":        "",
	"what has changed in a namespace since a deployment":   "TIME,erin,patch,deployments,web|TIME,byre-admin,create,configmaps,retired|TIME,frank,delete,configmaps,retired",
}

// The statements of docs/sql.md give the rows that its reader expects. It begins with twelve.
func TestSQL_AnswersTheManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	statements := map[string]string{}
	for _, block := range strings.Split(string(text), "```sql\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for statement := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(block), ";"), ";\n") {
			question, statement, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(statement), "-- "), "\n")
			statements[question] = statement
		}
	}
	if _, begin, _ := strings.Cut(string(text), "\n## "); strings.Count(begin[:strings.Index(begin, "\n## ")],
		"\n-- ") != 12 {
		t.Error("the page does not begin with twelve questions")
	}
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newChronicle(t, append(flags(t), "--disable-admission-plugins=ServiceAccount")...)
			h.makeNamespace("shop")
			h.createAll("testdata/query-manual.yaml")
			h.changeForTheManual()
			for question, statement := range statements {
				rows := slices.DeleteFunc(h.csv("", statement), kubernetesOwn.MatchString)
				got := timeOfChange.ReplaceAllString(strings.Join(rows, "|"), "TIME")
				if want, ok := answers[question]; !ok || got != want {
					t.Errorf("%s:\n%s\n%q, want %q", question, statement, rows, want)
				}
			}
			for question := range answers {
				if statements[question] == "" {
					t.Errorf("the manual does not ask %s", question)
				}
			}
		})
	}
}

// changeForTheManual makes the changes that the manual asks for.
func (h *chronicle) changeForTheManual() {
	h.Helper()
	as := func(user string) *kubernetes.Clientset {
		config := rest.CopyConfig(h.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		return kubernetes.NewForConfigOrDie(config)
	}
	patch := func(user, change string) {
		_, err := as(user).AppsV1().Deployments("shop").Patch(h.Context(), "web", types.MergePatchType, []byte(change),
			metav1.PatchOptions{})
		h.must(err)
	}
	patch("dave", `{"spec":{"template":{"metadata":{"annotations":{"deployed":"now"}}}}}`)
	patch("erin", `{"spec":{"replicas":3}}`)
	_, err := h.kube.CoreV1().ConfigMaps("shop").Create(h.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "retired"}, Data: map[string]string{"color": "blue"}},
		metav1.CreateOptions{})
	h.must(err)
	h.must(as("frank").CoreV1().ConfigMaps("shop").Delete(h.Context(), "retired", metav1.DeleteOptions{}))
}

// createAll creates the objects in a file of YAML, with their status.
func (h *chronicle) createAll(file string) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	text, err := os.ReadFile(file)
	h.must(err)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var object unstructured.Unstructured
		h.must(yaml.Unmarshal([]byte(document), &object.Object))
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		objects := client.Resource(resource).Namespace(object.GetNamespace())
		created, err := objects.Create(h.Context(), &object, metav1.CreateOptions{FieldManager: "byre.test"})
		h.must(err)
		if status := object.Object["status"]; status != nil {
			created.Object["status"] = status
			_, err := objects.UpdateStatus(h.Context(), created, metav1.UpdateOptions{})
			h.must(err)
		}
	}
}

// TestSQL_PastCost tells how long queries of the past take where each of BYRE_QUERY_PAST Pods of 3 KB has
// been changed since the moment that they ask for.
func TestSQL_PastCost(t *testing.T) {
	pods, err := strconv.Atoi(os.Getenv("BYRE_QUERY_PAST"))
	if err != nil {
		t.Skip("BYRE_QUERY_PAST is not a number of Pods")
	}
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			dir, flags := t.TempDir(), append(flags(t), "--sql-timeout=1m", "--sql-memory=1Gi")
			startServer(t, dir, flags...).stop(t)
			at := writePods(t, dir, flags, pods)
			h := (&chronicle{T: t}).of(dir, flags...)
			h.csv("", "SELECT count(*) FROM pods") // the watch cache has loaded them
			for _, statement := range []string{
				"SELECT count(*) FROM pods", "SELECT node, count(*) FROM pods GROUP BY node", "SELECT count(*) FROM pods(%[1]d)",
				"SELECT node, count(*) FROM pods(%[1]d) GROUP BY node",
				"SELECT count(*) FROM pods('-0s')", "SELECT count(*) FROM pods(%[1]d) WHERE namespace = 'ns-7'",
				"SELECT node FROM pods(%[1]d) WHERE namespace = 'ns-7' AND name = 'pod-7'",
				"SELECT count(*) FROM pods now JOIN pods(%[1]d) was ON was.namespace = now.namespace AND was.name = now.name WHERE was.node <> now.node",
				"SELECT count(*) FROM pods_history",
				"SELECT node, who FROM pods_history WHERE namespace = 'ns-7' AND name = 'pod-7'",
				"SELECT count(*) FROM changes", "SELECT count(*) FROM changes WHERE resource = 'pods' AND namespace = 'ns-7'",
				"SELECT path, count(*) FROM field_changes GROUP BY path",
			} {
				if strings.Contains(statement, "%") {
					statement = fmt.Sprintf(statement, at)
				}
				began := time.Now()
				response, body := h.ask("", query.CSV, statement)
				t.Logf("%s: %s: %v: %d %.80q", name, statement, time.Since(began).Round(time.Millisecond), response.StatusCode,
					body)
			}
		})
	}
}

// TestSQLViews_Cost tells how long the views of detail tables take, for who owns the database, with BYRE_VIEWS_COST
// Pods of 3 KB and ten Services, of 1,000 Pods each, in each of ten namespaces.
func TestSQLViews_Cost(t *testing.T) {
	pods, err := strconv.Atoi(os.Getenv("BYRE_VIEWS_COST"))
	if err != nil {
		t.Skip("BYRE_VIEWS_COST is not a number of Pods")
	}
	statements := []string{
		"SELECT count(*) FROM containers",
		"SELECT count(*) FROM (SELECT image, sum(cpu_request) FROM containers GROUP BY image) g",
		"SELECT count(*) FROM containers WHERE namespace = 'ns-7'",
		"SELECT image FROM containers WHERE namespace = 'ns-7' AND name = 'pod-7'", "SELECT count(*) FROM labels",
		"SELECT count(*) FROM labels WHERE key = 'app' AND value = 'web-7'",
		"SELECT count(*) FROM labels WHERE resource = 'services'", "SELECT count(*) FROM selectors",
		"SELECT count(*) FROM selectors WHERE namespace = 'ns-7'",
		"SELECT pod FROM selectors WHERE resource = 'services' AND namespace = 'ns-7' AND name = 's1'",
	}
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			dir, flags := t.TempDir(), flags(t)
			startServer(t, dir, flags...).stop(t)
			writePods(t, dir, append(flags, ""), pods)
			of := statements
			if name == "postgres" {
				flags = append(flags, "--sql-schema=k8s")
				for _, detail := range []string{"containers", "labels", "selectors"} {
					of = append(slices.Clone(of), "SELECT count(*) FROM "+detail+"(now())",
						"SELECT count(*) FROM "+detail+"(now()) WHERE namespace = 'ns-7'")
				}
			}
			h := (&chronicle{T: t}).of(dir, append(flags, "--controllers=")...)
			for i := range 100 {
				namespace := fmt.Sprintf("ns-%d", i/10)
				if i%10 == 0 {
					h.makeNamespace(namespace)
				}
				_, err := h.kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i%10)},
					Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}},
						Selector: map[string]string{"app": fmt.Sprintf("web-%d", i/10)}},
				}, metav1.CreateOptions{})
				h.must(err)
			}
			var db *stdsql.DB
			if name == "sqlite" {
				db = h.openViews()
			} else {
				db = h.openSchema("k8s")
				h.awaitOne(db, "t", "SELECT to_regprocedure('k8s.labels(timestamptz)') IS NOT NULL")
				h.execute(db, "ANALYZE") // as autovacuum does within a minute
			}
			for _, statement := range of {
				began := time.Now()
				found := one(db, statement)
				t.Logf("%s: %s: %v: %.80q", name, statement, time.Since(began).Round(time.Millisecond), found)
			}
		})
	}
}

// TestSQL_GetsBesideQueries tells what the slowest hundredth of GETs takes, in turns: alone, beside queries that read
// BYRE_QUERY_BESIDE Pods, and beside a program of the least priority that only counts, which is what any use of one
// processor costs.
func TestSQL_GetsBesideQueries(t *testing.T) {
	pods, err := strconv.Atoi(os.Getenv("BYRE_QUERY_BESIDE"))
	if err != nil {
		t.Skip("BYRE_QUERY_BESIDE is not a number of Pods")
	}
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			dir, flags := t.TempDir(), append(flags(t), "--controllers=")
			startServer(t, dir, flags...).stop(t)
			writePods(t, dir, flags, pods)
			h := (&chronicle{T: t}).of(dir, flags...)
			h.config.QPS = -1
			kube := kubernetes.NewForConfigOrDie(h.config)
			const statement = "SELECT node, phase, count(*) FROM pods GROUP BY node, phase"
			h.csv("", statement)
			beside := map[string]func(context.Context){
				"alone":   func(context.Context) {},
				"queries": func(ctx context.Context) { repeat(ctx, func() { h.csv("", statement) }) },
				"a loop": func(ctx context.Context) {
					_ = exec.CommandContext(ctx, "nice", "-n", "19", "sh", "-c", "while :; do :; done").Run()
				}, // it is killed
			}
			for _, clients := range []int{1, 8} {
				slowest := map[string][]time.Duration{}
				for range 7 {
					for name, other := range beside {
						ctx, cancel := context.WithCancel(t.Context())
						var running sync.WaitGroup
						running.Go(func() { other(ctx) })
						slowest[name] = append(slowest[name], slowestGet(h, kube, clients, pods))
						cancel()
						running.Wait()
					}
				}
				for name, all := range slowest {
					slices.Sort(all)
					t.Logf("p99 of GET, clients %d, %s: %v (%v to %v)", clients, name, all[3], all[0], all[6])
				}
			}
		})
	}
}

// slowestGet returns what the slowest hundredth of 6,000 GETs of Pods takes.
func slowestGet(h *chronicle, kube kubernetes.Interface, clients, pods int) time.Duration {
	took := make([][]time.Duration, clients)
	var running sync.WaitGroup
	for c := range took {
		running.Go(func() {
			for i := range 6000 / clients {
				n := (i*clients + c) % pods
				began := time.Now()
				_, err := kube.CoreV1().Pods(fmt.Sprintf("ns-%d", n%100)).Get(h.Context(), fmt.Sprintf("pod-%d", n),
					metav1.GetOptions{})
				took[c] = append(took[c], time.Since(began))
				if err != nil {
					h.Error(err)
				}
			}
		})
	}
	running.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	return all[len(all)*99/100]
}

func repeat(ctx context.Context, f func()) {
	for ctx.Err() == nil {
		f()
	}
}

// writePods writes Pods, and then changes each, and returns the revision between.
func writePods(t *testing.T, dir string, flags []string, pods int) (between int64) {
	t.Helper()
	var driver sqlstore.Driver
	var err error
	if flags[0] == "--endpoint" {
		driver, err = postgres.OpenWithoutServing(t.Context(), flags[1], postgres.Options{})
	} else {
		driver, err = sqlite.Open(t.Context(), dir+"/byre.db", sqlite.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	like, _, err := driver.Get(t.Context(), sqlstore.Key{Resource: "namespaces", Name: "default"})
	if err != nil {
		t.Fatal(err)
	}
	padding := strings.Repeat(`{"name":"A_VARIABLE","value":"and what it is set to"},`, 44)
	revisions := make([]int64, pods)
	for _, op := range []sqlstore.Op{sqlstore.Create, sqlstore.Update} {
		between = revisions[pods-1]
		var batch []sqlstore.Write
		for i := range pods {
			namespace, name, node := fmt.Sprintf("ns-%d", i%100), fmt.Sprintf("pod-%d", i), fmt.Sprintf("%s-%d", op, i%1000)
			text := fmt.Sprintf(
				`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u-%s","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web-%d"}},"spec":{"containers":[{"name":"c","image":"example.org/web:1","env":[%s{"name":"LAST","value":""}]}],"nodeName":%q,"priority":7},"status":{"phase":"Running","podIP":"10.0.0.1"}}`,
				name, namespace, name, i%100, padding, node)
			batch = append(batch, sqlstore.Write{
				Op: op, Key: sqlstore.Key{Namespace: namespace, Resource: "pods", Name: name}, Value: []byte(text),
				UID: "u-" + name, Encoding: like.Encoding,
				Replaces: revisions[i], Author: sqlstore.Author{User: "writer", Verb: string(op)},
			})
			if len(batch) < 500 && i < pods-1 {
				continue
			}
			outcomes, err := driver.Commit(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			for j, outcome := range outcomes {
				if outcome.Err != nil {
					t.Fatal(outcome.Err)
				}
				revisions[i+1-len(batch)+j] = outcome.Revision
			}
			batch = batch[:0]
		}
	}
	return between
}
