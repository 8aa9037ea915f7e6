package sqlstore_test

import (
	"context"
	"fmt"
	"iter"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"byre/sqlstore"
)

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
	for name, open := range map[string]func(*testing.T, sqlstore.Snapshot) (sqlstore.Driver, string){"SQLite": loadSQLite, "PostgreSQL": loadPostgres} {
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
	return sqlstore.Key{Resource: "busy", Namespace: fmt.Sprintf("namespace-%02d", i/objectsEach), Name: fmt.Sprintf("name-%04d", i)}
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
		for _, r := range []sqlstore.Record{{Key: seldomKey, Created: changes + 1, Revision: seldom}, {Key: otherKey, Created: seldom + 1, Revision: last}} {
			r.UID, r.Encoding, r.Value = "uid", "v1", value
			if !yield(&sqlstore.ObjectRow{Record: r, Time: changedAt(r.Revision), Author: author}, nil) {
				return
			}
		}
	}
	log := func(yield func(*sqlstore.ChangeRow, error) bool) {
		for revision := int64(1); revision <= changes; revision++ {
			object, replaced := changed(revision)
			c := sqlstore.ChangeRow{Key: busyKey(object), Op: sqlstore.Create, Revision: revision, Time: changedAt(revision), Author: author, UID: "uid", Created: object + 1}
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
			c := sqlstore.ChangeRow{Key: key, Op: sqlstore.Create, Revision: revision, Time: changedAt(revision), Author: author, UID: "uid", Created: created}
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
			Range: sqlstore.Range{Resource: "busy", After: &sqlstore.Position{Namespace: fmt.Sprintf("namespace-%02d", place%50)}},
			At:    at, Limit: 50, Count: counts,
		}, func(sqlstore.Record) error { return nil })
		return err
	}
	resume := func(place int, resource string) error {
		after := quietObjects + busyObjects + int64(place)*(changes-quietObjects-busyObjects)/100
		got, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: after, Of: &sqlstore.Resource{Resource: resource}, Limit: 100, Size: 2 << 20})
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
		q := sqlstore.ChangesQuery{Of: &of, Namespaces: []string{seldomKey.Namespace}, Name: seldomKey.Name, Limit: 500, Size: 1 << 20}
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
