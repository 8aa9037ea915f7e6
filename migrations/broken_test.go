package migrations_test

import (
	"slices"
	"testing"

	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// If the connection of a migration breaks after any of its statements, before the answer
// arrives, the schema is either the old or the new one, and the next migration completes. The
// same holds if the process is killed.
func TestUp_BrokenAtAnyStatement(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	latest, err := migrations.Latest(migrations.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
		t.Fatal(err)
	}
	want := d.query(t, postgresSchema)
	broken := 0
	for skip, isOver := 0, false; !isOver; skip++ {
		for state, err := migrations.Status(t.Context(), d.endpoint); state.Current > 1; state, err = migrations.Down(t.Context(), d.endpoint, false) {
			if err != nil {
				t.Fatal(err)
			}
		}
		proxy := pgtest.NewProxy(t, d.endpoint)
		triggered := proxy.Set(pgtest.Failpoint{Point: pgtest.Answered, Skip: skip, Do: func() pgtest.Action { return pgtest.Drop }})
		_, upErr := migrations.Up(t.Context(), proxy.DSN())
		select {
		case <-triggered:
			broken++
		default:
			if upErr != nil {
				t.Fatal(upErr)
			}
			isOver = true
		}
		state, err := migrations.Status(t.Context(), d.endpoint)
		if err != nil || state.Current != 1 && state.Current != latest {
			t.Fatalf("statement %d broke: %+v, %v", skip, state, err)
		}
		if state, err = migrations.Up(t.Context(), d.endpoint); err != nil || state.Current != latest {
			t.Fatalf("the next migration after statement %d: %+v, %v", skip, state, err)
		}
		if got := d.query(t, postgresSchema); !slices.Equal(got, want) {
			t.Fatalf("the schema after statement %d is %q, want %q", skip, got, want)
		}
	}
	if broken < 10 {
		t.Errorf("broken at %d points only", broken)
	}
	t.Logf("broken at %d points", broken)
}
