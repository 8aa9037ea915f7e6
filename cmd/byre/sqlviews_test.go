package main

import (
	stdsql "database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"byre/apiserver/query"
	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// openViews opens the SQLite of a server, with one session that has the views of "byre sql views".
func (h *chronicle) openViews() *stdsql.DB {
	h.Helper()
	status, statements, errOut := call("sql", "views", "--data-dir", h.dir)
	if status != 0 || errOut != "" {
		h.Fatalf("status %d, %s", status, errOut)
	}
	db, err := stdsql.Open("sqlite", migrations.SQLiteDSN(filepath.Join(h.dir, "byre.db"))+"?mode=ro")
	h.must(err)
	h.Cleanup(func() { _ = db.Close() }) // it has written nothing
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(h.Context(), statements)
	h.must(err)
	return db
}

// The objects of the tests of views. {n} is a number, {q} a quote, {zero} and {odd} are the UIDs of ConfigMaps.
const viewObjects = `
/v1/namespaces//{"metadata":{"name":"shop","annotations":{"a.b/c":"d{q}"}}}
/v1/serviceaccounts/shop/{"metadata":{"name":"default"}}
/v1/configmaps/shop/{"metadata":{"name":"odd"},"data":{"k":"{q}\"\\ {n} \u00e9\u2028","z":"null"},"immutable":true}
/v1/configmaps/shop/{"metadata":{"name":"zero","annotations":{"a":"x\u0000y"}}}
/v1/secrets/shop/{"metadata":{"name":"s","labels":{"of":"secret"}},"stringData":{"password":"hunter2"}}
/v1/nodes//{"metadata":{"name":"n{n}"},"spec":{"unschedulable":true,"podCIDR":"10.{n}.0.0/24","taints":[{"key":"k","effect":"NoSchedule"}]}}
/v1/pods/shop/{"metadata":{"name":"p","labels":{"tier":"web","x":"","y/z":"1"},"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"zero","uid":"{zero}"},{"apiVersion":"v1","kind":"ConfigMap","name":"odd","uid":"{odd}","controller":true}]},"spec":{"automountServiceAccountToken":false,"nodeName":"n{n}","terminationGracePeriodSeconds":{n},"containers":[{"name":"a","image":"i","resources":{"requests":{"cpu":"{n}m"}}},{"name":"b","image":"j"}]}}
/v1/pods/shop/{"metadata":{"name":"q","labels":{"tier":"db"}},"spec":{"automountServiceAccountToken":false,"hostNetwork":true,"containers":[{"name":"a","image":"i"}]}}
/v1/pods/shop/{"metadata":{"name":"r","labels":{"a.b/c":"d"}},"spec":{"automountServiceAccountToken":false,"volumes":[{"name":"m","configMap":{"name":"odd"}},{"name":"s","secret":{"secretName":"s"}},{"name":"e","emptyDir":{}},{"name":"c","persistentVolumeClaim":{"claimName":"data"}},{"name":"all","projected":{"sources":[{"configMap":{"name":"odd"}},{"secret":{"name":"s"}},{"serviceAccountToken":{"path":"t"}}]}}],"initContainers":[{"name":"i","image":"i"}],"containers":[{"name":"a","image":"i","resources":{"limits":{"cpu":"{n}m","memory":"{n}.5Mi"}},"env":[{"name":"PLAIN","value":"x"},{"name":"M","valueFrom":{"configMapKeyRef":{"name":"odd","key":"k","optional":true}}},{"name":"S","valueFrom":{"secretKeyRef":{"name":"s","key":"password"}}},{"name":"F","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}},{"name":"R","valueFrom":{"resourceFieldRef":{"containerName":"a","resource":"limits.cpu"}}}],"envFrom":[{"configMapRef":{"name":"odd"}},{"prefix":"P_","secretRef":{"name":"s","optional":true}}]}]}}
/v1/services/shop/{"metadata":{"name":"web"},"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}}
/v1/persistentvolumeclaims/shop/{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"{n}Gi"}}}}
/v1/events/shop/{"metadata":{"name":"e"},"involvedObject":{"kind":"Pod","namespace":"shop","name":"p"},"reason":"R","count":{n},"eventTime":"2026-01-31T12:00:00.120000Z","reportingComponent":"c.d/e","reportingInstance":"i","action":"A","type":"Normal","lastTimestamp":"2026-01-31T12:00:00Z"}
/v1/events/shop/{"metadata":{"name":"f"},"involvedObject":{"apiVersion":"apps/v1","kind":"Deployment","namespace":"shop","name":"web"},"reason":"R","message":"it's","source":{"component":"s"},"firstTimestamp":"2026-01-31T12:00:00Z"}
/v1/events/default/{"metadata":{"name":"g"},"involvedObject":{"apiVersion":"v1","kind":"Node","name":"n"},"eventTime":"2026-01-31T12:00:00.500000Z","series":{"count":{n},"lastObservedTime":"2026-01-31T13:00:00.000000Z"},"reason":"R","reportingComponent":"c","reportingInstance":"i","action":"A","type":"Normal"}
/v1/events/default/{"metadata":{"name":"h"},"involvedObject":{"apiVersion":"none/v1","kind":"Pod","name":"x"},"reason":"R"}
/v1/services/shop/{"metadata":{"name":"db"},"spec":{"ports":[{"port":80}],"selector":{"tier":"db"}}}
/v1/services/shop/{"metadata":{"name":"none"},"spec":{"ports":[{"port":80}]}}
networking.k8s.io/v1/networkpolicies/shop/{"metadata":{"name":"all"},"spec":{"podSelector":{}}}
networking.k8s.io/v1/networkpolicies/shop/{"metadata":{"name":"in"},"spec":{"podSelector":{"matchExpressions":[{"key":"tier","operator":"In","values":["we","web","cache"]}]}}}
networking.k8s.io/v1/networkpolicies/shop/{"metadata":{"name":"empty"},"spec":{"podSelector":{"matchExpressions":[{"key":"x","operator":"In","values":["y",""]}]}}}
networking.k8s.io/v1/networkpolicies/shop/{"metadata":{"name":"not-in"},"spec":{"podSelector":{"matchExpressions":[{"key":"tier","operator":"NotIn","values":["web"]}]}}}
networking.k8s.io/v1/networkpolicies/shop/{"metadata":{"name":"exists"},"spec":{"podSelector":{"matchLabels":{"tier":"web","y/z":"1"},"matchExpressions":[{"key":"x","operator":"Exists"}]}}}
networking.k8s.io/v1/networkpolicies/shop/{"metadata":{"name":"does-not"},"spec":{"podSelector":{"matchLabels":{"tier":"db"},"matchExpressions":[{"key":"x","operator":"DoesNotExist"}]}}}
networking.k8s.io/v1/networkpolicies/shop/{"metadata":{"name":"neither"},"spec":{"podSelector":{"matchLabels":{"tier":"db"},"matchExpressions":[{"key":"x","operator":"Exists"}]}}}
apps/v1/deployments/shop/{"metadata":{"name":"web","labels":{"app":"web"}},"spec":{"replicas":{n},"paused":true,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"i"}]}}}}
apps/v1/daemonsets/shop/{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"i"}]}}}}
batch/v1/jobs/shop/{"metadata":{"name":"j"},"spec":{"completions":{n},"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"a","image":"i"}]}}}}
batch/v1/cronjobs/shop/{"metadata":{"name":"c"},"spec":{"schedule":"* * * * *","suspend":false,"jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"a","image":"i"}]}}}}}}
policy/v1/poddisruptionbudgets/shop/{"metadata":{"name":"percent"},"spec":{"minAvailable":"50%","selector":{}}}
policy/v1/poddisruptionbudgets/shop/{"metadata":{"name":"number"},"spec":{"maxUnavailable":{n},"selector":{}}}
coordination.k8s.io/v1/leases/shop/{"metadata":{"name":"l"},"spec":{"holderIdentity":"h","leaseDurationSeconds":{n},"renewTime":"2026-01-31T12:00:00.000000Z"}}
networking.k8s.io/v1/ingresses/shop/{"metadata":{"name":"i"},"spec":{"ingressClassName":"x","defaultBackend":{"service":{"name":"web","port":{"number":80}}}}}
storage.k8s.io/v1/storageclasses//{"metadata":{"name":"fast"},"provisioner":"p","allowVolumeExpansion":true}
storage.k8s.io/v1/csistoragecapacities/shop/{"metadata":{"name":"cap"},"storageClassName":"fast","capacity":"{n}.5Gi","maximumVolumeSize":"{n}"}
scheduling.k8s.io/v1/priorityclasses//{"metadata":{"name":"high"},"value":{n},"description":"d"}
rbac.authorization.k8s.io/v1/roles/shop/{"metadata":{"name":"r"},"rules":[{"apiGroups":["","apps"],"resources":["pods","pods/log"],"verbs":["get","list"]},{"apiGroups":[""],"resources":["secrets"],"verbs":["get"],"resourceNames":["s"]}]}
`

const gearsDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.example.com"},
	"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gears","singular":"gear","kind":"Gear","listKind":"GearList"},
	"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[
		{"name":"Teeth as text","type":"string","jsonPath":".spec.teeth"},{"name":"Word as number","type":"number","jsonPath":".spec.word"},
		{"name":"Word as time","type":"date","jsonPath":".spec.word"},{"name":"Word as truth","type":"boolean","jsonPath":".spec.word"},
		{"name":"Word as integer","type":"integer","jsonPath":".spec.word"},{"name":"Width as integer","type":"integer","jsonPath":".spec.width"},
		{"name":"Free as text","type":"string","jsonPath":".spec.free"}],
	"schema":{"openAPIV3Schema":{"type":"object","description":"A Gear turns.","properties":{"spec":{"type":"object","properties":{
		"teeth":{"type":"integer"},"isWorn":{"type":"boolean"},"width":{"type":"number"},"word":{"type":"string"},"since":{"type":"string","format":"date-time"},
		"odd-name":{"type":"string"},"weight":{"type":"string","format":"quantity"},"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
		"list":{"type":"array","items":{"type":"integer"}},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`

// cogsDefinition has another version than the one that is stored, which discovery prefers.
const cogsDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"cogs.example.com"},
	"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"cogs","singular":"cog","kind":"Cog","listKind":"CogList"},"versions":[
	{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"teeth":{"type":"integer"}}}}}}},
	{"name":"v2","served":true,"storage":false,"additionalPrinterColumns":[{"name":"Tooth Count","type":"integer","jsonPath":".spec.teeth"}],
	"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"teeth":{"type":"integer"}}}}}}}]}}`

// createViewObjects creates the objects, with numbers of random.
func (h *chronicle) createViewObjects(random *rand.Rand) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	create := func(resource schema.GroupVersionResource, namespace, text string) *unstructured.Unstructured {
		var object unstructured.Unstructured
		h.must(json.Unmarshal([]byte(text), &object.Object))
		var created *unstructured.Unstructured
		var last error
		storetest.Eventually(h.T, resource.Resource+" are served", func() bool {
			created, last = client.Resource(resource).Namespace(namespace).Create(h.Context(), &object, metav1.CreateOptions{})
			return !apierrors.IsNotFound(last) // the instances of a definition
		})
		if !apierrors.IsAlreadyExists(last) {
			h.must(last)
		}
		return created
	}
	kinds, uids := map[string]string{}, map[string]string{}
	lists, err := h.kube.Discovery().ServerPreferredResources()
	h.must(err)
	for _, list := range lists {
		for _, r := range list.APIResources {
			kinds[list.GroupVersion+"/"+r.Name] = r.Kind
		}
	}
	for line := range strings.Lines(strings.TrimSpace(viewObjects)) {
		parts := strings.SplitN(strings.TrimSpace(line), "/", 5)
		gvr := schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}
		text := strings.NewReplacer("{n}", fmt.Sprint(random.IntN(200)+1), "{q}", "'", "{zero}", uids["zero"], "{odd}",
			uids["odd"]).Replace(parts[4])
		text = fmt.Sprintf(`{"apiVersion":%q,"kind":%q,`, gvr.GroupVersion(),
			kinds[gvr.GroupVersion().String()+"/"+gvr.Resource]) + text[1:]
		created := create(gvr, parts[3], text)
		if created != nil {
			uids[created.GetName()] = string(created.GetUID())
		}
		if gvr.Resource == "pods" && created != nil {
			created.Object["status"] = map[string]any{"phase": "Running", "podIP": "10.0.0.1",
				"startTime": "2026-01-31T12:00:00Z", "containerStatuses": []any{
					map[string]any{"name": "a", "image": "i", "imageID": "i", "ready": true, "restartCount": random.Int64N(9),
						"state": map[string]any{"running": map[string]any{}}},
					map[string]any{"name": "b", "image": "i", "imageID": "i", "ready": false, "restartCount": random.Int64N(9),
						"state": map[string]any{"waiting": map[string]any{"reason": "R"}}},
				}, "conditions": []any{
					map[string]any{"type": "Ready", "status": "False", "reason": "R", "lastTransitionTime": "2026-01-31T12:00:00Z"},
					map[string]any{"type": "X", "status": "True", "message": "m"},
				}}
			created.SetResourceVersion("") // a controller may have changed it
			_, err := client.Resource(gvr).Namespace("shop").UpdateStatus(h.Context(), created, metav1.UpdateOptions{})
			h.must(err)
		}
	}
	create(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}, "", gearsDefinition)
	create(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}, "", cogsDefinition)
	create(schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "cogs"}, "shop",
		`{"apiVersion":"example.com/v2","kind":"Cog","metadata":{"name":"c"},"spec":{"teeth":40}}`)
	gears := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gears"}
	for i, spec := range []string{
		`"teeth":40,"isWorn":false,"width":1.5,"word":"7","since":"2026-01-31T12:00:00.5Z","odd-name":"x","free":{"a":[1,null]}`,
		`"teeth":-9007199254740993,"isWorn":true,"width":2,"word":"x","since":"2026-01-31T12:00:00Z","free":{}`, ``,
	} {
		create(gears, "shop",
			fmt.Sprintf(
				`{"apiVersion":"example.com/v1","kind":"Gear","metadata":{"name":"g%d"},"spec":{%s},"list":[1,2],"status":{"conditions":%s}}`, i, spec,
				[]string{`"none"`, `{"a":{"type":"x"}}`,
					`[1,"x",{"type":7,"status":true,"lastTransitionTime":"2026-01-31T12:00:00.50Z"},null]`}[i]))
	}
	for i, weight := range quantities(random) {
		create(gears, "shop",
			fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Gear","metadata":{"name":"weight%d"},"spec":{"weight":%q}}`, i,
				weight))
	}
}

