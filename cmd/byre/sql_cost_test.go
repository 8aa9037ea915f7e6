package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/query"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
)

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
				"SELECT count(*) FROM pods", "SELECT node, count(*) FROM pods GROUP BY node", "SELECT count(*) FROM pods(%[1]d)", "SELECT node, count(*) FROM pods(%[1]d) GROUP BY node",
				"SELECT count(*) FROM pods('-0s')", "SELECT count(*) FROM pods(%[1]d) WHERE namespace = 'ns-7'", "SELECT node FROM pods(%[1]d) WHERE namespace = 'ns-7' AND name = 'pod-7'",
				"SELECT count(*) FROM pods now JOIN pods(%[1]d) was ON was.namespace = now.namespace AND was.name = now.name WHERE was.node <> now.node",
				"SELECT count(*) FROM pods_history", "SELECT node, who FROM pods_history WHERE namespace = 'ns-7' AND name = 'pod-7'",
				"SELECT count(*) FROM changes", "SELECT count(*) FROM changes WHERE resource = 'pods' AND namespace = 'ns-7'", "SELECT path, count(*) FROM field_changes GROUP BY path",
			} {
				if strings.Contains(statement, "%") {
					statement = fmt.Sprintf(statement, at)
				}
				began := time.Now()
				response, body := h.ask("", query.CSV, statement)
				t.Logf("%s: %s: %v: %d %.80q", name, statement, time.Since(began).Round(time.Millisecond), response.StatusCode, body)
			}
		})
	}
}

// TestSQLViews_Cost tells how long the views of edges take, for who owns the database, with BYRE_VIEWS_COST Pods of 3 KB and ten
// Services, of 1,000 Pods each, in each of ten namespaces.
func TestSQLViews_Cost(t *testing.T) {
	pods, err := strconv.Atoi(os.Getenv("BYRE_VIEWS_COST"))
	if err != nil {
		t.Skip("BYRE_VIEWS_COST is not a number of Pods")
	}
	statements := []string{
		"SELECT count(*) FROM containers", "SELECT count(*) FROM (SELECT image, sum(cpu_request) FROM containers GROUP BY image) g", "SELECT count(*) FROM containers WHERE namespace = 'ns-7'",
		"SELECT image FROM containers WHERE namespace = 'ns-7' AND name = 'pod-7'", "SELECT count(*) FROM labels", "SELECT count(*) FROM labels WHERE key = 'app' AND value = 'web-7'",
		"SELECT count(*) FROM labels WHERE resource = 'services'", "SELECT count(*) FROM selectors", "SELECT count(*) FROM selectors WHERE namespace = 'ns-7'",
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
				for _, edge := range []string{"containers", "labels", "selectors"} {
					of = append(slices.Clone(of), "SELECT count(*) FROM "+edge+"(now())", "SELECT count(*) FROM "+edge+"(now()) WHERE namespace = 'ns-7'")
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
					Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"app": fmt.Sprintf("web-%d", i/10)}},
				}, metav1.CreateOptions{})
				h.must(err)
			}
			db := h.open("sql", "views")
			if name == "postgres" {
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
				_, err := kube.CoreV1().Pods(fmt.Sprintf("ns-%d", n%100)).Get(h.Context(), fmt.Sprintf("pod-%d", n), metav1.GetOptions{})
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
			text := fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u-%s","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web-%d"}},"spec":{"containers":[{"name":"c","image":"example.org/web:1","env":[%s{"name":"LAST","value":""}]}],"nodeName":%q,"priority":7},"status":{"phase":"Running","podIP":"10.0.0.1"}}`,
				name, namespace, name, i%100, padding, node)
			batch = append(batch, sqlstore.Write{
				Op: op, Key: sqlstore.Key{Namespace: namespace, Resource: "pods", Name: name}, Value: []byte(text), UID: "u-" + name, Encoding: like.Encoding,
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
