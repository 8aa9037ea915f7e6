package backup_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// load creates a SQLite database with the rows.
func load(t *testing.T, s sqlstore.Snapshot) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "byre.db")
	if err := sqlite.Load(t.Context(), path, s); err != nil {
		t.Fatal(err)
	}
	return path
}

func snapshotRandomRows(t *testing.T) storetest.Rows {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return storetest.RandomRows(t, rand.New(rand.NewPCG(seed, 0)))
}

// At returns, for revisions of the history, the objects of a list at that revision.
func TestAt_IsWhatAListHas(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	rows := snapshotRandomRows(t)
	path := load(t, rows.Snapshot())
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	step := 1 + (rows.Revision-rows.Compacted)/50
	for revision := max(rows.Compacted, 1); revision <= rows.Revision; revision += step {
		s, err := backup.At(rows.Snapshot(), revision)
		if err != nil {
			t.Fatal(err)
		}
		then, err := storetest.Collect(s.Checked())
		if err != nil {
			t.Fatal(err)
		}
		history := slices.DeleteFunc(slices.Clone(rows.Changes), func(c *sqlstore.ChangeRow) bool {
			return c.Revision > revision
		})
		if then.Revision != revision || then.Compacted != rows.Compacted || len(then.Changes) != len(history) {
			t.Fatalf("at revision %d: %+v, with %d changes, want %d", revision, then.Header, len(then.Changes), len(history))
		}
		var got []sqlstore.Record
		for _, object := range then.Objects {
			got = append(got, object.Record)
		}
		slices.SortFunc(got, func(a, b sqlstore.Record) int { return a.Key.Compare(b.Key) })
		if diff := gocmp.Diff(listAll(t, driver, revision), got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("at revision %d (-list +at):\n%s", revision, diff)
		}
	}
	for _, revision := range []int64{rows.Compacted - 1, rows.Revision + 1} {
		var history *backup.HistoryError
		if _, err := backup.At(rows.Snapshot(), revision); !errors.As(err, &history) {
			t.Errorf("at revision %d: %v", revision, err)
		}
	}
}

// anHour is the age of a backup that is restored.
const anHour = time.Hour