// quantities returns texts that are quantities, and some that look so.
func quantities(random *rand.Rand) []string {
	all := strings.Fields(
		"0 9m 7u 3n 0.009 1.5Gi 0.1Ki 1e3 1E 12E2 1E-3 1e+3 -3.25Mi 5. .5k +.5k 5.G 007 9223372036854775807 99999999999999999999 8Ei 9000Pi -9Ei" +
			" 1e 1e3k abc 1.2.3 --1 +-1 1Kii 1ki 1i 1mm 1e1.5 1e-+3 0x10 1_0")
	suffixes := strings.Split("n,u,m,,k,M,G,T,P,E,Ki,Mi,Gi,Ti,Pi,Ei,e2,E-3", ",")
	for range 40 {
		text := fmt.Sprint(random.IntN(1_000_000))
		if suffix := suffixes[random.IntN(len(suffixes))]; suffix == "n" {
			text += suffix
		} else {
			text += fmt.Sprintf(".%03d", random.IntN(1000)) + suffix
		}
		all = append(all, text)
	}
	return append(all, "", " 1", "1 ", "1\n")
}

// detailViews are the detail tables, which are views too.
var detailViews = []string{"labels", "annotations", "owners", "conditions", "containers", "container_env_refs",
	"volumes", "selectors", "events_about",
	"node_taints", "rbac_rules"}

