package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// bombs take as much time or memory as they can get.
var bombs = []string{
	"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
	"WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r) SELECT count(*) FROM r",
	"SELECT count(*) FROM pods a, pods b, pods c, pods d, pods e, pods f, pods g",
	"SELECT group_concat(a.object || b.object || c.object || d.object) FROM pods a, pods b, pods c, pods d",
	"SELECT a.name FROM pods a, pods b, pods c, pods d, pods e ORDER BY random()",
	"SELECT hex(hex(hex(hex(zeroblob(4000000)))))",
	"WITH RECURSIVE r(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM r) SELECT count(*) FROM r",
	"SELECT json_group_array(a.object) FROM pods a, pods b, pods c",
	"SELECT printf('%.*c', 2000000000, 'x')",
	"SELECT replace(printf('%.*c', 10000000, 'x'), 'x', 'yyyyyyyyyyyyyyyyyyyyyy')",
	"WITH RECURSIVE b(s) AS MATERIALIZED (SELECT hex(zeroblob(1000000))), r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r, b WHERE " +
		strings.Repeat("s LIKE '%"+strings.Repeat("0_", 90)+"1' || n OR ", 20) + "s GLOB '*" + strings.Repeat("[^1]", 40) +
		"1' || n",
	"SELECT (SELECT json(json_group_array(json_array(a.object, b.object))) FROM pods a, pods b, pods c), count(DISTINCT a.object || b.object || c.object) FROM pods a, pods b, pods c, pods d",
}

// A query that takes too much ends with an error of its own, and others go on.
func TestLimits_HoldUnderBombs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 100 {
		f.pod("a", fmt.Sprint("p", i), "n")
	}
	for _, sql := range bombs {
		f.config.Timeout = 300 * time.Millisecond
		_, err := f.ask("admin", sql)
		f.config.Timeout = storetest.Patience
		if got, message := code(err); got != 408 && got != 413 {
			t.Errorf("%.80s: %d %s", sql, got, message)
		}
		f.expect("admin", "SELECT count(*) FROM pods", "100")
	}
}

// A client that goes away ends its query.
func TestLimits_CancelEndsAQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(request.WithUser(t.Context(), &user.DefaultInfo{Name: "admin"}))
	done := make(chan error, 1)
	go func() {
		_, err := f.Create(ctx, &Query{Spec: Spec{SQL: bombs[0]}}, func(context.Context, k8sruntime.Object) error {
			return nil
		}, nil)
		done <- err
	}()
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Error(err)
	}
}

// More queries than --sql-concurrency wait, and the answer of those that wait too long is 429. Those of another user
// wait for one of their own.
func TestLimits_QueriesWaitForOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.turns.patience = 100 * time.Millisecond
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if _, err := ask(ctx, f.Storage, "greedy", bombs[0]); err == nil {
			t.Error("a bomb was answered")
		}
	})
	defer running.Wait()
	defer end()
	isRunning := func() bool {
		f.turns.mutex.Lock()
		defer f.turns.mutex.Unlock()
		return f.turns.begun > 0
	}
	for !isRunning() {
		runtime.Gosched()
	}
	f.expect("admin", "SELECT 1", "1")
	_, err := f.ask("greedy", "SELECT 1")
	if got, message := code(err); got != 429 {
		t.Error(got, message)
	}
	end()
	running.Wait()
	f.turns.patience = patience
	f.expect("greedy", "SELECT 1", "1")
}

func TestLimits_RowsAreCutOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const numbers = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 20000) SELECT n FROM r"
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "admin"})
	admit := func(context.Context, k8sruntime.Object) error { return nil }
	for limit, want := range map[int64]int{0: mostRows, 1: 1, 19_999: mostRows, 10_001: mostRows} {
		q := &Query{Spec: Spec{SQL: numbers}}
		if limit > 0 {
			q.Spec.Limit = &limit
		}
		if _, err := f.Create(ctx, q, admit, nil); err != nil || len(q.Status.Rows) != want || !q.Status.Truncated {
			t.Errorf("limit %d: %d rows, truncated: %t, %v", limit, len(q.Status.Rows), q.Status.Truncated, err)
		}
	}
	q := &Query{Spec: Spec{SQL: "SELECT ?1", Parameters: []json.RawMessage{json.RawMessage("1")}, Limit: new(int64(1))}}
	if _, err := f.Create(ctx, q, admit, nil); err != nil || q.Status.Truncated || len(q.Status.Rows) != 1 {
		t.Error(q.Status, err)
	}
}

