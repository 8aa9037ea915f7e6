package postgres_test

import (
	"context"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
)

// A role that owns nothing and may only read and write rows can serve, as
// docs/operations/postgresql.md says.
func TestRole_NeedsNoOwnership(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	dsn = pgtest.FewRights(t, dsn)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Errorf("the schema is current: %v", err)
	}
	driver := openMore(t, dsn, postgres.Options{})
	last := mustCreate(t, driver, "a", "b")
	if o, err := driver.Commit(t.Context(), []sqlstore.Write{{
		Op: sqlstore.Delete, Replaces: last, Key: create("b")[0].Key,
	}}); err != nil || o[0].Err != nil {
		t.Fatal(o, err)
	}
	for _, c := range []struct {
		name string
		work func(context.Context) error
	}{
		{"Changes", func(ctx context.Context) error {
			_, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: 0, Limit: 10})
			return err
		}},
		{"Usage", func(ctx context.Context) error { _, err := driver.Usage(ctx); return err }},
		{"Size", func(ctx context.Context) error { _, err := driver.Size(ctx); return err }},
		{"Notify", func(ctx context.Context) error { return driver.Notify(ctx, last) }},
		// This is the last one: Changes cannot read what it compacts.
		{"WithLock", func(ctx context.Context) error {
			_, err := driver.WithLock(ctx, "x", func(ctx context.Context) error {
				_, _, err := driver.DeleteHistory(ctx, sqlstore.Deletion{Of: create("b")[0].Key.Of(), UpTo: last, Limit: 1})
				return err
			})
			return err
		}},
	} {
		if err := c.work(t.Context()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