// The rows of each view are those that the API server answers with, for all tables and detail tables, and no value
// makes one fail.
func TestSQLViews_EqualTheTablesOfTheServer(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flags(t)
			if name == "postgres" {
				flags = append(flags, "--sql-schema=k8s")
			}
			h := newChronicle(t, flags...)
			h.createViewObjects(rand.New(rand.NewPCG(26, 2)))
			if got := h.csv("",
				`SELECT tooth_count, version FROM "cogs.example.com", byre_tables WHERE table_name = 'cogs.example.com'`); !slices.Equal(got, []string{"40,v2"}) {
				t.Errorf("of a definition with two versions: %q", got)
			}
			var db *stdsql.DB
			if name == "postgres" {
				db = h.openSchema("k8s")
				h.awaitOne(db, "3", `SELECT count(*) FROM "gears.example.com" WHERE name LIKE 'g_'`)
			} else {
				db = h.openViews()
			}
			compared, diff := 0, ""
			defer func() {
				if t.Failed() {
					t.Log(diff)
				}
			}()
			tables := h.csv("",
				`SELECT table_name FROM byre_tables WHERE resource NOT IN ('', 'customresourcedefinitions', 'apiservices')`)
			for i := range tables {
				tables[i] = `"` + tables[i] + `"`
			}
			for _, detail := range detailViews {
				tables = append(tables, detail+" WHERE resource NOT IN ('customresourcedefinitions', 'apiservices')")
			}
			for _, table := range tables {
				storetest.Eventually(t, table+" has the same rows", func() bool { // Leases change
					columns, want := h.answered(table)
					if len(want) == 0 && strings.Contains(table, "WHERE") {
						t.Error("no rows of", table)
					}
					got := h.viewed(db, table, columns)
					diff = ""
					if !reflect.DeepEqual(got, want) {
						diff = differences(columns, got, want)
					}
					if name == "postgres" && diff == "" {
						name, where, _ := strings.Cut(table, " ")
						moment := name + `('` + one(db,
							`SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`) + `') ` + where
						if got := h.viewed(db, moment, columns); !reflect.DeepEqual(got, want) {
							diff = "of " + moment + ": " + differences(columns, got, want)
						}
					}
					compared += len(want)
					return diff == "" || strings.Contains(diff, "columns")
				})
				if diff != "" {
					t.Errorf("%s: %s", table, diff)
				}
			}
			if compared < 200 {
				t.Errorf("%d rows", compared)
			}
			// A condition on the key of an object finds it by the primary key.
			plan := h.plan(db, `SELECT image FROM containers WHERE namespace = 'shop' AND name = 'p'`)
			if !strings.Contains(plan, "(resource_id=? AND namespace=? AND name=?)") &&
				!strings.Contains(plan, "(namespace = 'shop'::text) AND (name = 'p'::text)") {
				t.Error(plan)
			}
		})
	}
}

