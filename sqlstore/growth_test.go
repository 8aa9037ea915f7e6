package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// TestGrowth_ReadsAndCompactionKeepTheirSpeed compares a small store with a large one, of
// BYRE_GROWTH objects and BYRE_GROWTH_CHANGES changes of each (make growth): reads are as
// fast, and a compaction of all history keeps up with the writers, leaves them their time,
// and gives space back.
func TestGrowth_ReadsAndCompactionKeepTheirSpeed(t *testing.T) {
	objects, ok := storetest.Growth()
	if !ok {
		t.Skip("BYRE_GROWTH is not a number of objects")
	}
	changes, err := strconv.Atoi(os.Getenv("BYRE_GROWTH_CHANGES"))
	if err != nil || changes < 2 {
		t.Fatalf("BYRE_GROWTH_CHANGES is %q, want 2 or more", os.Getenv("BYRE_GROWTH_CHANGES"))
	}
	for _, database := range []struct {
		name string
		open func(*testing.T, sqlstore.Snapshot) (driver sqlstore.Driver, path string)
	}{{"SQLite", loadSQLite}, {"PostgreSQL", loadPostgres}} {
		t.Run(database.name, func(t *testing.T) {
			const few = 10_000
			small, _ := database.open(t, grown(few, changes))
			begun := time.Now()
			large, path := database.open(t, grown(objects, changes))
			t.Logf("loaded %d objects and %d changes in %v", objects, changes*objects, time.Since(begun).Round(time.Second))
			compareReads(t, readsOf(t.Context(), small, few, changes), readsOf(t.Context(), large, objects, changes), 1.5)
			if err := small.Close(); err != nil {
				t.Fatal(err)
			}
			size := sizeOf(t, large)
			measureCompaction(t, large, int64(changes*objects))
			begun = time.Now()
			compactAll(t, large)
			t.Logf("compacted the rest in %v", time.Since(begun).Round(time.Second))
			left := sizeOf(t, large)
			if err := large.Close(); err != nil {
				t.Fatal(err)
			}
			if path != "" { // SQLite shortens the file when Close copies the WAL back
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if left = info.Size(); float64(left) > 0.6*float64(size) {
					t.Errorf("the file has %d bytes after the compaction, and had %d with all history: want at most 60 %%", left, size)
				}
			}
			t.Logf("size: %d MiB with all history, %d MiB without any", size>>20, left>>20)
		})
	}
}

