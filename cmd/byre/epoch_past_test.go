package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"byre/apiserver/query"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

const configMapsThen = "SELECT namespace, name, revision FROM configmaps('%s') ORDER BY 1, 2"

// What was at revisions and times of before is shown after a restore, by a copy of the file, and after an administrator
// has declared a loss. What had been deleted before is refused there as it was here, and so is what is deleted later.
func TestPast_IsLeftWhereAnEpochBegins(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(49, 1))
			h := newChronicle(t, flags(t)...)
			h.makeNamespace("shop")
			h.changeAtRandom(random, []string{"shop"}, 10)
			tooEarly := h.csv("", "SELECT max(revision) FROM changes WHERE namespace = 'shop'")[0]
			h.changeAtRandom(random, []string{"shop"}, 10)
			succeed(t, append([]string{"compact", "--keep=0s", "--resource=configmaps"}, h.database()...)...)
			recorded := map[string][]string{}
			for range 8 {
				h.changeAtRandom(random, []string{"shop"}, 5)
				lists := h.csv("", "SELECT namespace, name, revision FROM configmaps ORDER BY 1, 2")
				for _, moment := range h.csv("", "SELECT revision FROM changes ORDER BY revision DESC LIMIT 1") {
					recorded[moment] = lists
				}
				for _, moment := range h.csv("", "SELECT time FROM changes ORDER BY revision DESC LIMIT 1") {
					recorded[moment] = lists
				}
			}
			refused := h.expectPast(recorded, tooEarly)

			others := map[string]*chronicle{"restored": h.restored("--sql-timeout=1m")}
			if h.isSQLite() {
				dir := t.TempDir()
				tool(t, "sqlite3", filepath.Join(h.dir, "byre.db"), ".backup '"+filepath.Join(dir, "byre.db")+"'")
				others["copied"] = h.of(dir, "--accept-new-keys", "--sql-timeout=1m")
			} else {
				file, dsn := filepath.Join(t.TempDir(), "backup"), pgtest.DSN(t)
				succeed(t, "backup", file, "--endpoint", h.endpoint)
				succeed(t, "restore", file, "--endpoint", dsn)
				others["restored to PostgreSQL"] = h.of(t.TempDir(), "--endpoint", dsn, "--accept-new-keys", "--sql-timeout=1m")
				const epoch = "SELECT epoch FROM store"
				before := rows(t, h.endpoint, epoch)
				tool(t, "psql", "-AtX", h.endpoint, "-c", "UPDATE store SET lineage = 'restored'")
				storetest.EventuallyDone(t, "a new epoch", func(context.Context) (bool, error) {
					response, _ := h.ask("", query.CSV, "SELECT count(*) FROM configmaps")
					return response.StatusCode == http.StatusOK && !slices.Equal(rows(t, h.endpoint, epoch), before), nil
				})
				others["declared"] = h
			}
			for name, other := range others {
				if got := other.expectPast(recorded, tooEarly); got != refused {
					t.Errorf("%s, at revision %s: %s, want %s", name, tooEarly, got, refused)
				}
				status, _, errOut := call("rollback", "-n", "shop", "--at", firstOf(recorded), "--dry-run=server", "--yes",
					"--kubeconfig", filepath.Join(other.dir, "admin.kubeconfig"))
				if status != 0 {
					t.Errorf("%s: rollback to %s: %s", name, firstOf(recorded), errOut)
				}
				// Watches, and exact lists, end at the epoch.
				if status, body := other.as("", "/api/v1/configmaps?resourceVersionMatch=Exact&resourceVersion="+firstOf(recorded),
					"application/json"); status != http.StatusGone {
					t.Errorf("%s: an exact list of before the epoch: %d %s", name, status, body)
				}
				other.write("shop", "later", "") // a compaction keeps the last revision
				succeed(t, append([]string{"compact", "--keep=0s", "--resource=configmaps"}, other.database()...)...)
				for moment := range recorded {
					other.expectEarliest(fmt.Sprintf(configMapsThen, moment))
				}
			}
		})
	}
}

// firstOf returns the first revision of those that were recorded.
func firstOf(recorded map[string][]string) (first string) {
	for moment := range recorded {
		if isRevision := regexp.MustCompile(`^\d+$`).MatchString(moment); isRevision &&
			(first == "" || len(moment) < len(first) || len(moment) == len(first) && moment < first) {
			first = moment
		}
	}
	return first
}

// expectPast expects of moments what was recorded, and returns the answer for one that is too early.
func (h *chronicle) expectPast(recorded map[string][]string, tooEarly string) string {
	h.Helper()
	for moment, want := range recorded {
		if got := h.csv("", fmt.Sprintf(configMapsThen, moment)); !slices.Equal(got, want) {
			h.Errorf("at %s: %q, want %q", moment, got, want)
		}
	}
	return h.expectEarliest(fmt.Sprintf(configMapsThen, tooEarly))
}

// expectEarliest expects that a statement asks for a moment before the history, and that the one of which its error
// tells is within.
func (h *chronicle) expectEarliest(statement string) string {
	h.Helper()
	response, body := h.ask("", query.CSV, statement)
	found := regexp.MustCompile(`the earliest moment is revision (\d+)`).FindStringSubmatch(body)
	if response.StatusCode != http.StatusGone || len(found) == 0 {
		h.Errorf("%s: %d %s", statement, response.StatusCode, body)
		return body
	}
	h.csv("", fmt.Sprintf(configMapsThen, found[1]))
	return found[0]
}