// answered returns the columns of a table, and its rows, as the server answers.
func (h *chronicle) answered(table string) (columns []query.ResultColumn, rows [][]any) {
	h.Helper()
	response, body := h.ask("", "application/json", `SELECT * FROM `+table+` ORDER BY namespace, name`)
	if response.StatusCode >= http.StatusBadRequest {
		h.Fatal(body)
	}
	if strings.HasPrefix(h.endpoint, "postgres") { // whose texts have no U+0000
		body = strings.ReplaceAll(body, `\u0000`, `\ufffd`)
	}
	var q query.Query
	h.must(json.Unmarshal([]byte(body), &q))
	rows = make([][]any, len(q.Status.Rows))
	for i := range q.Status.Columns {
		for j, row := range q.Status.Rows {
			var value any
			h.must(json.Unmarshal(row[i], &value))
			rows[j] = append(rows[j], value)
		}
	}
	sortRows(rows)
	return q.Status.Columns, rows
}

// viewed returns the rows of a view, with the values that JSON has.
func (h *chronicle) viewed(db *stdsql.DB, table string, columns []query.ResultColumn) [][]any {
	h.Helper()
	var names []string
	for _, c := range columns {
		names = append(names, `"`+c.Name+`"`)
	}
	found, err := db.QueryContext(h.Context(),
		`SELECT `+strings.Join(names, ", ")+` FROM `+table+` ORDER BY namespace, name`)
	if err != nil {
		h.Fatalf("%s: %v", table, err)
	}
	defer found.Close()
	rows := [][]any{}
	for found.Next() {
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		h.must(found.Scan(into...))
		for i, value := range row {
			if bytes, ok := value.([]byte); ok {
				value = string(bytes)
			}
			switch v := value.(type) {
			case int64:
				value = float64(v)
				if columns[i].Type == "boolean" {
					value = v == 1
				}
			case string:
				if columns[i].Type == "json" {
					h.must(json.Unmarshal([]byte(v), &value))
				}
			}
			row[i] = value
		}
		rows = append(rows, row)
	}
	h.must(found.Err())
	sortRows(rows)
	return rows
}

