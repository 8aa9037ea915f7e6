package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"byre/sqlstore"
)

// database is a database that may not have been migrated yet. ReadSnapshot and Load are those of
// its driver.
type database struct {
	// Open migrates the database and opens it.
	Open         func(*testing.T) sqlstore.Driver
	ReadSnapshot func(context.Context, func(sqlstore.Snapshot) error) error
	Load         func(context.Context, sqlstore.Snapshot) error
}

// runSnapshots runs the tests of ReadSnapshot and Load. create returns a database that does not
// exist yet, or has no tables.
func runSnapshots(t *testing.T, create func(*testing.T) database) {
	for name, test := range map[string]func(*testing.T, func(*testing.T) database){
		"RoundTrip":   testRoundTrip,
		"Consistent":  testConsistent,
		"EmptyStore":  testEmptyStore,
		"RefusesData": testRefusesData,
		"AllOrNone":   testAllOrNone,
		"Broken":      testBroken,
		"ClockAhead":  testClockAhead,
		"Past":        testPast,
	} {
		t.Run(name, func(t *testing.T) { test(t, create) })
	}
}

func read(t *testing.T, db database) (rows Rows) {
	t.Helper()
	err := db.ReadSnapshot(t.Context(), func(s sqlstore.Snapshot) (err error) {
		rows, err = Collect(s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func load(t *testing.T, db database, rows Rows) {
	t.Helper()
	if err := db.Load(t.Context(), rows.Snapshot()); err != nil {
		t.Fatal(err)
	}
}

func openFixture(t *testing.T, db database) fixture {
	t.Helper()
	driver := db.Open(t)
	t.Cleanup(func() { driver.Close() })
	return fixture{TB: t, Driver: driver}
}

// compareRows compares snapshots, except for the times when they were taken.
func compareRows(t *testing.T, want, got Rows) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(sqlstore.Header{}, "Time"), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("snapshots differ (-want +got):\n%s", diff)
	}
}

// A database that is loaded with a snapshot has the same snapshot, answers as the first one did, and
// continues at the next revision.
func testRoundTrip(t *testing.T, create func(*testing.T) database) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	want := RandomRows(t, rand.New(rand.NewPCG(seed, 0)))
	first := create(t)
	load(t, first, want)
	compareRows(t, want, read(t, first))
	f := openFixture(t, first)
	// The driver's own writes are part of the snapshot too.
	w := walk{driver: f, model: f, random: rand.New(rand.NewPCG(seed, 1))}
	for range 20 {
		k := w.key()
		f.commit(w.writeOf(k))
	}
	want = read(t, first)

	second := create(t)
	load(t, second, want)
	compareRows(t, want, read(t, second))
	g := openFixture(t, second)
	a, b := f.state(), g.state()
	a.Time, b.Time = time.Time{}, time.Time{}
	if a != b {
		t.Errorf("the state is %+v, was %+v", b, a)
	}
	if diff := cmp.Diff(f.changes(a.Compacted), g.changes(a.Compacted)); diff != "" {
		t.Errorf("changes differ:\n%s", diff)
	}
	at := a.Compacted + (a.Revision-a.Compacted)/2
	q := sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}, At: at}
	x, _ := f.list(q)
	y, _ := g.list(q)
	if diff := cmp.Diff(x, y); diff != "" {
		t.Errorf("lists at revision %d differ:\n%s", at, diff)
	}
	if revision := g.revision(createOf("after the load")); revision != a.Revision+1 {
		t.Errorf("the first write after the load has revision %d, want %d", revision, a.Revision+1)
	}
}