func listAll(t *testing.T, driver sqlstore.Driver, revision int64) (all []sqlstore.Record) {
	t.Helper()
	for _, group := range []string{"", "apps"} {
		for _, resource := range []string{"pods", "pods2"} {
			for _, owner := range []sqlstore.Owner{sqlstore.BuiltIn, sqlstore.Custom} {
				q := sqlstore.Query{Range: sqlstore.Range{Group: group, Resource: resource, Owner: owner}, At: revision}
				if _, err := driver.List(t.Context(), q, func(r sqlstore.Record) error {
					all = append(all, r)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b sqlstore.Record) int { return a.Key.Compare(b.Key) })
	return all
}

// At returns the author of an object from the change that wrote it.
func TestAt_KnowsAuthorsOfItsHistory(t *testing.T) {
	t.Parallel()
	rows := snapshotRandomRows(t)
	written := make(map[int64]*sqlstore.ChangeRow)
	for _, change := range rows.Changes {
		written[change.Revision] = change
	}
	current := make(map[int64]bool)
	for _, object := range rows.Objects {
		current[object.Revision] = true
	}
	for revision := rows.Compacted; revision <= rows.Revision; revision++ {
		s, err := backup.At(rows.Snapshot(), revision)
		if err != nil {
			t.Fatal(err)
		}
		for object, err := range s.Objects {
			if err != nil {
				t.Fatal(err)
			}
			change := written[object.Revision]
			switch {
			case current[object.Revision]:
			case change == nil && (object.Author != sqlstore.Author{} || !object.Time.Equal(rows.Time)):
				t.Errorf("revision %d is compacted, and written by %+v", object.Revision, object.Author)
			case change != nil && (object.Author != withoutAudit(change.Author) || !object.Time.Equal(change.Time)):
				t.Errorf("revision %d: by %+v at %v, want %+v at %v", object.Revision, object.Author, object.Time, change.Author,
					change.Time)
			}
		}
	}
}

func withoutAudit(a sqlstore.Author) sqlstore.Author {
	a.AuditID = ""
	return a
}

func TestRevisionAt_IsBeforeTheFirstLaterChange(t *testing.T) {
	t.Parallel()
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	rows := storetest.Rows{Header: sqlstore.Header{Revision: 13, Compacted: 10, CompleteAfter: 10, Epoch: "e",
		Time: start.Add(time.Hour)}}
	for i := range 3 {
		rows.Changes = append(rows.Changes,
			&sqlstore.ChangeRow{Revision: int64(11 + i), Time: start.Add(time.Duration(i) * time.Minute)})
	}
	rows.Retained = map[sqlstore.Resource]sqlstore.Retained{{Resource: "events"}: {ResumableAfter: 10, CompleteAfter: 10},
		{Resource: "pods"}: {ResumableAfter: 9, CompleteAfter: 9}}
	for offset, want := range map[time.Duration]int64{
		0: 11, time.Second: 11, time.Minute: 12, 119 * time.Second: 12, 2 * time.Minute: 13, time.Hour: 13,
		-time.Second: 0, time.Hour + 1: 0,
	} {
		got, err := backup.RevisionAt(rows.Snapshot(), start.Add(offset))
		var history *backup.HistoryError
		if got != want || (want == 0) != errors.As(err, &history) || err != nil &&
			!strings.Contains(err.Error(), "from 2030-01-01T00:00:00Z (older changes of events are deleted) to ") {
			t.Errorf("after %v: revision %d, %v; want %d", offset, got, err, want)
		}
	}
}

// A restored store continues beyond the bump, and everything before is compacted: watches do not
// resume there, and lists do not read there. SQL has the history of before, also of an earlier moment.
func TestRestored_ContinuesCompactedWithItsHistory(t *testing.T) {
	t.Parallel()
	rows := snapshotRandomRows(t)
	before, err := backup.At(rows.Snapshot(), rows.Compacted+(rows.Revision-rows.Compacted)/2)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]sqlstore.Snapshot{"latest": rows.Snapshot(), "earlier": before} {
		restored := backup.Restored(s, 1_000_000_000, "next", s.Time.Add(anHour))
		copied := load(t, s)
		for dialect, open := range map[string]func() (sqlstore.Driver, func() []string){
			"sqlite": func() (sqlstore.Driver, func() []string) {
				path := load(t, restored)
				driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return driver, func() []string { return historyOf(t, path) }
			},
			"postgres": func() (sqlstore.Driver, func() []string) {
				dsn := pgtest.DSN(t)
				if err := postgres.Load(t.Context(), dsn, restored); err != nil {
					t.Fatal(err)
				}
				driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return driver, func() []string { return historyOfPostgres(t, dsn) }
			},
		} {
			driver, history := open()
			defer driver.Close()
			state, err := driver.State(t.Context())
			if err != nil || state.Revision != restored.Revision || state.Compacted != state.Revision ||
				!strings.HasPrefix(state.Epoch, "next") {
				t.Errorf("%s, %s: state %+v, %v", name, dialect, state, err)
			}
			if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: s.Revision, Limit: 1}); !errors.Is(err,
				sqlstore.ErrCompacted) {
				t.Errorf("%s, %s: changes after the last revision before the restore: %v", name, dialect, err)
			}
			for _, of := range []sqlstore.Resource{{Resource: "pods"},
				{Group: "apps", Resource: "pods2", Owner: sqlstore.Custom}, {Resource: "none"}} {
				q := sqlstore.Query{Range: sqlstore.Range{Group: of.Group, Resource: of.Resource, Owner: of.Owner}, At: s.Revision}
				if _, err := driver.List(t.Context(), q, func(sqlstore.Record) error {
					return nil
				}); !errors.Is(err, sqlstore.ErrCompacted) {
					t.Errorf("%s, %s: list of %v at the last revision before the restore: %v", name, dialect, of, err)
				}
			}
			if diff := gocmp.Diff(historyOf(t, copied), history()); diff != "" {
				t.Errorf("%s, %s: the view history (-before the restore +after):\n%s", name, dialect, diff)
			}
			write := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "after"}, UID: "u",
				Value: []byte(`{}`)}
			if o, err := driver.Commit(t.Context(), []sqlstore.Write{write}); err != nil ||
				o[0].Revision != restored.Revision+1 {
				t.Errorf("%s, %s: the next write: %+v, %v", name, dialect, o, err)
			}
			if changes, err := driver.Changes(t.Context(),
				sqlstore.ChangesQuery{After: restored.Revision, Limit: 10}); err != nil || len(changes) != 1 {
				t.Errorf("%s, %s: changes after the restore: %+v, %v", name, dialect, changes, err)
			}
		}
	}
}