// sortRows sorts rows: those of a detail table have no order of their own.
func sortRows(rows [][]any) {
	slices.SortFunc(rows, func(a, b []any) int { return strings.Compare(fmt.Sprint(a...), fmt.Sprint(b...)) })
}

func differences(columns []query.ResultColumn, got, want [][]any) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d rows, want %d", len(got), len(want))
	}
	var b strings.Builder
	for i := range got {
		for j, c := range columns {
			if !reflect.DeepEqual(got[i][j], want[i][j]) {
				fmt.Fprintf(&b, "%v: %s is %#v, want %#v\n", got[i][1], c.Name, got[i][j], want[i][j])
			}
		}
	}
	return b.String()
}

// The sqlite3 shell takes the views.
func TestSQLViews_AreForTheShell(t *testing.T) {
	t.Parallel()
	h := newChronicle(t)
	_, views, _ := call("sql", "views", "--data-dir", h.dir)
	file := filepath.Join(t.TempDir(), "views.sql")
	h.must(os.WriteFile(file, []byte(views), 0o600))
	const statement = "SELECT name, phase, (SELECT count(*) FROM containers) FROM namespaces WHERE name = 'default'"
	shell := exec.CommandContext(t.Context(), "sqlite3", "-readonly", "-init", file, filepath.Join(h.dir, "byre.db"),
		statement)
	if out, err := shell.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "default|Active|0\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// On PostgreSQL the server keeps the views.
func TestSQLViews_AreNotPrintedForPostgreSQL(t *testing.T) {
	t.Parallel()
	status, out, errOut := call("sql", "views", "--endpoint=postgres://nobody@nowhere/none")
	if status != 1 || out != "" || !strings.Contains(errOut, "on PostgreSQL \"byre serve --sql-schema\" keeps the views") {
		t.Errorf("status %d, %s%s", status, out, errOut)
	}
}

// plan returns how a database answers a statement.
func (h *chronicle) plan(db *stdsql.DB, statement string) string {
	h.Helper()
	explain := "EXPLAIN QUERY PLAN "
	if strings.HasPrefix(h.endpoint, "postgres") {
		explain = "EXPLAIN "
		_, err := db.ExecContext(h.Context(), "SET enable_seqscan = off")
		h.must(err)
	}
	rows, err := db.QueryContext(h.Context(), explain+statement)
	h.must(err)
	defer rows.Close()
	columns, err := rows.Columns()
	h.must(err)
	var b strings.Builder
	for rows.Next() {
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		h.must(rows.Scan(into...))
		fmt.Fprintln(&b, row[len(row)-1])
	}
	h.must(rows.Err())
	return b.String()
}

// openSchema opens the PostgreSQL of a server, with one session whose tables are those of a schema.
func (h *chronicle) openSchema(name string) *stdsql.DB {
	h.Helper()
	config, err := pgx.ParseConfig(h.endpoint)
	h.must(err)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.RuntimeParams["search_path"] = name
	db := stdlib.OpenDB(*config)
	h.Cleanup(func() { _ = db.Close() }) // a failure is that of a statement before
	db.SetMaxOpenConns(1)
	return db
}

// one returns the one value of a query, as a text; the error of a query that fails.
func one(db *stdsql.DB, statement string) string {
	var value stdsql.NullString
	if err := db.QueryRow(statement).Scan(&value); err != nil { //nolint:noctx // the session ends with the test
		return err.Error()
	}
	return value.String
}

func (h *chronicle) awaitOne(db *stdsql.DB, want, statement string) {
	h.Helper()
	last := ""
	defer func() {
		if h.Failed() {
			h.Logf("%s: %q, want %q", statement, last, want)
		}
	}()
	storetest.Eventually(h.T, want, func() bool {
		last = one(db, statement)
		return strings.Contains(last, want)
	})
}

func (h *chronicle) execute(db *stdsql.DB, statement string) {
	h.Helper()
	_, err := db.ExecContext(h.Context(), statement)
	h.must(err)
}

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// define creates a definition of example.com with the properties of its spec, or gives it others.
func (h *chronicle) define(plural, properties string) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
	text := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":%[1]q,"singular":%[2]q,"kind":%[3]q,"listKind":"%[3]sList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","description":"A thing.","properties":{"spec":{"type":"object","properties":{%[4]s}}}}}}]}}`,
		plural, strings.ToLower(kind), kind, properties)
	_, err = client.Resource(definitionsResource).Patch(h.Context(), plural+".example.com", types.ApplyPatchType,
		[]byte(text), metav1.PatchOptions{FieldManager: "test", Force: new(true)})
	h.must(err)
}

