package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// Clients learn in byre's words why the server takes no writes. The server's own message
// goes only to the log.
func TestCauses_AreToldInOwnWords(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	conn := connect(t, dsn)
	execute := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	commit := func() error {
		outcomes, err := driver.Commit(t.Context(), []sqlstore.Write{{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "a"}, Value: []byte("{}"),
		}})
		for _, o := range outcomes {
			err = errors.Join(err, o.Err)
		}
		return err
	}
	for code, want := range map[string]error{
		"53100": sqlstore.ErrDiskFull, "25006": sqlstore.ErrReadOnly, "22P02": sqlstore.ErrDatabase,
	} {
		execute(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'secret' USING ERRCODE = '` + code + `'; END $$`)
		execute(`CREATE TRIGGER refuse BEFORE INSERT ON current_objects FOR EACH ROW EXECUTE FUNCTION refuse()`)
		err := commit()
		if !errors.Is(err, want) || errors.Is(err, sqlstore.ErrUnavailable) != !errors.Is(want, sqlstore.ErrDatabase) {
			t.Errorf("%s: %v, want %v", code, err, want)
		}
		if err != nil &&
			(strings.Contains(sqlstore.Public(err), "secret") || !strings.Contains(err.Error(), "PostgreSQL at ")) {
			t.Errorf("%s: the operator reads %q, everybody %q", code, err, sqlstore.Public(err))
		}
		execute(`DROP FUNCTION refuse() CASCADE`)
	}
	if err := commit(); err != nil {
		t.Error(err)
	}
}

// Only an error of the session that runs the batch proves that the batch did not happen. Poolers
// answer in the server's name when their own connection breaks, which may be after the COMMIT:
// PgBouncer with FATAL 08P01, Odyssey with ERROR 08006.
func TestCommit_WhatProvesThatNothingHappened(t *testing.T) {
	t.Parallel()
	const direct, pooled = pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec
	for _, c := range []struct {
		name           string
		mode           pgx.QueryExecMode
		severity, code string
		committing     bool
		want           error
	}{
		{"a statement failed", direct, "ERROR", "22P02", false, sqlstore.ErrDatabase},
		{"a statement failed behind a pooler", pooled, "ERROR", "22P02", false, sqlstore.ErrDatabase},
		{"a lack of resources", pooled, "ERROR", "53200", false, sqlstore.ErrUnavailable},
		{"the COMMIT lost a race", pooled, "ERROR", "40001", true, sqlstore.ErrUnavailable},
		{"the COMMIT failed otherwise", direct, "ERROR", "53200", true, sqlstore.ErrUnknown},
		{"Odyssey lost the server", pooled, "ERROR", "08006", false, sqlstore.ErrUnknown},
		{"PgBouncer lost the server", pooled, "FATAL", "08P01", false, sqlstore.ErrUnknown},
		{"the session is terminated", direct, "FATAL", "57P01", false, sqlstore.ErrUnavailable},
		{"a session behind a pooler is terminated", pooled, "FATAL", "57P01", false, sqlstore.ErrUnknown},
		{"another fatal error", direct, "FATAL", "XX000", false, sqlstore.ErrUnknown},
		{"an internal error behind a pooler", pooled, "ERROR", "XX000", false, sqlstore.ErrUnavailable},
		{"an error without the severity in English", direct, "ERROR without V", "XX000", false, sqlstore.ErrUnknown},
	} {
		from := &pgconn.PgError{Severity: c.severity, SeverityUnlocalized: c.severity, Code: c.code}
		if severity, ok := strings.CutSuffix(c.severity, " without V"); ok {
			from.Severity, from.SeverityUnlocalized = severity, ""
		}
		err := postgres.TranslateCommit(c.mode, from, c.committing)
		if !errors.Is(err, c.want) {
			t.Errorf("%s, %s %s: %v, want %v", c.name, c.severity, c.code, err, c.want)
		}
		if isUnknown := errors.Is(err, sqlstore.ErrUnknown); isUnknown && !errors.Is(c.want, sqlstore.ErrUnknown) {
			t.Errorf("%s, %s %s: unknown: %v", c.name, c.severity, c.code, err)
		}
	}
}

// A server that gives no transaction IDs takes no writes. Other limits are of the statement.
func TestErrors_OfExhaustedTransactionIDs(t *testing.T) {
	t.Parallel()
	for routine, want := range map[string]error{
		"GetNewTransactionId": sqlstore.ErrReadOnly, "GetNewMultiXactId": sqlstore.ErrReadOnly,
		"_bt_check_third_page": sqlstore.ErrDatabase,
	} {
		err := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "54000", Routine: routine}
		if got := postgres.TranslateCommit(pgx.QueryExecModeCacheStatement, err, false); !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", routine, got, want)
		}
	}
}

// What a server answers that crashes, stops, recovers, is promoted or has lost its disk passes: the
// client is told to try again, or that the outcome is not known. Only what the next attempt would get
// again is an internal error.
func TestErrors_OfAFailoverAreNotInternal(t *testing.T) {
	t.Parallel()
	for code, text := range map[string]string{
		"08000": "connection exception", "08001": "can't establish the connection", "08003": "no connection",
		"08004": "the server rejects the connection", "08006": "the pooler has lost the server",
		"08007": "transaction resolution unknown",
		"08P01": "server conn crashed?", "0A000": "cached plan must not change result type",
		"23505": "duplicate key", "25001": "a transaction is in progress", "25006": "read-only transaction",
		"25P01": "no transaction",
		"25P02": "current transaction is aborted", "25P03": "idle in transaction", "25P04": "transaction timeout",
		"26000": "prepared statement does not exist", "28000": "no pg_hba.conf entry",
		"28P01": "password authentication failed",
		"3D000": "database does not exist", "40001": "conflict with recovery", "40P01": "deadlock",
		"42P01": "relation does not exist",
		"53000": "insufficient resources", "53100": "no space left on device", "53200": "out of memory",
		"53300": "too many clients",
		"55000": "recovery is in progress", "55006": "database is being accessed", "55P03": "lock timeout",
		"57014": "statement timeout", "57P01": "terminating connection due to administrator command",
		"57P02": "crash of another server process", "57P03": "the database system is starting up",
		"57P04": "database dropped",
		"57P05": "idle session", "58000": "system error", "58030": "could not write to file", "58P01": "could not open file",
		"XX000": "cannot assign TransactionIds during recovery", "XX001": "invalid page", "XX002": "index corrupted",
	} {
		for _, severity := range []string{"ERROR", "FATAL"} {
			err := &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: text,
				TableName: "current_objects"}
			if got := postgres.Translate(err); !errors.Is(got, sqlstore.ErrUnavailable) || errors.Is(got, sqlstore.ErrDatabase) {
				t.Errorf("%s %s (%s) of a read: %v", severity, code, text, got)
			}
			for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
				for _, committing := range []bool{false, true} {
					got := postgres.TranslateCommit(mode, err, committing)
					if errors.Is(got, sqlstore.ErrUnavailable) == errors.Is(got, sqlstore.ErrUnknown) ||
						errors.Is(got, sqlstore.ErrDatabase) {
						t.Errorf("%s %s (%s) of a batch (%v, committing %v): %v", severity, code, text, mode, committing, got)
					}
				}
			}
		}
	}
}

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
	if err := admin.QueryRow(t.Context(), `SELECT current_setting('hba_file'), current_database()`).Scan(&file,
		&database); err != nil {
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
		"wrong password": {as("explain_password:wrong"),
			[]string{address, `password authentication failed for user "explain_password"`, "correct the password"}},
		"not allowed": {as("explain_rejected"), []string{address, "pg_hba.conf"}},
		"missing role": {as("explain_missing"),
			[]string{address, `role "explain_missing" does not exist`, `CREATE ROLE "explain_missing" LOGIN`}},
		"role without login": {as("explain_locked"),
			[]string{address, `role "explain_locked" is not permitted to log in`, `ALTER ROLE "explain_locked" LOGIN`}},
		"missing database": {strings.Replace(through, "/"+database, "/missing", 1),
			[]string{address, `database "missing" does not exist`, `CREATE DATABASE "missing"`}},
		"missing right": {as("explain_rights"), []string{address, "permission denied", `grant it to "explain_rights"`}},
		"refused TLS": {strings.Replace(through, "sslmode=disable", "sslmode=require", 1),
			[]string{address, "refuses TLS", "sslmode=prefer"}},
		"refused connection": {strings.Replace(through, address, closed, 1),
			[]string{closed, "connection refused", "start the server"}},
		"two hosts": {strings.Replace(strings.Replace(through, address, closed+","+address, 1), "sslmode=disable",
			"sslmode=require", 1), []string{closed + ": connection refused", address + ": the server refuses TLS"}},
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
	if _, err := driver.Commit(t.Context(), create("a")); !errors.Is(err, sqlstore.ErrUnavailable) ||
		!strings.Contains(err.Error(), "byre migrate status") {
		t.Errorf("commit without its table: %v", err)
	}
	if _, err := admin.Exec(t.Context(), `ALTER TABLE hidden RENAME TO undo_log`); err != nil {
		t.Fatal(err)
	}
	if o, err := driver.Commit(t.Context(), create("a")); err != nil || o[0].Revision != 1 {
		t.Error(o, err)
	}
}
