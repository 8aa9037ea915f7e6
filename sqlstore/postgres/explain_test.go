package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// Each way in which a server refuses a connection has an error of one line that names the
// server and the remedy.
func TestExplain_NamesTheServerAndTheRemedy(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	admin := connect(t, dsn)
	var file, database string
	if err := admin.QueryRow(t.Context(), `SELECT current_setting('hba_file'), current_database()`).Scan(&file, &database); err != nil {
		t.Fatal(err)
	}
	for role, options := range map[string]string{
		"explain_password": `LOGIN PASSWORD 'right'`, "explain_rejected": `LOGIN`, "explain_rights": `LOGIN`,
		"explain_locked": `NOLOGIN`,
	} {
		if _, err := admin.Exec(t.Context(), `CREATE ROLE `+role+` `+options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // roles belong to the server, which the next run of the test uses too
			if _, err := admin.Exec(context.Background(), `DROP ROLE `+role); err != nil {
				t.Error(err)
			}
		})
	}
	rules, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rules = append([]byte("local all explain_password scram-sha-256\nlocal all explain_rejected reject\n"), rules...)
	if err := os.WriteFile(file, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), `SELECT pg_reload_conf()`); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, dsn)
	through := proxy.DSN()
	address := strings.TrimSuffix(strings.TrimPrefix(through, "postgres://byre@"), "/"+database+"?sslmode=disable")
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := nobody.Addr().String()
	nobody.Close()
	as := func(user string) string { return strings.Replace(through, "byre@", user+"@", 1) }

	for name, test := range map[string]struct {
		dsn  string
		want []string
	}{
		"wrong password":     {as("explain_password:wrong"), []string{address, `password authentication failed for user "explain_password"`, "correct the password"}},
		"not allowed":        {as("explain_rejected"), []string{address, "pg_hba.conf"}},
		"missing role":       {as("explain_missing"), []string{address, `role "explain_missing" does not exist`, `CREATE ROLE "explain_missing" LOGIN`}},
		"role without login": {as("explain_locked"), []string{address, `role "explain_locked" is not permitted to log in`, `ALTER ROLE "explain_locked" LOGIN`}},
		"missing database":   {strings.Replace(through, "/"+database, "/missing", 1), []string{address, `database "missing" does not exist`, `CREATE DATABASE "missing"`}},
		"missing right":      {as("explain_rights"), []string{address, "permission denied", `grant it to "explain_rights"`}},
		"refused TLS":        {strings.Replace(through, "sslmode=disable", "sslmode=require", 1), []string{address, "refuses TLS", "sslmode=prefer"}},
		"refused connection": {strings.Replace(through, address, closed, 1), []string{closed, "connection refused", "start the server"}},
		"two hosts":          {strings.Replace(strings.Replace(through, address, closed+","+address, 1), "sslmode=disable", "sslmode=require", 1), []string{closed + ": connection refused", address + ": the server refuses TLS"}},
	} {
		storetest.EventuallyDone(t, name, func(ctx context.Context) (bool, error) {
			_, migrateErr := migrations.Up(ctx, test.dsn)
			_, openErr := postgres.Open(ctx, test.dsn, postgres.Options{})
			for _, err := range []error{migrateErr, openErr} {
				for _, want := range test.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						return false, fmt.Errorf("%w lacks %q", err, want)
					}
				}
				if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "wrong") {
					t.Errorf("%s: not one line, or a secret: %v", name, err)
				}
			}
			return true, nil
		})
	}
}

// A table that disappears while the driver runs makes the database unavailable, with an
// error that names the remedy. The driver works again once the table is there.
func TestOutage_LostPrivilege(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	admin := connect(t, dsn)
	if _, err := admin.Exec(t.Context(), `ALTER TABLE undo_log RENAME TO hidden`); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Commit(t.Context(), create("a")); !errors.Is(err, sqlstore.ErrUnavailable) || !strings.Contains(err.Error(), "byre migrate status") {
		t.Errorf("commit without its table: %v", err)
	}
	if _, err := admin.Exec(t.Context(), `ALTER TABLE hidden RENAME TO undo_log`); err != nil {
		t.Fatal(err)
	}
	if o, err := driver.Commit(t.Context(), create("a")); err != nil || o[0].Revision != 1 {
		t.Error(o, err)
	}
}
