package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
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
)

// TestGrowth compares a small store with a large one, of BYRE_GROWTH objects and twice as
// many changes (make growth): reads are as fast, and a compaction of all history keeps up
// with the writers, leaves them their time, and gives space back.
func TestGrowth(t *testing.T) {
	objects, err := strconv.Atoi(os.Getenv("BYRE_GROWTH"))
	if err != nil {
		t.Skip("BYRE_GROWTH is not a number of objects")
	}
	for name, open := range map[string]func(*testing.T, sqlstore.Snapshot) sqlstore.Driver{
		"SQLite": loadSQLite, "PostgreSQL": loadPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			const few = 10_000
			small := open(t, grown(few))
			before := measureReads(t, small, few)
			if err := small.Close(); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			large := open(t, grown(objects))
			defer large.Close()
			t.Logf("loaded %d objects and %d changes in %v", objects, 2*objects, time.Since(begun).Round(time.Second))
			for read, took := range measureReads(t, large, objects) {
				ratio := float64(took) / float64(before[read])
				t.Logf("%s: %v, %.2f times that of %d objects (%v)", read, took, ratio, few, before[read])
				if ratio > 1.5 {
					t.Errorf("%s takes %.2f times as long, want at most 1.5", read, ratio)
				}
			}
			measureCompaction(t, large, objects)
		})
	}
}

// objectsEach is how many objects a namespace has.
const objectsEach = 100

func grownKey(i int) sqlstore.Key {
	return sqlstore.Key{
		Group: "", Resource: "resource" + strconv.Itoa(i/objectsEach%100),
		Namespace: fmt.Sprintf("namespace-%05d", i/objectsEach), Name: fmt.Sprintf("name-%07d", i),
	}
}

func grownValue() []byte { return []byte(`{"spec":"` + strings.Repeat("x", 500) + `"}`) }

// grown is a store in which each object was created, and then updated once.
func grown(objects int) sqlstore.Snapshot {
	n, now, value := int64(objects), time.Now(), grownValue()
	author := sqlstore.Author{User: "someone", Verb: "update"}
	record := func(i int64) sqlstore.Record {
		return sqlstore.Record{Key: grownKey(int(i)), UID: "8cd0c3a4-4a8e-4d05-a3f3-6f5bb1d3d6a6", Created: i + 1, Revision: n + i + 1, Form: "v1", Value: value}
	}
	all := func(yield func(*sqlstore.ObjectRow, error) bool) {
		for i := range n {
			if !yield(&sqlstore.ObjectRow{Record: record(i), Time: now, User: author.User, Verb: author.Verb}, nil) {
				return
			}
		}
	}
	changes := func(yield func(*sqlstore.ChangeRow, error) bool) {
		for i := range 2 * n {
			r := record(i % n)
			c := sqlstore.ChangeRow{Key: r.Key, Op: sqlstore.Create, Revision: i + 1, Time: now, Author: author, UID: r.UID, Created: r.Created}
			if i >= n {
				c.Op, c.Replaces, c.Form, c.Value = sqlstore.Update, r.Created, r.Form, value
			}
			if !yield(&c, nil) {
				return
			}
		}
	}
	return sqlstore.Snapshot{
		Header:  sqlstore.Header{Revision: 2 * n, Epoch: "grown", Time: now, ObjectCount: n},
		Objects: iter.Seq2[*sqlstore.ObjectRow, error](all), Changes: iter.Seq2[*sqlstore.ChangeRow, error](changes),
	}
}

func loadSQLite(t *testing.T, s sqlstore.Snapshot) sqlstore.Driver {
	path := filepath.Join(t.TempDir(), "byre.db")
	if err := sqlite.Load(t.Context(), path, s); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

func loadPostgres(t *testing.T, s sqlstore.Snapshot) sqlstore.Driver {
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
	return driver
}

// measureReads are the medians of reads at random places.
func measureReads(t *testing.T, driver sqlstore.Driver, objects int) map[string]time.Duration {
	random := rand.New(rand.NewPCG(1, 1))
	list := func(q sqlstore.Query) error {
		_, err := driver.List(t.Context(), q, func(sqlstore.Record) error { return nil })
		return err
	}
	inNamespace := func(at int64, limit int) error {
		k := grownKey(random.IntN(objects))
		return list(sqlstore.Query{Range: sqlstore.Range{Group: k.Group, Resource: k.Resource, Namespace: k.Namespace}, At: at, Limit: limit})
	}
	reads := map[string]func() error{
		"get": func() error {
			_, _, err := driver.Get(t.Context(), grownKey(random.IntN(objects)))
			return err
		},
		"page of 50":                  func() error { return inNamespace(0, 50) },
		"list of a namespace":         func() error { return inNamespace(0, 0) },
		"list at a past revision":     func() error { return inNamespace(int64(objects+random.IntN(objects)), 0) },
		"100 changes to resume after": func() error { _, err := driver.Changes(t.Context(), int64(random.IntN(objects)), 100, 0); return err },
	}
	took := map[string]time.Duration{}
	for name, read := range reads {
		var all []time.Duration
		for i := range 300 {
			begun := time.Now()
			if err := read(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if i >= 100 { // the first ones fill caches
				all = append(all, time.Since(begun))
			}
		}
		slices.Sort(all)
		took[name] = all[len(all)/2]
	}
	return took
}

// measureCompaction updates as fast as it can, without and with a compaction of all that
// was loaded.
func measureCompaction(t *testing.T, driver sqlstore.Driver, objects int) {
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
				c, err := store.Commit(ctx, sqlstore.Write{Op: sqlstore.Update, Key: grownKey(n), Replaces: revisions[n], UID: "u", Value: grownValue()})
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
	rate := func(period <-chan time.Time) float64 {
		first, begun := written.Load(), time.Now()
		<-period
		return float64(written.Load()-first) / time.Since(begun).Seconds()
	}
	rate(time.After(2 * time.Second))
	alone := rate(time.After(5 * time.Second))
	size, err := driver.(sqlstore.Sizer).Size(ctx)
	if err != nil {
		t.Error(err)
	}
	ended := make(chan time.Time, 1)
	begun := time.Now()
	running.Go(func() {
		if err := store.Compact(ctx, int64(2*objects)); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		ended <- time.Now()
	})
	during := rate(ended)
	compacted := float64(2*objects) / time.Since(begun).Seconds()
	cancel()
	running.Wait()
	after, err := driver.(sqlstore.Sizer).Size(t.Context())
	if err != nil {
		t.Error(err)
	}
	t.Logf("writes: %.0f/s alone, %.0f/s during the compaction (%.2f); compacted: %.0f changes/s; size: %d MiB before, %d MiB after",
		alone, during, during/alone, compacted, size>>20, after>>20)
	if during < 0.8*alone {
		t.Errorf("the compaction leaves %.2f of the writes, want 0.8", during/alone)
	}
	if compacted < during {
		t.Errorf("%.0f changes are compacted while %.0f are written", compacted, during)
	}
}
