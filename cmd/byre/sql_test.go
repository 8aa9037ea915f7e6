package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"byre/apiserver/query"
	"byre/sqlstore/storetest"
)

// ask sends a statement as a user, and returns the answer with its body.
func (h *chronicle) ask(user, accept, statement string) (*http.Response, string) {
	h.Helper()
	config := rest.CopyConfig(h.config)
	config.Impersonate.UserName = user
	client, err := rest.HTTPClientFor(config)
	h.must(err)
	request, err := http.NewRequestWithContext(h.Context(), http.MethodPost, config.Host+query.Path, strings.NewReader(statement))
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
						if got, want := h.csv(user, "SELECT namespace, name, revision FROM "+resource+" WHERE namespace IN ('a', 'b', 'c') ORDER BY 1, 2"), h.listed(user, resource, namespaces); !slices.Equal(got, want) {
							t.Logf("%s asks for %s: %q, want %q", user, resource, got, want)
							return false
						}
					}
					return true
				})
				text := strings.Join(h.csv(user, "SELECT c.object, s.object FROM configmaps c FULL JOIN secrets s ON s.namespace = c.namespace"), "\n")
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
		list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).List(h.Context(), metav1.ListOptions{})
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
			definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
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
				response, body := h.ask("", query.CSV, `SELECT name, tooth_count, spec_is_worn, spec_width FROM "gears.example.com" WHERE namespace = 'shop'`)
				seen = body
				return response.StatusCode == http.StatusOK && slices.Equal(strings.Split(strings.TrimSpace(body), "\n")[1:], want)
			})
			if got := h.csv("", "SELECT description FROM byre_tables WHERE table_name = 'gears.example.com'"); !slices.Equal(got, []string{"A Gear turns."}) {
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
	if rows := strings.Count(body, "\n"); rows != 100_000 || response.Header.Get(query.LimitHeader) != "100000" || response.Header.Get("Byre-Columns") != `[{"name":"n"}]` {
		t.Errorf("%d rows, header %v", rows, response.Header)
	}
	if _, metrics := h.as("", "/metrics", "text/plain"); !strings.Contains(metrics, `apiserver_request_total{code="200",component="apiserver",dry_run="",group="sql.byre.dev",resource="queries",scope="cluster",subresource="",verb="POST",version="v1"} 3`) {
		t.Error("the streams are not counted")
	}
	// A statement that fails before its first row is an error, also for who asks for a stream.
	for statement, want := range map[string]int{"SELECT x": http.StatusBadRequest, "": http.StatusUnprocessableEntity, "SELECT zeroblob(100000000)": http.StatusRequestEntityTooLarge} {
		if response, body := h.ask("", query.CSV, statement); response.StatusCode != want || !strings.Contains(body, "Failure") {
			t.Errorf("%s: %d %s, want %d", statement, response.StatusCode, body, want)
		}
	}
	// One that fails later ends the connection: a short answer would look whole.
	config, err := rest.HTTPClientFor(h.config)
	h.must(err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.config.Host+query.Path,
		strings.NewReader("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 90000) SELECT n, CASE WHEN n = 80000 THEN zeroblob(100000000) END FROM r"))
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
	if status, body := on.as("", "/apis/sql.byre.dev/v1", "application/json"); status != http.StatusOK || !strings.Contains(body, `"verbs":["create"]`) {
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
		"sql|SELECT 1|-o|xml":      "byre: --output must be table, csv, json, ndjson or yaml, not \"xml\"",
		"sql|SELECT nam FROM pods": "byre: no such column: nam, at line 1, column 8",
		"sql|SELECT 1|-f|x":        "byre: name a statement or --filename, not both",
		"sql|--at|-0s|SELECT count(*) AS n FROM namespaces WHERE name = 'shop'":                    "N\n1\n",
		"sql|--at|soon|SELECT count(*) FROM namespaces":                                            "byre: \"soon\" is neither a revision nor a time such as 2026-12-01T15:04:05Z or -2h",
		"sql|SELECT count(*) AS n FROM namespaces(1)|-o|csv":                                       "n\n0\n",
		"sql|SELECT who, verb FROM changes WHERE resource = 'namespaces' AND name = 'shop'|-o|csv": "who,verb\nbyre-admin,create\n",
		"sql|SELECT count(*) > 50 AS many FROM (SELECT DISTINCT resource FROM byre_tables)":        "MANY\n1\n",
	} {
		if _, out, errOut := call(append(strings.Split(args, "|"), "--kubeconfig", kubeconfig)...); strings.TrimSpace(out+errOut) != strings.TrimSpace(want) {
			t.Errorf("%s: %q, want %q", args, out+errOut, want)
		}
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
	policies := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
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
		policies.GroupVersion().WithResource("mutatingadmissionpolicybindings"): `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"other"},"spec":{"policyName":"other"}}`,
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
	if err := os.WriteFile(policy, []byte(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Request","resources":[{"group":"sql.byre.dev"}]},{"level":"None"}]}`), 0o600); err != nil {
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
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.config.Host+query.Path, strings.NewReader(many))
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
			response, body := asks.ask("", accept, "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r")
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
		if _, out, errOut := call(strings.Fields(strings.Replace(args, " K", " --kubeconfig "+kubeconfig, 1))...); !strings.Contains(out+errOut, want) {
			t.Errorf("%s: %q, want %q", args, out+errOut, want)
		}
	}
}