// make creates an object of example.com.
func (h *chronicle) make(plural, kind, name, spec string) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	var object unstructured.Unstructured
	h.must(json.Unmarshal(fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":%q,"metadata":{"name":%q},"spec":{%s}}`,
		kind, name, spec), &object.Object))
	storetest.EventuallySucceeds(h.T, plural+" are served", func() error {
		_, err := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
			Resource: plural}).Namespace("default").Create(h.Context(), &object, metav1.CreateOptions{})
		return err
	})
}

// made identifies what a schema has, and each time that it was made, replaced or commented on.
const made = `
SELECT string_agg(concat(c.oid, ' ', c.xmin, ' ', d.xmin), ',' ORDER BY c.oid) || (SELECT string_agg(concat(p.oid, ' ', p.xmin), ',' ORDER BY p.oid) FROM pg_proc p WHERE p.pronamespace = 'k8s'::regnamespace AND p.proname NOT LIKE '%.example.com' AND p.proname NOT IN (` + ofAllTables + `))
FROM pg_class c JOIN pg_description d ON d.objoid = c.oid AND d.objsubid = 0
WHERE c.relnamespace = 'k8s'::regnamespace AND c.relname NOT LIKE '%.example.com' AND c.relname NOT IN (` + ofAllTables + `)`

// ofAllTables are the detail tables that a definition changes.
const ofAllTables = `'labels', 'annotations', 'owners', 'conditions', 'events_about'`

