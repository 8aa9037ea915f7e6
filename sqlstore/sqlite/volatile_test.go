package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

func isLease(k sqlstore.Key) bool { return k.Resource == "leases" }

func openVolatile(t testing.TB, path string, isVolatile func(sqlstore.Key) bool) *sqlite.Driver {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{Volatile: isVolatile})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

// commitOne commits a write, and returns its outcome.
func commitOne(t *testing.T, driver *sqlite.Driver, w sqlstore.Write) sqlstore.Outcome {
	t.Helper()
	o, err := driver.Commit(t.Context(), []sqlstore.Write{w})
	if err != nil || o[0].Err != nil {
		t.Fatal(o, err)
	}
	return o[0]
}

// copyOpenFiles copies the files of an open database. They are what a process that is killed
// leaves.
func copyOpenFiles(t *testing.T, path string) string {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "byre.db")
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(copied+suffix, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// The copy has an inode and a birth of its own, and what a killed process leaves has not.
	text, err := os.ReadFile(path + ".lineage")
	if err == nil {
		err = writeLineage(copied, text, func(fields []string) { fields[3] = "0" })
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// writeLineage writes the file beside a database that says what the last process has left, with the
// inode that the database has, and what change makes of the fields: id, inode, revision and birth.
func writeLineage(path string, text []byte, change func(fields []string)) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fields := strings.Fields(string(text))
	fields[1] = fmt.Sprintf("%020d", info.Sys().(*syscall.Stat_t).Ino)
	change(fields)
	return os.WriteFile(path+".lineage", fmt.Appendf(nil, "%s %s %s\n%s\n", fields[0], fields[1], fields[2], fields[3]),
		0o600)
}

// The driver writes renewals of a lease at the next flush, all of them in one transaction.
func TestVolatile_WritesTogether(t *testing.T) {
	t.Parallel()
	driver := openVolatile(t, migrated(t), isLease)
	defer driver.Close()
	key := sqlstore.Key{Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system", Name: "a"}
	last := commitOne(t, driver, sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(`{}`)}).Revision
	before := logPages(t, driver)
	for range 100 {
		last = commitOne(t, driver,
			sqlstore.Write{Op: sqlstore.Update, Key: key, Replaces: last, Value: []byte(`{"spec":{}}`)}).Revision
	}
	if pages := logPages(t, driver) - before; pages != 0 {
		t.Errorf("renewals have written %d pages", pages)
	}
	if err := driver.Flush(); err != nil {
		t.Fatal(err)
	}
	if pages := logPages(t, driver) - before; pages == 0 || pages > 20 {
		t.Errorf("the flush of 100 renewals has written %d pages", pages)
	}
	changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 1000})
	if err != nil || len(changes) != 101 {
		t.Errorf("%d changes, %v", len(changes), err)
	}
}

