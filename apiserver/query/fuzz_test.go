package query

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// FuzzQuery_ShowsNoOtherRows asks generated statements as a user who may list nothing: neither an answer nor
// an error has a part of an object, and no statement harms the process.
func FuzzQuery_ShowsNoOtherRows(f *testing.F) {
	const canary = "zqxj"
	fixture := newFixture(f)
	fixture.config.Timeout = 100 * time.Millisecond
	fixture.pod(canary, canary, canary)
	for _, sql := range []string{
		"SELECT * FROM pods", "SELECT count(*) FROM pods a JOIN nodes b ON a.node = b.name", "WITH a AS (SELECT object FROM pods) SELECT * FROM a",
		"SELECT max(name) OVER (PARTITION BY namespace) FROM pods", "SELECT name FROM pods WHERE uid = 'x' OR node IN (SELECT name FROM nodes) ORDER BY 1 LIMIT 3",
		"SELECT * FROM byre_columns WHERE table_name = 'pods'", "SELECT key, value FROM labels WHERE resource = 'pods' OR name > ''", "SELECT * FROM selectors NATURAL JOIN containers", "SELECT * FROM conditions c, owners o WHERE c.name IN (o.name)",
		"EXPLAIN QUERY PLAN SELECT * FROM pods", "SELECT json_each.value FROM pods, json_each(pods.labels)",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if strings.Contains(strings.ToLower(sql), canary) {
			return
		}
		got, err := ask(t.Context(), fixture.Storage, "nobody", sql)
		if strings.Contains(strings.ToLower(got+fmt.Sprint(err)), canary) {
			t.Errorf("%q: %s %v", sql, got, err)
		}
		if status, message := code(err); err != nil && (status < 400 || status >= 500) {
			t.Errorf("%q: %d %s", sql, status, message)
		}
	})
}
