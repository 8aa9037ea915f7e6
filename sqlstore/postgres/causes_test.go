package postgres_test

import (
	"errors"
	"strings"
	"testing"

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