func sizeOf(t *testing.T, driver sqlstore.Driver) int64 {
	t.Helper()
	size, err := driver.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// compactAll compacts all history without pauses.
func compactAll(t *testing.T, driver sqlstore.Driver) {
	t.Helper()
	state, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	histories, err := driver.Histories(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const limit = 5000
	for _, h := range histories {
		for n := limit; n == limit; {
			if n, _, err = driver.DeleteHistory(t.Context(),
				sqlstore.Deletion{Of: h.Resource, UpTo: state.Revision, Limit: limit}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if exclusive, ok := driver.(sqlstore.Exclusive); ok {
		for done := false; !done; {
			if done, err = exclusive.Shrink(t.Context(), limit); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// objectsEach is the number of objects in a namespace.
const objectsEach = 100

func grownKey(i int) sqlstore.Key {
	return sqlstore.Key{
		Group: "", Resource: "resource" + strconv.Itoa(i/objectsEach%100),
		Namespace: fmt.Sprintf("namespace-%05d", i/objectsEach), Name: fmt.Sprintf("name-%07d", i),
	}
}

func grownValue() []byte { return []byte(`{"spec":"` + strings.Repeat("x", 500) + `"}`) }

// grown returns the snapshot of a store in which all objects were created, and then updated
// in turn until each had changesEach changes.
func grown(objects, changesEach int) sqlstore.Snapshot {
	n, last, now, value := int64(objects), int64(objects*changesEach), time.Now(), grownValue()
	author := sqlstore.Author{User: "someone", Verb: "update"}
	record := func(i int64) sqlstore.Record {
		return sqlstore.Record{Key: grownKey(int(i)), UID: "8cd0c3a4-4a8e-4d05-a3f3-6f5bb1d3d6a6", Created: i + 1,
			Revision: last - n + i + 1, Encoding: "v1", Value: value}
	}
	all := func(yield func(*sqlstore.ObjectRow, error) bool) {
		for i := range n {
			if !yield(&sqlstore.ObjectRow{Record: record(i), Time: now, Author: author}, nil) {
				return
			}
		}
	}
	changes := func(yield func(*sqlstore.ChangeRow, error) bool) {
		for i := range last {
			r := record(i % n)
			c := sqlstore.ChangeRow{Key: r.Key, Op: sqlstore.Create, Revision: i + 1, Time: now, Author: author, UID: r.UID,
				Created: r.Created}
			if i >= n {
				c.Op, c.Replaces, c.Encoding, c.Value = sqlstore.Update, i-n+1, r.Encoding, value
			}
			if !yield(&c, nil) {
				return
			}
		}
	}
	return sqlstore.Snapshot{
		Header:  sqlstore.Header{Revision: last, Epoch: "grown", Time: now, ObjectCount: n},
		Objects: iter.Seq2[*sqlstore.ObjectRow, error](all), Changes: iter.Seq2[*sqlstore.ChangeRow, error](changes),
	}
}

func loadSQLite(t *testing.T, s sqlstore.Snapshot) (sqlstore.Driver, string) {
	path := filepath.Join(t.TempDir(), "byre.db")
	if err := sqlite.Load(t.Context(), path, s); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver, path
}

func loadPostgres(t *testing.T, s sqlstore.Snapshot) (sqlstore.Driver, string) {
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Load(t.Context(), dsn, s); err != nil {
		t.Fatal(err)
	}
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{AllowLoss: true})
	if err != nil {
		t.Fatal(err)
	}
	return driver, ""
}

// readsOf returns reads, by name. place is the number of a read, 0 to 99: each place has
// another namespace and another revision, and the places are spread over the store.
func readsOf(ctx context.Context, driver sqlstore.Driver, objects, changesEach int) map[string]func(place int) error {
	// past returns a revision after the creation of all objects, history any revision.
	past := func(place int) int64 { return int64(objects + place*((changesEach-1)*objects/objectsEach)) }
	history := func(place int) int64 { return int64(place * (changesEach * objects / objectsEach)) }
	list := func(place int, at int64, limit int) error {
		k := grownKey(place % objectsEach * (objects / objectsEach))
		_, err := driver.List(ctx, sqlstore.Query{
			Range: sqlstore.Range{Group: k.Group, Resource: k.Resource, Namespace: k.Namespace}, At: at, Limit: limit,
		}, func(sqlstore.Record) error { return nil })
		return err
	}
	return map[string]func(int) error{
		"get": func(place int) error {
			_, _, err := driver.Get(ctx, grownKey(place%objectsEach*(objects/objectsEach)))
			return err
		},
		"page of 50":              func(place int) error { return list(place, 0, 50) },
		"list of a namespace":     func(place int) error { return list(place, 0, 0) },
		"list at a past revision": func(place int) error { return list(place, past(place), 0) },
		"100 changes to resume after": func(place int) error {
			_, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: history(place), Limit: 100})
			return err
		},
	}
}

// compareReads compares the durations of the reads of two stores: those of the large one may take
// most times as long. A tenth of the reads stays below the duration that counts, because other load
// on the machine affects the shortest ones least. It reads each place once before it measures, so
// that the pages are in memory. It alternates between the stores, so that other load affects both
// alike.
func compareReads(t *testing.T, small, large map[string]func(place int) error, most float64) {
	t.Helper()
	for name := range small {
		var took [2][]time.Duration
		for i := range 4 * objectsEach {
			for n, read := range []func(int) error{small[name], large[name]} {
				begun := time.Now()
				if err := read(i % objectsEach); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if i >= objectsEach {
					took[n] = append(took[n], time.Since(begun))
				}
			}
		}
		for n := range took {
			slices.Sort(took[n])
		}
		before, after := took[0][len(took[0])/10], took[1][len(took[1])/10]
		ratio := float64(after) / float64(before)
		t.Logf("%s: %v, %.2f times that of the small store (%v)", name, after, ratio, before)
		if ratio > most {
			t.Errorf("%s takes %.2f times as long, want at most %.1f", name, ratio, most)
		}
	}
}

// measureCompaction counts updates, made as fast as 16 writers can, without and with a
// compaction of the changes that were loaded.
func measureCompaction(t *testing.T, driver sqlstore.Driver, loaded int64) {
	store := sqlstore.New(driver, sqlstore.Options{Retention: -1, RetentionChanges: -1})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = store.Run(ctx) })
	var written atomic.Int64
	const writers = 16
	for w := range writers {
		running.Go(func() {
			for i, revisions := 0, map[int]int64{}; ctx.Err() == nil; i++ {
				n := w + writers*(i%200)
				if revisions[n] == 0 {
					r, _, err := driver.Get(ctx, grownKey(n))
					if err != nil {
						continue
					}
					revisions[n] = r.Revision
				}
				c, err := store.Commit(ctx,
					sqlstore.Write{Op: sqlstore.Update, Key: grownKey(n), Replaces: revisions[n], UID: "u", Value: grownValue()})
				if err == nil {
					revisions[n] = c.Revision
					written.Add(1)
				} else if !errors.Is(err, context.Canceled) && !errors.Is(err, sqlstore.ErrClosed) {
					t.Error(err)
					return
				}
			}
		})
	}
	// The two measurements alternate, so that other load on the machine affects both alike.
	var alone, during rate
	start, err := driver.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, done := 0, false; !done && i < growthWindows; i++ {
		alone.measure(&written, func() { time.Sleep(growthWindow) })
		during.measure(&written, func() {
			window, cancel := context.WithTimeout(ctx, growthWindow)
			defer cancel()
			_, err := store.CompactOlder(window, sqlstore.Compaction{UpTo: loaded})
			if done = err == nil; err != nil && window.Err() == nil {
				t.Error(err)
				done = true
			}
		})
	}
	end, err := driver.State(ctx)
	if err != nil {
		t.Error(err)
	}
	cancel()
	running.Wait()
	compacted, share := float64(end.Compacted-start.Compacted)/during.seconds, during.perSecond()/alone.perSecond()
	t.Logf("writes: %.0f/s alone, %.0f/s during the compaction (%.2f); compacted: %.0f changes/s",
		alone.perSecond(), during.perSecond(), share, compacted)
	if share < 0.8 {
		t.Errorf("during the compaction there are %.2f times as many writes as without, want 0.8", share)
	}
	if compacted < during.perSecond() {
		t.Errorf("%.0f changes are compacted and %.0f are written a second, want at least as many compacted", compacted,
			during.perSecond())
	}
}

// growthWindow is how long writes are counted without a compaction, and then with one;
// growthWindows is the greatest number of such pairs.
const (
	growthWindow  = 10 * time.Second
	growthWindows = 15
)

// rate is a count and the seconds in which it was counted.
type rate struct{ count, seconds float64 }

func (r *rate) measure(counter *atomic.Int64, f func()) {
	first, begun := counter.Load(), time.Now()
	f()
	r.count += float64(counter.Load() - first)
	r.seconds += time.Since(begun).Seconds()
}

func (r *rate) perSecond() float64 { return r.count / r.seconds }

// TestGrowth_ReadsDoNotGrowWithHistory compares reads of the past of a store with 10,010 changes
// and of one of the same objects with many more: 100,000, or BYRE_GROWTH_HISTORY (make growth).
func TestGrowth_ReadsDoNotGrowWithHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("loads 100,000 changes")
	}
	// A read that grows with history takes ten times as long in the short form. The limit
	// leaves room for other load on the machine, and for the plans that PostgreSQL makes of some
	// queries of a large store each time.
	const most = 3.0
	changes := int64(100_000)
	if text := os.Getenv("BYRE_GROWTH_HISTORY"); text != "" {
		var err error
		if changes, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for name, open := range map[string]func(*testing.T, sqlstore.Snapshot) (sqlstore.Driver, string){
		"SQLite": loadSQLite, "PostgreSQL": loadPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			var reads [2]map[string]func(int) error
			for i, n := range []int64{quietObjects + 2*busyObjects, changes} {
				begun := time.Now()
				driver, _ := open(t, busyStore(n))
				defer driver.Close()
				t.Logf("loaded %d changes in %v", n, time.Since(begun).Round(time.Second))
				reads[i] = pastReads(t.Context(), driver, n)
				if name == "PostgreSQL" { // it would count the resource's own changes in a round trip of its own
					delete(reads[i], beforeOthers)
				}
			}
			compareReads(t, reads[0], reads[1], most)
		})
	}
}

