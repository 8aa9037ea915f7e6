package migrations_test

import (
	"fmt"
	"slices"
	"testing"

	"byre/migrations"
	"byre/migrations/dbserver"
)

// migrateSchema migrates a schema of the database to a version.
func migrateSchema(t *testing.T, d database, schema string, version migrations.Version) {
	t.Helper()
	endpoint, err := dbserver.WithSchema(d.endpoint, schema)
	if err != nil {
		t.Fatal(err)
	}
	d.endpoint = endpoint
	d.at(t, version)
}

// A session with any search_path may write to the tables and the view of a schema by their full
// names. The triggers then write to that schema only: not to another store on the search_path, and
// they do not fail if the search_path leads to no store.
func TestTriggers_WriteToTheirOwnSchema(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"another store": "other", "no store": "nothing", "none": `''`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := postgresDatabase(t)
			latest, err := migrations.Latest(migrations.Postgres)
			if err != nil {
				t.Fatal(err)
			}
			migrateSchema(t, d, "first name", latest)
			migrateSchema(t, d, "other", latest)
			// An operator may restore a dump into a schema of another name.
			d.exec(t, `ALTER SCHEMA "first name" RENAME TO "a ""schema"""; CREATE SCHEMA nothing`)
			writeInto(t, d, path)
			expectWritten(t, d)
		})
	}
}

// writeInto writes from a session with another search_path, without owners, as processes of the
// first release do.
func writeInto(t *testing.T, d database, path string) {
	t.Helper()
	const row = `'2026-01-01T00:00:00.000000Z', 'create', '', '', '', 'storagemigration.k8s.io', 'storageversionmigrations', '', 'a', ''`
	d.exec(t, fmt.Sprintf(`
SET search_path = %s;
UPDATE "a ""schema""".counters SET revision = 5, compacted = 3, epoch = 'next';
INSERT INTO "a ""schema""".objects (revision, "group", resource, owner, namespace, name, uid, created_revision, time, verb, who, form, value)
VALUES (6, 'storagemigration.k8s.io', 'storageversionmigrations', 'custom', '', 'a', '', 6, '2026-01-01T00:00:00.000000Z', '', '', '', '{}');
INSERT INTO "a ""schema""".objects (revision, "group", resource, namespace, name, uid, created_revision, time, verb, who, form, value)
VALUES (7, 'example.com', 'widgets', '', 'a', '', 7, '2026-01-01T00:00:00.000000Z', '', '', '', '{}');
INSERT INTO "a ""schema""".changes (revision, time, op, verb, who, audit_id, "group", resource, namespace, name, uid, replaces, created_revision)
VALUES (8, %s, 6, 6), (9, %s, 0, 9)`, path, row, row))
}

func expectWritten(t *testing.T, d database) {
	t.Helper()
	for query, want := range map[string][]string{
		`SELECT revision || ' ' || compacted || ' ' || epoch FROM "a ""schema""".store`:         {"5 3 next"},
		`SELECT revision || ' ' || compacted || ' ' || (epoch = 'next') FROM other.store`:       {"0 0 false"},
		`SELECT resource || ' ' || owner FROM "a ""schema""".objects ORDER BY revision`:         {"storageversionmigrations custom", "widgets custom"},
		`SELECT replaces || ' ' || owner FROM "a ""schema""".changes ORDER BY revision`:         {"6 custom", "0 builtin"},
		`SELECT name FROM other.objects UNION ALL SELECT name FROM other.changes`:               nil,
		`SELECT revision || ' ' || compacted FROM "a ""schema""".counters WHERE epoch = 'next'`: {"9 3"},
	} {
		if got := d.query(t, query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

// Up from the schema of each release gives the schema of this one, and Down gives the schema of each
// release again.
func TestMigrate_FromEachVersion(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, schema string) {
		latest, err := migrations.Latest(d.dialect)
		if err != nil {
			t.Fatal(err)
		}
		schemas := map[migrations.Version][]string{}
		d.at(t, latest)
		schemas[latest] = d.query(t, schema)
		for version := latest - 1; version >= 1; version-- {
			d.at(t, version)
			schemas[version] = d.query(t, schema)
		}
		d.exec(t, stored)
		for from := migrations.Version(1); from < latest; from++ {
			if from > 1 { // the database is at version 1 already, and the step down to it refuses the rows of stored
				d.at(t, from)
			}
			if got := d.query(t, schema); !slices.Equal(got, schemas[from]) {
				t.Errorf("schema %d is another after the way up and down:\n%q, want\n%q", from, got, schemas[from])
			}
			if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
				t.Fatal(err)
			}
			if got := d.query(t, schema); !slices.Equal(got, schemas[latest]) {
				t.Errorf("schema %d from %d is another:\n%q, want\n%q", latest, from, got, schemas[latest])
			}
			if got := d.query(t, objectOwners); len(got) != 5 {
				t.Errorf("from %d: objects %q", from, got)
			}
		}
	})
}
