package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// fewRights matches the statements of docs/operations/postgresql.md that make a role with few rights.
var fewRights = regexp.MustCompile("(?s)\n## A database role with few rights\n.*?\n```sql\n(.*?)\n```\n")

// FewRights makes the role byre_server in the database of a DSN as docs/operations/postgresql.md says, and
// returns the DSN for that role. The schema must be current. The role belongs to the whole server:
// the tests of a package make it one after the other.
func FewRights(t testing.TB, dsn string) string {
	t.Helper()
	statements := fewRights.FindSubmatch(postgresPage(t))
	if statements == nil {
		t.Fatal("docs/operations/postgresql.md does not say how to make a role with few rights")
	}
	ctx := context.WithoutCancel(t.Context())
	owner, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close(ctx) })
	if _, err := owner.PgConn().Exec(ctx, string(statements[1])).ReadAll(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the database is dropped
		if _, err := owner.PgConn().Exec(ctx, `DROP OWNED BY byre_server; DROP ROLE byre_server`).ReadAll(); err != nil {
			t.Error(err)
		}
	})
	return strings.Replace(dsn, "postgres://byre@", "postgres://byre_server@", 1)
}

// postgresPage returns docs/operations/postgresql.md, which is in a folder above the test's package.
func postgresPage(t testing.TB) []byte {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		page, err := os.ReadFile(filepath.Join(dir, "docs", "operations", "postgresql.md"))
		if err == nil {
			return page
		}
		if dir == filepath.Dir(dir) {
			t.Fatal(err)
		}
		dir = filepath.Dir(dir)
	}
}