// The history of a backup that is restored an hour later is kept for an hour longer, and that of which
// nobody knew how long it was to be kept, or which was kept for ever, as it was.
func TestRestored_KeepsTheHistoryForLonger(t *testing.T) {
	t.Parallel()
	rows := storetest.WholeRows(t, rand.New(rand.NewPCG(5, 5)))
	first := rows.Changes[0].Of()
	for before, after := range map[time.Duration]time.Duration{24 * time.Hour: 25 * time.Hour, -time.Second: -time.Second,
		0: 0} {
		rows.Retained = map[sqlstore.Resource]sqlstore.Retained{first: {RetainedFor: before}}
		restored := backup.Restored(rows.Snapshot(), 1000, "next", rows.Time.Add(anHour))
		if got := rows.RetainedOf(first).RetainedFor; got != before {
			t.Errorf("the backup's is %v now, was %v", got, before)
		}
		if err := sqlite.ReadSnapshot(t.Context(), load(t, restored), func(s sqlstore.Snapshot) error {
			if got := s.RetainedOf(first); got.RetainedFor != after || got.ResumableAfter != restored.Revision {
				t.Errorf("restored, the history is %+v; want it kept for %v", got, after)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// historyOf returns the rows of the view history of a SQLite database.
func historyOf(t *testing.T, path string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sqlite3", "-readonly", "-list", "-newline", "\x1e", path,
		storetest.HistoryQuery).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(out), "\x1e")
}

func historyOfPostgres(t *testing.T, dsn string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "psql", "--no-psqlrc", "--quiet", "--no-align", "--tuples-only",
		"--record-separator=\x1e",
		"--command="+storetest.HistoryQuery, dsn).Output()
	if err != nil {
		t.Fatal(err)
	}
	return append(strings.Split(strings.TrimSuffix(string(out), "\n"), "\x1e"), "")
}

// The digest of a store is the same on both databases and for every order of rows, and
// differs if any field does.
func TestDigest_ComparesDatabases(t *testing.T) {
	t.Parallel()
	rows := snapshotRandomRows(t)
	want, err := backup.DigestOf(rows.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	path, dsn := load(t, rows.Snapshot()), pgtest.DSN(t)
	var got []backup.Digest
	read := func(s sqlstore.Snapshot) error {
		d, err := backup.DigestOf(s)
		got = append(got, d)
		return err
	}
	if err := sqlite.ReadSnapshot(t.Context(), path, func(s sqlstore.Snapshot) error {
		return cmp.Or(read(s), postgres.Load(t.Context(), dsn, s))
	}); err != nil {
		t.Fatal(err)
	}
	if err := postgres.ReadSnapshot(t.Context(), dsn, read); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(rows.Objects)
	if err := read(rows.Snapshot()); err != nil {
		t.Fatal(err)
	}
	for i, d := range got {
		if d != want {
			t.Errorf("digest %d is %v, want %v", i, d, want)
		}
	}
	for name, spoil := range map[string]func(*sqlstore.ObjectRow){
		"name": func(r *sqlstore.ObjectRow) { r.Name += "x" }, "owner": func(r *sqlstore.ObjectRow) { r.Owner ^= 1 },
		"uid": func(r *sqlstore.ObjectRow) { r.UID += "x" }, "encoding": func(r *sqlstore.ObjectRow) { r.Encoding += "x" },
		"value": func(r *sqlstore.ObjectRow) {
			r.Value = []byte(`1`)
		}, "time": func(r *sqlstore.ObjectRow) { r.Time = r.Time.Add(time.Microsecond) },
		"expiry": func(r *sqlstore.ObjectRow) {
			r.Expires = r.Expires.Add(time.Hour)
		}, "verb": func(r *sqlstore.ObjectRow) { r.Author.Verb += "x" },
		"manager": func(r *sqlstore.ObjectRow) {
			r.Author.Manager += "x"
		}, "real user": func(r *sqlstore.ObjectRow) { r.Author.RealUser += "x" },
		"subresource": func(r *sqlstore.ObjectRow) {
			r.Author.Subresource += "x"
		}, "generation": func(r *sqlstore.ObjectRow) { r.Generation++ },
	} {
		object := *rows.Objects[0]
		spoil(&object)
		other := rows
		other.Objects = append([]*sqlstore.ObjectRow{&object}, rows.Objects[1:]...)
		if d, err := backup.DigestOf(other.Snapshot()); err != nil || d == want {
			t.Errorf("another %s: %v, %v", name, d, err)
		}
	}
}

// ReadIdle refuses a store that is in use.
func TestReadIdle_RefusesAStoreInUse(t *testing.T) {
	t.Parallel()
	path := load(t, snapshotRandomRows(t).Snapshot())
	ignore := func(sqlstore.Snapshot) error { return nil }
	if err := sqlite.ReadIdle(t.Context(), path, ignore); err != nil {
		t.Error(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var inUse *migrations.InUseError
	if err := sqlite.ReadIdle(t.Context(), path, ignore); !errors.As(err, &inUse) {
		t.Errorf("of a SQLite database in use: %v", err)
	}
	driver.Close()

	dsn := pgtest.DSN(t)
	if err := postgres.Load(t.Context(), dsn, snapshotRandomRows(t).Snapshot()); err != nil {
		t.Fatal(err)
	}
	if err := postgres.ReadIdle(t.Context(), dsn, ignore); err != nil {
		t.Error(err)
	}
	server, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := postgres.ReadIdle(t.Context(), dsn, func(sqlstore.Snapshot) error {
		key := sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: "late"}
		_, err := server.Commit(t.Context(), []sqlstore.Write{{Op: sqlstore.Create, Key: key, UID: "u", Value: []byte(`{}`)}})
		return err
	}); err == nil || !strings.Contains(err.Error(), "do not use the copy") {
		t.Errorf("of a PostgreSQL database that is written to meanwhile: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Maintain(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	storetest.Eventually(t, "a PostgreSQL database in use is not idle", func() bool {
		var inUse *migrations.InUseError
		return errors.As(postgres.ReadIdle(t.Context(), dsn, ignore), &inUse)
	})
}

// A reader of a snapshot that no store can have gets an error, whatever is wrong with it.
func TestChecked_RefusesWhatNoStoreHas(t *testing.T) {
	t.Parallel()
	for name, spoil := range storetest.Breaks {
		rows := storetest.RandomRows(t, rand.New(rand.NewPCG(3, 3))).WithoutKept()
		if _, err := backup.DigestOf(rows.Snapshot()); err != nil {
			t.Fatal(err)
		}
		spoil(&rows)
		if _, err := backup.DigestOf(rows.Snapshot()); !errors.Is(err, sqlstore.ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