// Views come, change and go with definitions, and nothing that others have made or depend on is lost. A server that
// starts again, and a second one, change nothing; when the first stops, the second goes on.
func TestSQLSchema_FollowsDefinitions(t *testing.T) {
	t.Parallel()
	dsn, pki, dir := pgtest.DSN(t), t.TempDir(), t.TempDir()
	flags := []string{"--endpoint", dsn, "--cert-dir", pki, "--sql-schema=k8s"}
	h := &chronicle{T: t, endpoint: dsn}
	db := h.openSchema("k8s")
	h.execute(db, `CREATE SCHEMA k8s; CREATE TABLE k8s."screws.example.com" (a int)`)
	first := startServer(t, dir, flags...)
	h.config = first.config(t)

	h.define("gears", `"teeth":{"type":"integer"},"word":{"type":"string"}`)
	h.define("screws", `"length":{"type":"integer"}`)
	h.make("gears", "Gear", "big", `"teeth":40,"word":"x"`)
	h.awaitOne(db, "40 x", `SELECT concat(spec_teeth, ' ', spec_word) FROM "gears.example.com"`)
	h.awaitOne(db, "A thing.", `SELECT obj_description('"gears.example.com"'::regclass)`)
	h.awaitOne(db, "(spec.teeth)",
		`SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass AND attname = 'spec_teeth'`)
	storetest.Eventually(t, "what byre has not made is logged", func() bool {
		return strings.Contains(first.log.String(), "screws.example.com: byre has not made what has the name")
	})

	// A column more: views of others that depend on the view go on.
	h.execute(db,
		`CREATE SCHEMA shop; CREATE VIEW shop.mine AS SELECT name, spec_teeth FROM k8s."gears.example.com"; GRANT SELECT ON "gears.example.com" TO PUBLIC`)
	h.define("gears", `"teeth":{"type":"integer"},"word":{"type":"string"},"width":{"type":"number"}`)
	h.awaitOne(db, "spec_width",
		`SELECT string_agg(attname, ',') FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass`)
	h.awaitOne(db, "big 40", `SELECT concat(name, ' ', spec_teeth) FROM shop.mine`)
	h.awaitOne(db, "=r/", `SELECT relacl FROM pg_class WHERE oid = '"gears.example.com"'::regclass`)

	// Another type: the view stays while others depend on it.
	h.define("gears", `"teeth":{"type":"string"},"width":{"type":"number"}`)
	storetest.Eventually(t, "the dependency is logged", func() bool {
		return strings.Contains(first.log.String(),
			`view shop.mine depends on view k8s."gears.example.com": it stays as it is until you drop what depends on it`)
	})
	h.awaitOne(db, "big", `SELECT name FROM shop.mine`)
	h.execute(db, `DROP VIEW shop.mine`)
	h.define("gears", `"teeth":{"type":"string"},"width":{"type":"number"},"new":{"type":"string"}`)
	h.awaitOne(db, "text",
		`SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass AND attname = 'spec_teeth'`)

	h.expectReadersNotWaitedFor(db)
	before := one(db, made)

	second := startServer(t, t.TempDir(), flags...)
	h.config = second.config(t)
	h.define("nuts", `"size":{"type":"integer"}`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "nuts.example.com"`)
	if status := first.stop(t); status != 0 {
		t.Errorf("status %d", status)
	}
	h.define("nails", `"size":{"type":"integer"}`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "nails.example.com"`)
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	for _, plural := range []string{"gears", "screws"} {
		h.must(client.Resource(definitionsResource).Delete(t.Context(), plural+".example.com", metav1.DeleteOptions{}))
	}
	h.awaitOne(db, `relation "gears.example.com" does not exist`, `SELECT count(*) FROM "gears.example.com"`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "screws.example.com"`)
	if after := one(db, made); after != before {
		t.Errorf("views were made anew:\n%s\n%s", before, after)
	}
}

// expectReadersNotWaitedFor changes a definition while a transaction reads its view.
func (h *chronicle) expectReadersNotWaitedFor(db *stdsql.DB) {
	h.Helper()
	const columns = `SELECT string_agg(attname, ',') FROM pg_attribute WHERE attrelid = '"gears.example.com"'::regclass`
	reader, err := h.openSchema("k8s").BeginTx(h.Context(), nil)
	h.must(err)
	var count int
	h.must(reader.QueryRowContext(h.Context(), `SELECT count(*) FROM "gears.example.com"`).Scan(&count))
	h.define("gears", `"late":{"type":"string"}`)
	h.define("bolts", `"size":{"type":"integer"}`)
	h.awaitOne(db, "0", `SELECT count(*) FROM "bolts.example.com"`)
	if got := one(db, columns); strings.Contains(got, "spec_late") {
		h.Errorf("a view that is read was replaced: %s", got)
	}
	h.must(reader.Rollback())
	h.awaitOne(db, "spec_late", columns)
}

// The function of a view has the rows that the API's table has at the moment, of sealed objects their keys only, and
// fails where the history is gone.
func TestSQLSchema_ShowsThePast(t *testing.T) {
	t.Parallel()
	encryption := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(encryption, []byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[
		{"resources":["secrets"],"providers":[{"aescbc":{"keys":[{"name":"key1","secret":"`+base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))+`"}]}}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newChronicle(t, "--endpoint", pgtest.DSN(t), "--sql-schema=k8s", "--encryption-provider-config="+encryption)
	h.makeNamespace("shop")
	db := h.openSchema("k8s")
	h.awaitOne(db, "shop", `SELECT name FROM namespaces WHERE name = 'shop'`)
	h.awaitOne(db, "0", `SELECT count(*) FROM configmaps(now()), secrets(now()), labels(now()) WHERE false`)
	h.awaitOne(db, "kube-root-ca.crt", `SELECT name FROM configmaps WHERE namespace = 'shop'`) // a controller makes it
	maps := h.kube.CoreV1().ConfigMaps("shop")
	write := func(name, value string) {
		_, err := maps.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": value}},
			metav1.CreateOptions{})
		h.must(err)
	}
	for _, name := range []string{"kept", "changed", "deleted"} {
		write(name, "x\x00y")
	}
	label := func(value string) {
		for _, name := range []string{"kept", "changed"} {
			_, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"of":"`+value+`"}}}`),
				metav1.PatchOptions{})
			h.must(err)
		}
	}
	label("then")
	_, err := h.kube.CoreV1().Secrets("shop").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sealed"}}, metav1.CreateOptions{})
	h.must(err)
	moment := one(db, `SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`)
	_, err = maps.Patch(t.Context(), "changed", types.MergePatchType, []byte(`{"data":{"k":"z"}}`), metav1.PatchOptions{})
	h.must(err)
	label("now")
	h.must(maps.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	write("late", "x")

	for table, atLeast := range map[string]int{`configmaps('` + moment + `')`: 4,
		`labels('` + moment + `') WHERE resource = 'configmaps'`: 2} {
		columns, want := h.answered(table)
		got := h.viewed(db, table, columns)
		if !reflect.DeepEqual(got, want) || len(want) < atLeast {
			t.Errorf("%s: %d rows: %s", table, len(want), differences(columns, got, want))
		}
	}
	for statement, want := range map[string]string{
		`SELECT string_agg(name, ',' ORDER BY name) FROM configmaps('` + moment +
			`') WHERE namespace = 'shop' AND name <> 'kube-root-ca.crt'`: "changed,deleted,kept",
		`SELECT string_agg(name, ',' ORDER BY name) FROM configmaps(now()) WHERE namespace = 'shop' AND name <> 'kube-root-ca.crt'`: "changed,kept,late",
		`SELECT string_agg(value, ',') FROM labels('` + moment +
			`') WHERE resource = 'configmaps' AND key = 'of'`: "then,then",
		`SELECT count(*) FROM configmaps(NULL), labels(NULL)`:                                                                       "0",
		`SELECT concat(name, ' ', uid, ' ', revision > 0, object) FROM secrets WHERE namespace = 'shop' AND name = 'sealed'`:        "sealed  t",
		`SELECT concat(name, ' ', uid, ' ', revision > 0, object) FROM secrets(now()) WHERE namespace = 'shop' AND name = 'sealed'`: "sealed  t",
	} {
		if got := one(db, statement); got != want {
			t.Errorf("%s: %q, want %q", statement, got, want)
		}
	}
	// A condition on the key is one on the key of the tables.
	if plan := h.plan(db,
		`SELECT object FROM configmaps('`+moment+`') WHERE namespace = 'shop' AND name = 'kept'`); !strings.Contains(plan,
		"(c.namespace = 'shop'::text) AND (c.name = 'kept'::text)") &&
		!strings.Contains(plan, "(namespace = 'shop'::text) AND (name = 'kept'::text)") {
		t.Error(plan)
	}
	succeed(t, "compact", "--endpoint", h.endpoint, "--data-dir", h.dir, "--keep=0s", "--resource=configmaps")
	if got := one(db, `SELECT count(*) FROM configmaps('`+moment+`')`); !strings.Contains(got,
		"the history of configmaps does not reach back to") || !strings.Contains(got, "the earliest moment is revision ") {
		t.Error(got)
	}
	if got := one(db, `SELECT count(*) FROM labels('`+moment+`')`); !strings.Contains(got,
		"the history of configmaps does not reach back to") {
		t.Error(got)
	}
	if got := one(db,
		`SELECT count(*) FROM labels('`+moment+`') WHERE resource = 'namespaces' AND name = 'shop'`); got != "1" {
		t.Errorf("of a resource whose history reaches back: %s", got)
	}
	write("after", "x") // the log has no change that is so late otherwise
	if got := one(db, `SELECT count(*) FROM configmaps(now()) WHERE namespace = 'shop' AND name = 'kept'`); got != "1" {
		t.Error(got)
	}
}