// No read waits for a transaction that flushes, and so for its fsync. A read that follows on one
// that has seen the transaction does not find what the transaction replaced.
func TestVolatile_ReadsDoNotWaitForAFlush(t *testing.T) {
	t.Parallel()
	driver := openVolatile(t, migrated(t), isLease)
	defer driver.Close()
	lease := sqlstore.Key{Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system", Name: "a"}
	pod := sqlstore.Key{Resource: "pods", Namespace: "n", Name: "p"}
	commitOne(t, driver, sqlstore.Write{Op: sqlstore.Create, Key: pod, Value: []byte(`{}`)})
	created := commitOne(t, driver, sqlstore.Write{Op: sqlstore.Create, Key: lease, Value: []byte(`{}`)}).Revision
	if err := driver.DuringTransaction(func() error {
		done := make(chan error, 1)
		go func() {
			if r, _, err := driver.Get(t.Context(), lease); err != nil || r.Revision != created {
				done <- fmt.Errorf("get: %+v, %w", r, err)
				return
			}
			if changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: created - 1, Limit: 10}); err != nil ||
				len(changes) != 1 {
				done <- fmt.Errorf("changes: %+v, %w", changes, err)
				return
			}
			_, err := driver.List(t.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}},
				func(sqlstore.Record) error {
					return nil
				})
			done <- err
		}()
		select {
		case err := <-done:
			return err
		case <-time.After(storetest.Patience):
			return errors.New("the reads wait for the transaction")
		}
	}); err != nil {
		t.Fatal(err)
	}

	// Durable writes of a Pod flush renewals of the Lease. The revisions that a reader is shown
	// never decrease, whichever key it reads.
	var writing sync.WaitGroup
	defer writing.Wait()
	stop := make(chan struct{})
	defer close(stop)
	writing.Go(func() {
		revisions := map[sqlstore.Key]int64{lease: created, pod: 1}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			batch := []sqlstore.Write{{Op: sqlstore.Update, Key: lease, Replaces: revisions[lease], Value: []byte(`{}`)}}
			if i%2 == 0 {
				batch = append(batch, sqlstore.Write{Op: sqlstore.Update, Key: pod, Replaces: revisions[pod], Value: []byte(`{}`)})
			}
			outcomes, err := driver.Commit(context.WithoutCancel(t.Context()), batch)
			if err != nil {
				t.Error(err)
				return
			}
			for j, o := range outcomes {
				revisions[batch[j].Key] = o.Revision
			}
		}
	})
	seen := map[sqlstore.Key]int64{}
	var snapshot int64
	for range 2000 {
		for _, key := range []sqlstore.Key{pod, lease} {
			r, at, err := driver.Get(t.Context(), key)
			if err != nil || at < snapshot || r.Revision < seen[key] {
				t.Fatalf("%s is at revision %d of snapshot %d, after %d of %d: %v", key.Name, r.Revision, at, seen[key], snapshot,
					err)
			}
			// The writer changes the Lease in each batch: a Pod at a revision follows on a
			// renewal just before it.
			if key == lease && r.Revision < seen[pod]-1 {
				t.Fatalf("the Lease is at revision %d, and the Pod was at %d before", r.Revision, seen[pod])
			}
			seen[key], snapshot = r.Revision, at
		}
	}
}

// Whenever the process is killed, the durable changes exist, with all changes before them. Only
// the end of the history is lost, all of it volatile. No revision is given twice, and no watch
// continues from a revision of before the crash.
func TestVolatile_CrashRepeatsNoRevision(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	path := migrated(t)
	driver := openVolatile(t, path, isLease)
	written := map[int64]string{} // by revision, of all processes
	current := map[sqlstore.Key]int64{}
	for crash := range 8 {
		durable := int64(0)
		for i := range 60 + random.IntN(60) {
			key := sqlstore.Key{Resource: []string{"leases", "pods"}[random.IntN(20)/19], Namespace: "n",
				Name: fmt.Sprint(random.IntN(5))}
			w := sqlstore.Write{Op: sqlstore.Create, Key: key, Value: fmt.Appendf(nil, `"%d %d"`, crash, i)}
			if current[key] > 0 {
				w.Op, w.Replaces = sqlstore.Update, current[key]
			}
			o := commitOne(t, driver, w)
			if was, ok := written[o.Revision]; ok {
				t.Fatalf("revision %d was of %s and is of %s", o.Revision, was, w.Value)
			}
			written[o.Revision], current[key] = string(w.Value), o.Revision
			if !isLease(key) {
				durable = o.Revision
			}
			if random.IntN(30) == 0 {
				if err := driver.Flush(); err != nil {
					t.Fatal(err)
				}
				durable = o.Revision
			}
		}
		last, err := driver.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		path = copyOpenFiles(t, path)
		if err := driver.Close(); err != nil {
			t.Fatal(err)
		}
		driver = openVolatile(t, path, isLease)
		checkAfterCrash(t, driver, last, durable, written, current)
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// checkAfterCrash compares the store with what was written, and sets current to the objects
// that exist.
func checkAfterCrash(
	t *testing.T, driver *sqlite.Driver, last sqlstore.State, durable int64, written map[int64]string,
	current map[sqlstore.Key]int64,
) {
	t.Helper()
	state, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if state.Revision <= last.Revision || state.Compacted != state.Revision || state.Epoch == last.Epoch {
		t.Fatalf("after a crash at revision %d: %+v", last.Revision, state)
	}
	if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: last.Revision, Limit: 10}); !errors.Is(err,
		sqlstore.ErrCompacted) {
		t.Errorf("changes after the last revision: %v", err)
	}
	for key, revision := range current {
		r, _, err := driver.Get(t.Context(), key)
		switch {
		case errors.Is(err, sqlstore.ErrNotFound) && revision > durable:
			delete(current, key)
		case err != nil || revision <= durable && r.Revision != revision:
			t.Fatalf("%v at revision %d, durable %d: %+v, %v", key, revision, durable, r, err)
		case written[r.Revision] != string(r.Value):
			t.Fatalf("%v: revision %d is %s, and was %s", key, r.Revision, r.Value, written[r.Revision])
		default:
			current[key] = r.Revision
		}
	}
}