// A busy store has the first objects in a resource of which nothing changes, and the others in
// one that is updated all the time.
const quietObjects, busyObjects = 10, 5000

// otherChanges are the last changes, those of an object of a third resource. A page at a revision
// before them may examine so many changes only if they are its own resource's.
const otherChanges = 20_000

// seldomChanges are those of one object of the busy resource, before otherChanges.
const seldomChanges = 20

var (
	otherKey  = sqlstore.Key{Resource: "other", Namespace: "namespace", Name: "name"}
	seldomKey = sqlstore.Key{Resource: "busy", Namespace: "namespace-00", Name: "seldom"}
)

func busyKey(i int64) sqlstore.Key {
	if i < quietObjects {
		return sqlstore.Key{Resource: "quiet", Namespace: "namespace", Name: fmt.Sprint("name-", i)}
	}
	i -= quietObjects
	return sqlstore.Key{Resource: "busy", Namespace: fmt.Sprintf("namespace-%02d", i/objectsEach),
		Name: fmt.Sprintf("name-%04d", i)}
}

// changedAt is the time of a change of a busy store, of which there is one each microsecond.
func changedAt(revision int64) time.Time {
	return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(revision) * time.Microsecond)
}

// busyStore returns the snapshot of a busy store after a number of changes, and then seldomChanges and
// otherChanges. Its busy objects were updated in turn.
func busyStore(changes int64) sqlstore.Snapshot {
	const objects = quietObjects + busyObjects
	seldom, last := changes+seldomChanges, changes+seldomChanges+otherChanges
	author, value := sqlstore.Author{User: "someone", Verb: "update"}, []byte(`{"spec":"x"}`)
	// changed returns the object that a revision changes, and the revision that it replaces;
	// 0 for a create.
	changed := func(revision int64) (object, replaced int64) {
		if revision <= objects {
			return revision - 1, 0
		}
		return quietObjects + (revision-objects-1)%busyObjects, revision - busyObjects
	}
	all := func(yield func(*sqlstore.ObjectRow, error) bool) {
		for i := range int64(objects) {
			revision := i + 1
			if i >= quietObjects {
				revision += (changes - revision) / busyObjects * busyObjects
			}
			r := sqlstore.Record{Key: busyKey(i), UID: "uid", Created: i + 1, Revision: revision, Encoding: "v1", Value: value}
			if !yield(&sqlstore.ObjectRow{Record: r, Time: changedAt(revision), Author: author}, nil) {
				return
			}
		}
		for _, r := range []sqlstore.Record{{Key: seldomKey, Created: changes + 1, Revision: seldom},
			{Key: otherKey, Created: seldom + 1, Revision: last}} {
			r.UID, r.Encoding, r.Value = "uid", "v1", value
			if !yield(&sqlstore.ObjectRow{Record: r, Time: changedAt(r.Revision), Author: author}, nil) {
				return
			}
		}
	}
	log := func(yield func(*sqlstore.ChangeRow, error) bool) {
		for revision := int64(1); revision <= changes; revision++ {
			object, replaced := changed(revision)
			c := sqlstore.ChangeRow{Key: busyKey(object), Op: sqlstore.Create, Revision: revision, Time: changedAt(revision),
				Author: author, UID: "uid", Created: object + 1}
			if replaced > 0 {
				c.Op, c.Replaces, c.Encoding, c.Value = sqlstore.Update, replaced, "v1", value
			}
			if !yield(&c, nil) {
				return
			}
		}
		for revision := changes + 1; revision <= last; revision++ {
			key, created := seldomKey, changes+1
			if revision > seldom {
				key, created = otherKey, seldom+1
			}
			c := sqlstore.ChangeRow{Key: key, Op: sqlstore.Create, Revision: revision, Time: changedAt(revision), Author: author,
				UID: "uid", Created: created}
			if revision > created {
				c.Op, c.Replaces, c.Encoding, c.Value = sqlstore.Update, revision-1, "v1", value
			}
			if !yield(&c, nil) {
				return
			}
		}
	}
	return sqlstore.Snapshot{
		Header:  sqlstore.Header{Revision: last, Epoch: "busy", Time: changedAt(last), ObjectCount: objects + 2},
		Objects: iter.Seq2[*sqlstore.ObjectRow, error](all), Changes: iter.Seq2[*sqlstore.ChangeRow, error](log),
	}
}