// testPast loads a store that has begun an epoch, as a restore does. The past can be listed as it was before, while
// exact reads end at the epoch; each later deletion ends the past of its resource.
func testPast(t *testing.T, create func(*testing.T) database) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	model := randomModel(t, rand.New(rand.NewPCG(seed, 0)))
	m := fixture{TB: t, Driver: model}
	histories, err := model.Histories(t.Context())
	if err != nil || len(histories) < 2 {
		t.Fatalf("histories: %v, %v", histories, err)
	}
	slices.SortFunc(histories, func(a, b sqlstore.History) int { return a.Compare(b.Resource) })
	last := m.state().Revision
	// The first resource has lost the beginning of its past before.
	if _, _, err := model.DeleteHistory(t.Context(),
		sqlstore.Deletion{Of: histories[0].Resource, UpTo: last / 4, Limit: limitOfDeletion}); err != nil {
		t.Fatal(err)
	}
	model.BeginEpoch("second", 1000)
	db := create(t)
	load(t, db, model.rows())
	f := openFixture(t, db)
	compare := func(what string, of sqlstore.Resource) {
		t.Helper()
		now := m.state().Revision
		for at := int64(1); at <= now; at++ {
			if at == last+3 {
				at = last + 998 // the epoch has skipped these
			}
			q := sqlstore.Query{Range: sqlstore.Range{Group: of.Group, Resource: of.Resource, Owner: of.Owner}, At: at}
			_, _, err := collect(t.Context(), f.Driver, q)
			if want := at < last+1000; errors.Is(err, sqlstore.ErrCompacted) != want {
				t.Errorf("%s: an exact list of %v at revision %d of %d: %v", what, of, at, now, err)
			}
			q.Past = true
			got, _, err := collect(t.Context(), f.Driver, q)
			want, _, wantErr := collect(t.Context(), model, q)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); !errors.Is(err, wantErr) || diff != "" {
				t.Fatalf("%s: %v at revision %d: %v, want %v\n%s", what, of, at, err, wantErr, diff)
			}
		}
	}
	// Of a resource without objects and changes a snapshot does not tell whether it ever had some.
	none := sqlstore.Resource{Group: "none", Resource: "none"}
	model.completeAfter[none] = model.lastCompleteAfter()
	for _, h := range histories {
		compare("after the epoch", h.Resource)
	}
	// What is written since is of the same past, also of a resource that is new.
	for _, write := range []sqlstore.Write{createOf("new"), createIn(none, "a"), createIn(none, "b")} {
		if a, b := m.revision(write), f.revision(write); a != b {
			t.Fatalf("revision %d, want %d", b, a)
		}
	}
	for _, of := range []sqlstore.Resource{histories[0].Resource, histories[1].Resource, none} {
		compare("after writes", of)
	}
	for _, upTo := range []int64{last / 2, last + 1000} {
		for _, driver := range []sqlstore.Driver{model, f.Driver} {
			if _, _, err := driver.DeleteHistory(t.Context(),
				sqlstore.Deletion{Of: histories[1].Resource, UpTo: upTo, Limit: limitOfDeletion}); err != nil {
				t.Fatal(err)
			}
		}
		for _, of := range []sqlstore.Resource{histories[0].Resource, histories[1].Resource, none} {
			compare("after a deletion", of)
		}
	}
	ends := func(driver sqlstore.Driver) map[sqlstore.Resource][2]int64 {
		ends := map[sqlstore.Resource][2]int64{}
		histories, err := driver.Histories(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range histories {
			ends[h.Resource] = [2]int64{h.ResumableAfter, h.CompleteAfter}
		}
		return ends
	}
	if diff := cmp.Diff(ends(model), ends(f.Driver)); diff != "" {
		t.Errorf("the ends of the histories differ:\n%s", diff)
	}
}

func createIn(of sqlstore.Resource, name string) sqlstore.Write {
	return create(sqlstore.Key{Group: of.Group, Resource: of.Resource, Owner: of.Owner, Name: name}, "x")
}

func createOf(name string) sqlstore.Write { return create(key("n", name), "x") }

