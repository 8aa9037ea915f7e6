package migrations_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"byre/migrations"
)

// stored inserts rows of the first schema, which has no owners: two built-in objects, an instance
// in a group of its own, one in a built-in group, and one whose group and resource are those of a
// built-in resource that the server does not serve. The first and the last object were also
// updated.
const stored = `
INSERT INTO objects (revision, "group", resource, namespace, name, uid, created_revision, time, verb, who, form, value) VALUES
    (3, 'rbac.authorization.k8s.io', 'clusterroles', '', 'a', '', 1, '2026-01-01T00:00:00.000000Z', '', '', 'v1.36/rbac.authorization.k8s.io/v1', '{}'),
    (4, '', 'pods', 'n', 'a', '', 4, '2026-01-01T00:00:00.000000Z', '', '', 'v1.36/v1', '{}'),
    (5, 'example.com', 'widgets', 'n', 'a', '', 5, '2026-01-01T00:00:00.000000Z', '', '', 'v1.36/v1/0d1f7a4c.1', '{}'),
    (6, 'networking.k8s.io', 'things', 'n', 'a', '', 6, '2026-01-01T00:00:00.000000Z', '', '', 'v1.36/v7/0d1f7a4d.1', '{}'),
    (7, 'internal.apiserver.k8s.io', 'storageversions', '', 'a', '', 2, '2026-01-01T00:00:00.000000Z', '', '', 'v1.36/v7/0d1f7a4e.12', '{}');
INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, namespace, name, uid, replaces, created_revision, form, value) VALUES
    (1, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', 'rbac.authorization.k8s.io', 'clusterroles', '', 'a', '', 0, 1, NULL, NULL),
    (2, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', 'internal.apiserver.k8s.io', 'storageversions', '', 'a', '', 0, 2, NULL, NULL),
    (3, '2026-01-01T00:00:00.000000Z', 'update', '', '', '', 'rbac.authorization.k8s.io', 'clusterroles', '', 'a', '', 1, 1, 'v1.36/rbac.authorization.k8s.io/v1', '{}'),
    (4, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', '', 'pods', 'n', 'a', '', 0, 4, NULL, NULL),
    (5, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', 'example.com', 'widgets', 'n', 'a', '', 0, 5, NULL, NULL),
    (6, '2026-01-01T00:00:00.000000Z', 'create', '', '', '', 'networking.k8s.io', 'things', 'n', 'a', '', 0, 6, NULL, NULL),
    (7, '2026-01-01T00:00:00.000000Z', 'update', '', '', '', 'internal.apiserver.k8s.io', 'storageversions', '', 'a', '', 2, 2, 'v1.36/v7/0d1f7a4e.12', '{}');
UPDATE counters SET revision = 7`

// at migrates the database up to the latest version and then down to a version.
func (d database) at(t *testing.T, version migrations.Version) {
	t.Helper()
	state, err := migrations.Up(t.Context(), d.endpoint)
	for err == nil && state.Current > version {
		state, err = migrations.Down(t.Context(), d.endpoint, true)
	}
	if err != nil {
		t.Fatal(err)
	}
}

const (
	objectOwners = `SELECT resource || ' ' || owner FROM objects ORDER BY revision`
	changeOwners = `SELECT resource || ' ' || owner FROM changes ORDER BY revision`
)

// The migration gives rows of the first release their actual owner.
func TestOwners_OfStoredRows(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, _ string) {
		d.at(t, 1)
		d.exec(t, stored)
		if _, err := migrations.Up(t.Context(), d.endpoint); err != nil {
			t.Fatal(err)
		}
		want := []string{"clusterroles builtin", "pods builtin", "widgets custom", "things custom", "storageversions custom"}
		if got := d.query(t, objectOwners); !slices.Equal(got, want) {
			t.Errorf("objects: %q, want %q", got, want)
		}
		want = []string{
			"clusterroles builtin", "storageversions custom", "clusterroles builtin",
			"pods builtin", "widgets custom", "things custom", "storageversions custom",
		}
		if got := d.query(t, changeOwners); !slices.Equal(got, want) {
			t.Errorf("changes: %q, want %q", got, want)
		}
		if got := d.query(t, `SELECT resource FROM history WHERE value IS NULL`); len(got) > 0 {
			t.Errorf("history has lost values of %q", got)
		}
	})
}

// The migration down refuses while an instance would become a built-in object. Without such
// instances it leads to the schema of the first release.
func TestOwners_DownRefusesAmbiguousKeys(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d database, schema string) {
		d.at(t, 2)
		d.exec(t, `INSERT INTO objects (revision, "group", resource, owner, namespace, name, uid, created_revision, time, verb, who, form, value)
VALUES (1, 'internal.apiserver.k8s.io', 'storageversions', 'custom', '', 'a', '', 1, '2026-01-01T00:00:00.000000Z', '', '', '', '{}'),
       (2, 'internal.apiserver.k8s.io', 'storageversions', 'builtin', '', 'a', '', 2, '2026-01-01T00:00:00.000000Z', '', '', '', '{}')`)
		state, err := migrations.Down(t.Context(), d.endpoint, true)
		if err == nil || !strings.Contains(err.Error(), "delete those definitions first") {
			t.Fatalf("down with instances over a built-in resource: %+v, %v", state, err)
		}
		if got := d.query(t, objectOwners); len(got) != 2 {
			t.Errorf("after the refusal: %q", got)
		}
		d.exec(t, `DELETE FROM objects WHERE owner = 'custom'`)
		if state, err := migrations.Down(t.Context(), d.endpoint, true); err != nil || state.Current != 1 {
			t.Fatalf("down: %+v, %v", state, err)
		}
		first := d.fresh(t)
		text, err := os.ReadFile(filepath.Join(string(d.dialect), "0001_store.up.sql"))
		if err != nil {
			t.Fatal(err)
		}
		first.exec(t, string(text))
		want, got := first.query(t, schema), d.query(t, schema)
		got = slices.DeleteFunc(got, func(line string) bool { return strings.Contains(line, "byre_schema") })
		if !slices.Equal(want, got) {
			t.Errorf("down from 2:\n%s\n\nthe first release's:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// A replica of the first release may write after another replica has migrated. Its statements name
// no owner, and triggers set it.
func TestOwners_OfRowsOfAnOlderReplica(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	d.at(t, 2)
	d.exec(t, stored)
	want := []string{"clusterroles builtin", "pods builtin", "widgets custom", "things custom", "storageversions builtin"}
	if got := d.query(t, objectOwners); !slices.Equal(got, want) {
		t.Errorf("objects: %q, want %q", got, want)
	}
	// An object that it updates keeps its owner, in the log too.
	d.exec(t, `UPDATE objects SET owner = 'custom' WHERE resource = 'storageversions'`)
	d.exec(t, `INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, namespace, name, uid, replaces, created_revision, form, value)
SELECT 8, time, 'delete', '', '', '', "group", resource, namespace, name, uid, revision, created_revision, form, value FROM objects WHERE resource = 'storageversions'`)
	if got := d.query(t, `SELECT owner FROM changes WHERE revision = 8`); !slices.Equal(got, []string{"custom"}) {
		t.Errorf("a delete of a custom object is logged as %q", got)
	}
}