// beforeOthers is the read that must not examine the changes of another resource.
const beforeOthers = "a counted page before another resource's changes"

// pastReads returns reads of the past, by name. A place is a number from 0 to 99.
func pastReads(ctx context.Context, driver sqlstore.Driver, changes int64) map[string]func(place int) error {
	page := func(place int, at int64, counts bool) error {
		_, err := driver.List(ctx, sqlstore.Query{
			Range: sqlstore.Range{Resource: "busy",
				After: &sqlstore.Position{Namespace: fmt.Sprintf("namespace-%02d", place%50)}},
			At: at, Limit: 50, Count: counts,
		}, func(sqlstore.Record) error { return nil })
		return err
	}
	resume := func(place int, resource string) error {
		after := quietObjects + busyObjects + int64(place)*(changes-quietObjects-busyObjects)/100
		got, err := driver.Changes(ctx,
			sqlstore.ChangesQuery{After: after, Of: &sqlstore.Resource{Resource: resource}, Limit: 100, Size: 2 << 20})
		if err == nil && (len(got) > 0) != (resource == "busy") {
			err = fmt.Errorf("%d changes of the resource %s after %d", len(got), resource, after)
		}
		return err
	}
	revisionAt := func(place int) error {
		want := int64(place)*changes/100 + 1
		got, err := driver.RevisionAt(ctx, changedAt(want))
		if err == nil && got != want {
			err = fmt.Errorf("the revision at the time of %d is %d", want, got)
		}
		return err
	}
	// oneObject reads as a list of history.byre.dev does.
	oneObject := func(int) error {
		if _, err := driver.Histories(ctx); err != nil {
			return err
		}
		of := seldomKey.Of()
		q := sqlstore.ChangesQuery{Of: &of, Namespaces: []string{seldomKey.Namespace}, Name: seldomKey.Name, Limit: 500,
			Size: 1 << 20}
		for _, want := range []int{seldomChanges, 0} {
			got, err := driver.Changes(ctx, q)
			if err != nil {
				return err
			}
			if len(got) != want {
				return fmt.Errorf("%d changes of one object after %d, want %d", len(got), q.After, want)
			}
			q.After = changes + seldomChanges
		}
		return nil
	}
	count := func(int) error {
		got, _, err := driver.CountChanges(ctx, sqlstore.Resource{Resource: "quiet"}, math.MaxInt64, 1000)
		if err == nil && got != quietObjects {
			err = fmt.Errorf("%d changes of the quiet resource", got)
		}
		return err
	}
	before := changes + seldomChanges + otherChanges - 1
	return map[string]func(int) error{
		"the 20 changes of one object":             oneObject,
		"the number of a quiet resource's changes": count,
		"the revision at a time":                   revisionAt,
		"a page at the revision before":            func(place int) error { return page(place, before, false) },
		"a counted page at the revision before":    func(place int) error { return page(place, before, true) },
		beforeOthers:                               func(place int) error { return page(place, changes-1, true) },
		"a quiet resource's watch that resumes":    func(place int) error { return resume(place, "quiet") },
		"another resource's watch that resumes":    func(place int) error { return resume(place, "busy") },
	}
}
