package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
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
		if err != nil && (strings.Contains(sqlstore.Public(err), "secret") || !strings.Contains(err.Error(), "PostgreSQL at ")) {
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
	} {
		err := postgres.TranslateCommit(c.mode, &pgconn.PgError{Severity: c.severity, SeverityUnlocalized: c.severity, Code: c.code}, c.committing)
		if !errors.Is(err, c.want) {
			t.Errorf("%s, %s %s: %v, want %v", c.name, c.severity, c.code, err, c.want)
		}
		if isUnknown := errors.Is(err, sqlstore.ErrUnknown); isUnknown && !errors.Is(c.want, sqlstore.ErrUnknown) {
			t.Errorf("%s, %s %s: unknown: %v", c.name, c.severity, c.code, err)
		}
	}
}