// A snapshot does not see what is committed after it was taken.
func testConsistent(t *testing.T, create func(*testing.T) database) {
	db := create(t)
	f := openFixture(t, db)
	f.revision(createOf("a"))
	f.revision(createOf("b"))
	var rows Rows
	err := db.ReadSnapshot(t.Context(), func(s sqlstore.Snapshot) (err error) {
		next := s.Objects
		s.Objects = func(yield func(*sqlstore.ObjectRow, error) bool) {
			for row, err := range next {
				f.revision(createOf("c-" + row.Name))
				if !yield(row, err) {
					return
				}
			}
			f.revision(update(key("n", "a"), 1, "y"))
		}
		rows, err = Collect(s.Checked())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows.Revision != 2 || len(rows.Objects) != 2 || len(rows.Changes) != 2 || string(rows.Objects[0].Value) != `"x"` {
		t.Errorf("snapshot of revision 2 has %+v", rows)
	}
	later := createOf("later")
	later.UID = "its UID"
	f.revision(later)
	if err := db.ReadSnapshot(t.Context(), func(s sqlstore.Snapshot) error {
		got, revision, err := s.Get(t.Context(), later.Key)
		if err != nil || got.UID != later.UID || string(got.Value) != string(later.Value) || revision != s.Revision {
			t.Errorf("the snapshot of revision %d has %+v, at %d, %v", s.Revision, got, revision, err)
		}
		if _, revision, err := s.Get(t.Context(), key("n", "none")); !errors.Is(err, sqlstore.ErrNotFound) ||
			revision != s.Revision {
			t.Errorf("an object that is not there: revision %d, %v", revision, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func testEmptyStore(t *testing.T, create func(*testing.T) database) {
	first, second := create(t), create(t)
	openFixture(t, first)
	want := read(t, first)
	if want.Epoch == "" || want.Time.IsZero() || len(want.Objects)+len(want.Changes) > 0 {
		t.Fatalf("an empty store has %+v", want)
	}
	load(t, second, want)
	load(t, second, want) // an empty store may be loaded again
	compareRows(t, want, read(t, second))
}

func testRefusesData(t *testing.T, create func(*testing.T) database) {
	rows := RandomRows(t, rand.New(rand.NewPCG(1, 1)))
	t.Run("an object", func(t *testing.T) {
		db := create(t)
		f := openFixture(t, db)
		f.revision(createOf("a"))
		f.Close()
		before := read(t, db)
		if err := db.Load(t.Context(), rows.Snapshot()); !errors.Is(err, sqlstore.ErrNotEmpty) {
			t.Errorf("load: %v", err)
		}
		compareRows(t, before, read(t, db))
	})
	t.Run("a revision", func(t *testing.T) {
		db := create(t)
		load(t, db, Rows{Header: sqlstore.Header{Revision: 7, Compacted: 7, CompleteAfter: 7, Epoch: "e"}})
		if err := db.Load(t.Context(), rows.Snapshot()); !errors.Is(err, sqlstore.ErrNotEmpty) {
			t.Errorf("load: %v", err)
		}
	})
}

// A Load that fails leaves an empty store, which another Load fills.
func testAllOrNone(t *testing.T, create func(*testing.T) database) {
	rows := RandomRows(t, rand.New(rand.NewPCG(2, 2)))
	errSource := errors.New("source failed")
	failing := func() sqlstore.Snapshot {
		s := rows.Snapshot()
		s.Changes = func(yield func(*sqlstore.ChangeRow, error) bool) {
			for _, row := range rows.Changes[:len(rows.Changes)/2] {
				if !yield(row, nil) {
					return
				}
			}
			yield(nil, errSource)
		}
		return s
	}
	db := create(t)
	for range 2 {
		if err := db.Load(t.Context(), failing()); !errors.Is(err, errSource) {
			t.Fatalf("load: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := rows.Snapshot()
	s.Changes = func(yield func(*sqlstore.ChangeRow, error) bool) {
		cancel()
		sequence(rows.Changes)(yield)
	}
	if err := db.Load(ctx, s); !errors.Is(err, context.Canceled) {
		t.Fatalf("load that was cancelled: %v", err)
	}
	load(t, db, rows)
	compareRows(t, rows, read(t, db))
}

func testBroken(t *testing.T, create func(*testing.T) database) {
	db := create(t)
	rows := RandomRows(t, rand.New(rand.NewPCG(3, 3)))
	objectTwice, changeMissing := rows, rows
	objectTwice.Objects = slices.Concat(rows.Objects[:1], rows.Objects[:1], rows.Objects[2:])
	changeMissing.Changes = rows.Changes[:len(rows.Changes)-1]
	for name, broken := range map[string]Rows{"object twice": objectTwice, "change missing": changeMissing} {
		if err := db.Load(t.Context(), broken.Snapshot()); !errors.Is(err, sqlstore.ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	load(t, db, rows)
	compareRows(t, rows, read(t, db))
}