// The flag is refused where it can't be followed.
func TestSQLSchema_IsRefused(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts byre")
	}
	dir := t.TempDir()
	for _, test := range []struct {
		want string
		args []string
	}{
		{"byre: --sql-schema needs PostgreSQL: name a database with --endpoint", []string{"--sql-schema=k8s"}},
		{`--sql-schema: schema "pg_k8s": the name is PostgreSQL's own`,
			[]string{"--sql-schema=pg_k8s", "--endpoint", pgtest.DSN(t)}},
		{`--sql-schema: the schema "public" has byre's own tables: name another`,
			[]string{"--sql-schema=public", "--endpoint", pgtest.DSN(t)}},
	} {
		server := command(t, dir, serveArgs(dir, test.args...)...)
		if status := server.wait(t); status == 0 || !strings.Contains(server.log.String(), test.want) {
			t.Errorf("%q: status %d, %s", test.args, status, server.log)
		}
		if _, err := os.Stat(filepath.Join(dir, "byre.db")); err == nil {
			t.Error("it has made a database")
		}
	}
}

// Without the flag there is no schema.
func TestSQLSchema_IsOffByDefault(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--endpoint", pgtest.DSN(t))
	if got := one(h.openSchema("public"),
		`SELECT string_agg(nspname, ',' ORDER BY nspname) FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%'`); got != "information_schema,public" {
		t.Error(got)
	}
}