// No call of a function keeps a query from ending: SQLite asks whether to go on between its instructions only. Each of
// these would take hours, if it took the product of the lengths, or the number that a text stands for.
func TestLimits_FunctionsAreLinear(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.config.Memory = 256 << 20
	const zeros, ones = "hex(zeroblob(4000000))", "printf('%.*c', 4000000, '1')"
	for sql, want := range map[string]string{
		"SELECT instr(" + zeros + ", substr(" + zeros + ", 1, 4000000) || '1')":                    "0",
		"SELECT length(replace(" + zeros + ", substr(" + zeros + ", 1, 4000000) || '1', 'x'))":     "8000000",
		"SELECT length(trim(" + zeros + ", " + ones + " || '0'))":                                  "0",
		"SELECT length(ltrim(" + zeros + ", " + ones + " || '0'))":                                 "0",
		"SELECT length(rtrim(" + zeros + ", 'ü' || " + ones + " || '0'))":                          "0",
		"SELECT quantity('1e2147483647'), 1, quantity('1e-2147483648'), 1, quantity(" + ones + ")": "null 1 null 1 null",
		"SELECT quantity('1E'), quantity('1e3'), quantity('2Ei'), quantity('1e-3')":                "1000000000000000000 1000 2305843009213694000 0.001",
	} {
		f.expect("admin", sql, want)
	}
}

// The functions that are not SQLite's own return what SQLite's return.
func TestLimits_FunctionsAreThoseOfSQLite(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for sql, want := range map[string]string{
		"SELECT instr('añb', 'b'), instr('abc', ''), instr(NULL, 'a'), instr('abc', 'd'), instr('a', NULL), instr(x'00c3b162', x'62'), instr(12345, 34)":                                                                                                                    "3 1 null 0 null 4 3",
		"SELECT replace('aXbX', 'X', 'yy'), replace(NULL, 'a', 'b'), replace('abc', '', 'x'), replace('a', NULL, 'b'), replace(101, 0, 7), replace('a', 'b', NULL), replace('aa', 'a', '')":                                                                                 `"ayybyy" null "abc" null "171" null ""`,
		"SELECT trim('xxaxx', 'x'), ltrim('xyaxy', 'xy'), rtrim('xyaxy', 'yx'), trim('ñañ', 'ñ'), trim('aba', ''), trim(NULL, 'a'), trim('  a '), trim('a', NULL), trim(1210, 10)":                                                                                          `"a" "axy" "xya" "a" "aba" null "a" null "2"`,
		"SELECT 'aXñb' LIKE 'Ax_%B', 'abc' LIKE 'b', '' LIKE '%%', 'a%b' LIKE 'a!%b' ESCAPE '!', 'axb' LIKE 'a!%b' ESCAPE '!', 'a' LIKE 'a!' ESCAPE '!', NULL LIKE 'a', 'Ñ' LIKE 'ñ', 'a' LIKE NULL, 12 LIKE '1_', 'aab' LIKE '%ab', 'a' NOT LIKE 'b'":                      "1 0 1 1 0 0 null 0 null 1 1 1",
		"SELECT 'a' LIKE 'a' ESCAPE NULL, 'abab' LIKE '%ab%ab', 'aba' LIKE '%ab%ab', 'a_b' LIKE 'a__b' ESCAPE '_', 'AB' LIKE 'a' || 'b'":                                                                                                                                    "null 1 0 1 1",
		"SELECT 'abc' GLOB 'a*', 'abc' GLOB 'A*', 'abc' GLOB '?b?', 'b' GLOB '[a-c]', 'd' GLOB '[^a-c]', 'd' GLOB '[^d]', ']' GLOB '[]]', '-' GLOB '[a-]', 'x' GLOB '[x', '[' GLOB '[[]', 'b' GLOB '[^^]', '^' GLOB '[^^]', 'c' GLOB '[a-b-c]', '' GLOB '*', 'a' GLOB '[]'": "1 0 1 1 1 0 1 1 0 1 1 0 1 1 0",
		"SELECT 'd' GLOB '[a-c-e]', '-' GLOB '[a-c-e]', 'a' GLOB '[]-a]', '^' GLOB '[]-a]', '-' GLOB '[]-a]', '^' GLOB '[^]-a]'":                                                                                                                                            "0 1 1 0 1 1",
		"SELECT typeof(trim(1, 2)), typeof(replace(1, 2, 3)), typeof(instr(1, 2))":                                                                                                                                                                                          `"text" "text" "integer"`,
	} {
		f.expect("admin", sql, want)
	}
	for sql, want := range map[string]string{
		"SELECT 'a' LIKE 'a' ESCAPE 'ab'":    "ESCAPE expression must be a single character",
		"SELECT 'a' LIKE hex(zeroblob(101))": "LIKE or GLOB pattern too complex",
		"SELECT 'a' GLOB hex(zeroblob(101))": "LIKE or GLOB pattern too complex",
	} {
		_, err := f.ask("admin", sql)
		if got, message := code(err); got != 400 || !strings.Contains(message, want) {
			t.Errorf("%s: %d %s", sql, got, message)
		}
	}
	if _, err := f.ask("admin", "SELECT replace(hex(zeroblob(1000000)), '0', hex(zeroblob(4000000)))"); err == nil {
		t.Error("a value of terabytes was made")
	} else if got, message := code(err); got != 413 {
		t.Error(got, message)
	}
}

