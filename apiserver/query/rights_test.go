package query

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"byre/sqlstore"
)

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
		"namespace = 'ns-1'", "name = 'canary-1'", "namespace = 'ns-1' AND name = 'canary-1'", "uid = 'u-canary-1'", "node = 'n1'",
		"namespace IN ('ns-1', 'ns-2')", "name IN (SELECT name FROM pods)", "name LIKE 'can%'", "1", "revision > 0",
		"NOT EXISTS (SELECT 1 FROM pods o WHERE o.name > pods.name)", "name > ''", "abs(-9223372036854775807 - (namespace = 'ns-1')) IS NULL",
	} {
		for _, what := range []string{"name", "count(*), max(name)", "object", "json_group_array(uid)", "name || uid"} {
			got, err := f.ask("alice", "SELECT "+what+" FROM pods WHERE "+where)
			if got = mine(got); strings.Contains(got, "ns-1") || strings.Contains(got, "n-1\"") || err != nil && strings.Contains(err.Error(), "canary") {
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
		got, err := f.ask("admin", "SELECT (SELECT count(*) FROM nodes) - (SELECT count(*) FROM pods), (SELECT count(*) FROM pods)")
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
	values := []string{"'ns1'", "'p7'", "'u-p9'", "'n3'", "'Running'", "'none'", "NULL", "7", "x'6e33'", "(SELECT max(node) FROM pods)"}
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
			t.Fatalf("WHERE %s: %d rows %v, want %d", strings.Join(planned, conjunction), strings.Count(got, "\n"), err, strings.Count(want, "\n"))
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
