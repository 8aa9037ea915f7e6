package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/sqlstore"
)

// A query that has run out of memory, or of time, gives back what it has taken.
func TestLimits_MemoryIsGivenBack(t *testing.T) {
	f := newFixture(t)
	for i := range 50 {
		f.pod("a", fmt.Sprint("p", i), "n")
	}
	f.config.Memory = 32 << 20
	bomb := "WITH RECURSIVE r(n, s) AS (SELECT 1, zeroblob(100000) UNION ALL SELECT n + 1, zeroblob(100000) FROM r) SELECT count(DISTINCT s || n) FROM r"
	statements := []string{bomb, "SELECT group_concat(hex(zeroblob(3000000))) FROM pods", "SELECT 1; " + bomb, "SELECT x",
		"SELECT zeroblob(20000000)"}
	// These overflow the stack of SQLite, the second while it is prepared.
	nested := []string{
		"SELECT length(hex(zeroblob(7000000))), json_set('{}', '$" + strings.Repeat(".a", 900) + "', 1)",
		strings.Repeat("SELECT count(*) FROM (", 400) + "SELECT 1" + strings.Repeat(")", 400),
	}
	for _, sql := range nested {
		_, err := f.ask("admin", sql)
		if got, message := code(err); got != 400 || !strings.Contains(message, "nested too deeply") {
			t.Errorf("%.80s: %d %s", sql, got, message)
		}
	}
	statements = append(statements, nested...)
	f.config.Timeout = 5 * time.Second
	mappings := mappingsOf(t)
	before := residentBytes(t)
	for range 20 {
		for _, sql := range statements {
			if _, err := f.ask("admin", sql); err == nil {
				t.Errorf("%s was answered", sql)
			}
		}
	}
	if after := residentBytes(t); after > before+10*f.config.Memory {
		t.Errorf("the process takes %d MiB, and %d before", after>>20, before>>20)
	}
	if more := mappingsOf(t) - mappings; more > 20 {
		t.Errorf("the process has %d more mappings of memory", more)
	}
}

// What a short statement multiplies is bounded too: one text in many columns, what many cursors keep, the fields of
// one change, and the escapes of an answer.
func TestLimits_HoldForWhatAStatementMultiplies(t *testing.T) {
	f := newFixture(t)
	f.config.Memory = 16 << 20
	object := func(element string) []byte {
		return []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"big","namespace":"a"},"data":[` +
			strings.Repeat(element+",", 300_000) + element + "]}")
	}
	w := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "configmaps", Namespace: "a", Name: "big"},
		UID: "u-big", Value: object("1")}
	made, err := f.store.Commit(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	w.Op, w.Replaces, w.Value = sqlstore.Update, made.Revision, object("2")
	if _, err := f.store.Commit(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	columns := func(column string) string { return "SELECT " + strings.Repeat(column+", ", 1999) + column }
	text := []json.RawMessage{json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)}
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "admin"})
	for _, q := range []Spec{
		{SQL: columns("?1"), Parameters: text},
		{SQL: columns("(SELECT 1 FROM changes WHERE after > '' LIMIT 1)")},
		{SQL: "SELECT count(*) FROM field_changes WHERE name = 'big'"},
		{SQL: "SELECT printf('%.*c', 4000000, char(1))"},
	} {
		for what, run := range map[string]func() error{
			"kept": func() error {
				_, err := f.Create(ctx, &Query{Spec: q}, func(context.Context, k8sruntime.Object) error { return nil }, nil)
				return err
			},
			"streamed": func() error { return f.run(ctx, &q, mostStreamed, newStream(httptest.NewRecorder(), NDJSON)) },
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := run()
			runtime.ReadMemStats(&after)
			if got, message := code(err); got != 413 {
				t.Errorf("%.60s, %s: %d %s", q.SQL, what, got, message)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 512<<20 {
				t.Errorf("%.60s, %s: %d MiB", q.SQL, what, took>>20)
			}
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f.expect("admin", "SELECT quantity(printf('%.*c', 4000000, char(1)))", "null")
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("a text that is no quantity took %d MiB", took>>20)
	}
	// What a cursor has kept is given back before it scans again.
	f.expect("admin",
		"SELECT sum((SELECT length(after) FROM changes WHERE revision = r.value LIMIT 1) > 0) FROM json_each('["+
			strings.TrimSuffix(strings.Repeat(fmt.Sprint(made.Revision, ","), 100), ",")+"]') r", "100")
}

// residentBytes is the memory of the process that is in use.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// mappingsOf is how many mappings of memory the process has.
func mappingsOf(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}
