package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/storetest"
)

// assaults are statements that take all time, memory or disk they can get, or reach for what is not a table.
var assaults = []string{
	"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
	"WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r) SELECT count(*) FROM r",
	"SELECT count(*) FROM clusterroles a, clusterroles b, clusterroles c, clusterroles d, clusterroles e, clusterroles f",
	"SELECT group_concat(a.object || b.object || c.object) FROM clusterroles a, clusterroles b, clusterroles c",
	"SELECT a.name FROM clusterroles a, clusterroles b, clusterroles c, clusterroles d ORDER BY random()",
	"SELECT count(DISTINCT a.object || b.object || c.name) FROM clusterroles a, clusterroles b, clusterroles c",
	"SELECT hex(hex(hex(hex(zeroblob(4000000)))))",
	"SELECT printf('%.*c', 2000000000, 'x')",
	"SELECT replace(printf('%.*c', 10000000, 'x'), 'x', 'yyyyyyyyyyyyyyyyyyyyyy')",
	"SELECT count(*) FROM changes a, changes b, field_changes c, changes d, changes e",
	"SELECT count(*) FROM clusterroles a JOIN clusterroles b ON a.object LIKE '%' || b.object || '%_%_%_%' JOIN clusterroles c JOIN clusterroles d",
	"SELECT " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000),
	"SELECT 1" + strings.Repeat(" UNION ALL SELECT 1", 4000),
	"PRAGMA temp_store = FILE", "PRAGMA max_page_count = 1", "SELECT * FROM pragma_database_list",
	"ATTACH 'other.db' AS other", "VACUUM INTO 'other.db'", "CREATE TABLE t (a)", "CREATE TEMP TABLE t (a)", "BEGIN",
	"DELETE FROM pods", "UPDATE pods SET name = 'x'", "SELECT load_extension('libc.so.6')",
	"SELECT readfile('/etc/passwd')",
	"SELECT writefile('other', 'x')", "SELECT randomblob(1000)", "SELECT 1; SELECT 2",
}

// Hostile statements get an error each. Requests beside them are answered, and the server's memory, files and
// goroutines stay bounded.
func TestSQL_HoldsBesideHostileQueries(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		t.Parallel()
		dir := t.TempDir()
		server := startServer(t, dir,
			append(flags, "--controllers=", "--sql-timeout=300ms", "--sql-memory=16Mi", "--sql-concurrency=2")...)
		h := &chronicle{T: t, config: server.config(t)}
		h.config.QPS = -1
		h.kube = kubernetes.NewForConfigOrDie(h.config)
		// what only the first query needs is made
		h.ask("", "application/json", "SELECT count(*) FROM clusterroles a, changes b")
		goroutines, memory := h.goroutines(), statusBytes(t, server, "VmHWM:")

		ctx, cancel := context.WithCancel(t.Context())
		var load, attack sync.WaitGroup
		load.Go(func() { h.loadWith(ctx) })
		for range 3 {
			attack.Go(func() {
				for _, statement := range assaults {
					response, body := h.ask("", "application/json", statement)
					switch response.StatusCode {
					case http.StatusBadRequest, http.StatusForbidden, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
						http.StatusTooManyRequests:
					default:
						t.Errorf("%.100s: %d %.200s", statement, response.StatusCode, body)
					}
					expectFilesIn(t, server, dir)
				}
			})
		}
		attack.Wait()
		cancel()
		load.Wait()
		server.mustRun(t)
		if grown := statusBytes(t, server, "VmHWM:") - memory; grown > 256<<20 {
			t.Errorf("the peak of memory has grown by %d MB", grown>>20)
		}
		storetest.Eventually(t, "the goroutines of queries end", func() bool {
			return h.goroutines() < goroutines+len(assaults)
		})
		storetest.Eventually(t, "a query is answered", func() bool {
			response, _ := h.ask("", "application/json", "SELECT count(*) FROM pods")
			return response.StatusCode == http.StatusCreated || response.StatusCode == http.StatusOK
		})
	})
}

// loadWith writes an object, and reads it, until ctx ends; each request must be answered.
func (h *chronicle) loadWith(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		value := strconv.Itoa(i)
		h.write("default", "load", value)
		object, err := h.kube.CoreV1().ConfigMaps("default").Get(h.Context(), "load", metav1.GetOptions{})
		if err != nil || object.Data["key"] != value {
			h.Errorf("beside queries: %v, %v", object.Data, err)
			return
		}
	}
}

// goroutines returns how many the server has.
func (h *chronicle) goroutines() (n int) {
	h.Helper()
	_, metrics := h.as("", "/metrics", "text/plain")
	_, after, _ := strings.Cut(metrics, "\ngo_goroutines ")
	if _, err := fmt.Sscan(after, &n); err != nil {
		h.Error(err)
	}
	return n
}

// expectFilesIn expects each file that a server has open to be in a directory, or to be its program.
func expectFilesIn(t *testing.T, p *serverProcess, dir string) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	if err != nil || len(links) == 0 {
		t.Error("no open file", err)
	}
	for _, link := range links {
		file, err := os.Readlink(link)
		if err != nil || !filepath.IsAbs(file) || strings.HasPrefix(file, "/dev/") || strings.HasPrefix(file, "/proc/") ||
			strings.HasPrefix(file, "/sys/") {
			continue // closed meanwhile, or no file
		}
		if !strings.HasPrefix(file, dir) {
			t.Errorf("%s is open", file)
		}
	}
}

// Two tables of a query show one revision, which is not older than the query, on each replica: of two objects that are
// written in turns, the second is never ahead of the first, nor more than a write behind.
func TestSQL_TablesAreNotTorn(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		t.Parallel()
		h := newChronicle(t, flags...)
		servers := []*chronicle{h}
		if other := h.replica(); other != nil {
			servers = append(servers, other)
		}
		secrets, maps := h.kube.CoreV1().Secrets("default"), h.kube.CoreV1().ConfigMaps("default")
		meta := func(i int) metav1.ObjectMeta {
			return metav1.ObjectMeta{Name: "pair", Annotations: map[string]string{"n": strconv.Itoa(i)}}
		}
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta(0)}, metav1.CreateOptions{})
		h.must(err)
		_, err = secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: meta(0)}, metav1.CreateOptions{})
		h.must(err)
		written := make(chan int, 1) // the last pair that is acknowledged
		written <- 0
		ctx, cancel := context.WithCancel(t.Context())
		var writing, asking sync.WaitGroup
		writing.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				_, err := maps.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: meta(i)}, metav1.UpdateOptions{})
				if err == nil {
					_, err = secrets.Update(t.Context(), &corev1.Secret{ObjectMeta: meta(i)}, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Error(err)
					return
				}
				<-written
				written <- i
			}
		})
		const statement = "SELECT c.annotations ->> 'n', s.annotations ->> 'n' FROM configmaps c JOIN secrets s USING (namespace, name) WHERE name = 'pair'"
		for _, server := range servers {
			asking.Go(func() {
				for range 200 {
					least := <-written
					written <- least
					var first, second int
					rows := server.csv("", statement)
					if _, err := fmt.Sscanf(rows[0], "%d,%d", &first, &second); err != nil || len(rows) != 1 {
						t.Errorf("%q: %v", rows, err)
						return
					}
					if second < least || first < second || first > second+1 {
						t.Errorf("the pair is %d, %d; %d was acknowledged before", first, second, least)
					}
				}
			})
		}
		asking.Wait()
		cancel()
		writing.Wait()
	})
}