// The rows that a detail table makes of one object, which can be many more than its bytes, take memory and end with the
// query.
func TestLimits_HoldForTheRowsOfOneObject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	hundred := `["a"` + strings.Repeat(`,"a"`, 99) + `]`
	role := fmt.Sprintf(
		`{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"r"},"rules":[{"apiGroups":%[1]s,"resources":%[1]s,"verbs":%[1]s}]}`, hundred)
	key := sqlstore.Key{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "r"}
	if _, err := f.store.Commit(t.Context(),
		sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(role), UID: "u-r"}); err != nil {
		t.Fatal(err)
	}
	f.expect("admin", "SELECT count(*) FROM rbac_rules WHERE verb = 'b'", "0")
	if got, err := f.ask("admin", "SELECT count(*) FROM rbac_rules"); err == nil {
		t.Error("a million rows were made at once:", got)
	} else if got, message := code(err); got != 413 {
		t.Error(got, message)
	}
}

// Patterns match what they match in SQLite.
func TestLimits_PatternsMatchAsInSQLite(t *testing.T) {
	t.Parallel()
	conn, err := sqlite3.OpenContext(t.Context(), ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stmt, _, err := conn.Prepare("SELECT ?1 LIKE ?2 ESCAPE '!', ?1 GLOB ?2")
	if err != nil {
		t.Fatal(err)
	}
	defer stmt.Close()
	f := newFixture(t)
	random := func(of string) string {
		letters := []rune(of)
		text := make([]rune, rand.IntN(8))
		for i := range text {
			text[i] = letters[rand.IntN(len(letters))]
		}
		return string(text)
	}
	var pairs [][2]string
	var want []string
	for range 5000 {
		pair := [2]string{random("aAbBcñ!]^-"), random("aAbñ%_!*?[[]^-c")}
		if err := errors.Join(stmt.Reset(), stmt.BindText(1, pair[0]), stmt.BindText(2, pair[1])); err != nil ||
			!stmt.Step() {
			t.Fatal(err, stmt.Err())
		}
		pairs, want = append(pairs, pair), append(want, fmt.Sprint(stmt.ColumnInt(0), stmt.ColumnInt(1)))
	}
	text, err := json.Marshal(pairs)
	if err != nil {
		t.Fatal(err)
	}
	parameter, err := json.Marshal(string(text))
	if err != nil {
		t.Fatal(err)
	}
	const sql = "SELECT value ->> 0 LIKE value ->> 1 ESCAPE '!', value ->> 0 GLOB value ->> 1 FROM json_each(?1) ORDER BY key"
	got, err := f.ask("admin", sql, string(parameter))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(got, "\n") {
		if line != want[i] {
			t.Errorf("%q matches %q: %s, want %s", pairs[i][0], pairs[i][1], line, want[i])
		}
	}
}

// A value that can't be read now is no NULL, which would be a wrong answer.
func TestUnreadable_IsAnErrorIfItCanBeReadLater(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewTooManyRequests("the definition has just changed", 1), true},
		{apierrors.NewServiceUnavailable("the database is away"), true},
		{apierrors.NewTimeoutError("the database is slow", 0), true},
		{storage.NewInternalError(status.Error(codes.Unavailable, "the plugin is away")), true},
		{storage.NewInternalError(status.Error(codes.NotFound, "the key is destroyed")), false},
		{errors.New("unexpected end of JSON input"), false},
		{apierrors.NewInternalError(errors.New("no key decrypts it")), false},
	} {
		if err := unreadable(t.Context(), test.err); (err != nil) != test.want {
			t.Errorf("of %v: %v", test.err, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := unreadable(gone, errors.New("unexpected end of JSON input")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