// A process that closes the driver loses nothing. The next one continues at the same revision,
// with volatile resources or without.
func TestVolatile_StopLosesNothing(t *testing.T) {
	t.Parallel()
	path := migrated(t)
	driver := openVolatile(t, path, isLease)
	before := commitOne(t, driver,
		sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "leases", Name: "a"}, Value: []byte(`{}`)})
	last, err := driver.State(t.Context())
	if err := errors.Join(err, driver.Close()); err != nil {
		t.Fatal(err)
	}
	driver = openVolatile(t, path, nil)
	defer driver.Close()
	state, err := driver.State(t.Context())
	if err != nil || state.Revision != before.Revision || state.Epoch != last.Epoch || state.Compacted != 0 {
		t.Fatalf("%+v, %v", state, err)
	}
}

// While the database takes no writes, the driver acknowledges changes from memory only until
// the next flush fails. Once the database takes writes again, no acknowledged change is
// missing.
func TestVolatile_FailsWithTheDatabase(t *testing.T) {
	t.Parallel()
	path := migrated(t)
	driver := openVolatile(t, path, isLease)
	defer driver.Close()
	lease := func(name string) sqlstore.Write {
		value := `"` + strings.Repeat("x", 100_000) + `"`
		return sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "leases", Name: name}, Value: []byte(value)}
	}
	limit := func(pages string) { // SQLite keeps the existing pages, and adding one fails as on a full disk
		t.Helper()
		if err := driver.ExecWriter(t.Context(), `PRAGMA max_page_count = `+pages); err != nil {
			t.Fatal(err)
		}
	}
	commitOne(t, driver, lease("before"))
	limit("1")
	commitOne(t, driver, lease("in memory"))
	if err := driver.Flush(); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("flush: %v", err)
	}
	if _, err := driver.Commit(t.Context(), []sqlstore.Write{lease("refused")}); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("commit after the flush has failed: %v", err)
	}
	if _, _, err := driver.Get(t.Context(), lease("in memory").Key); err != nil {
		t.Errorf("what was acknowledged: %v", err)
	}
	limit("4294967294")
	commitOne(t, driver, lease("after"))
	var names []string
	_, err := driver.List(t.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "leases"}},
		func(r sqlstore.Record) error {
			names = append(names, r.Name)
			return nil
		})
	if got := strings.Join(names, ", "); err != nil || got != "after, before, in memory" {
		t.Errorf("%s, %v", got, err)
	}
}

// A change is in memory for up to flushInterval, counted from the change. If a commit
// of another resource has flushed it meanwhile, no other flush follows.
func TestVolatile_FlushesWhatIsDue(t *testing.T) {
	t.Parallel()
	path := migrated(t)
	synctest.Test(t, func(t *testing.T) {
		driver := openVolatile(t, path, isLease)
		defer driver.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var maintaining sync.WaitGroup
		maintaining.Go(func() {
			if err := driver.Maintain(ctx); err != nil {
				t.Error(err)
			}
		})
		defer maintaining.Wait()
		defer cancel()
		create := func(resource, name string) {
			commitOne(t, driver,
				sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: resource, Name: name}, Value: []byte(`{}`)})
		}
		wait := func(d time.Duration) int {
			time.Sleep(d)
			synctest.Wait()
			return logPages(t, driver)
		}
		create("leases", "a")
		wait(10 * time.Second)
		create("pods", "a") // its transaction flushes the lease
		flushed := wait(time.Second)
		create("leases", "b")
		if pages := wait(14900 * time.Millisecond); pages != flushed {
			t.Errorf("%d pages were written before the change was %v old", pages-flushed, 15*time.Second)
		}
		if pages := wait(200 * time.Millisecond); pages == flushed {
			t.Error("nothing was written when the change was 15 s old")
		}
	})
}
