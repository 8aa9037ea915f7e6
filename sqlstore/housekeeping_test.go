package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// Expiry and compaction read the database's clock, each at its own pace. An answer that is
// delayed does not look as if the clock had been set back, or set forward afterwards: where it
// was set forward meanwhile, that is noticed once, and nothing is where it was not.
func TestExpiry_DelayedReadingOfTheClock(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[time.Duration]string{0: "", 2 * time.Hour: "by=2h0m0s"} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := logWhileDelayed(t, ahead)
				if got := strings.Join(regexp.MustCompile(`by=\S+`).FindAllString(log, -1), " "); got != want {
					t.Errorf("the clock is %v ahead, logged %q", ahead, log)
				}
			})
		})
	}
}

// logWhileDelayed sets the clock of a store's database forward while the database delays an
// answer for two minutes, and returns what the store logs.
func logWhileDelayed(t *testing.T, ahead time.Duration) string {
	t.Helper()
	var log bytes.Buffer
	database := &delayed{Model: storetest.NewModel()}
	store := sqlstore.New(database, sqlstore.Options{
		Retention: time.Hour, CompactInterval: time.Second, ExpireInterval: time.Second,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := store.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	// Without a record that could expire early the jump would be over at once.
	if _, err := store.Commit(ctx, sqlstore.Write{
		Op:  sqlstore.Create,
		Key: sqlstore.Key{Resource: "pods", Namespace: "n", Name: "a"},
		UID: "a", Encoding: "v1", Value: []byte(`"v"`), Expires: time.Now().Add(time.Hour),
	}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	delay := make(chan struct{})
	database.set(0, delay)
	time.Sleep(time.Minute)
	database.set(ahead, nil)
	time.Sleep(time.Minute)
	close(delay)
	time.Sleep(time.Minute)
	cancel()
	running.Wait()
	return log.String()
}

// delayed is a database whose clock can be set, and one of whose answers can be delayed.
type delayed struct {
	*storetest.Model
	mu    sync.Mutex
	ahead time.Duration
	// delay is what the next answer of State waits for; nil delays none.
	delay <-chan struct{}
}

func (d *delayed) set(ahead time.Duration, delay <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ahead, d.delay = ahead, delay
}

func (d *delayed) State(ctx context.Context) (sqlstore.State, error) {
	d.mu.Lock()
	ahead, delay := d.ahead, d.delay
	d.delay = nil
	d.mu.Unlock()
	state, err := d.Model.State(ctx)
	state.Time = state.Time.Add(ahead)
	if delay != nil {
		<-delay
	}
	return state, err
}

// VACUUM, VACUUM FULL and pg_dump of a database in use lose nothing: every acknowledged
// write is once in the watch, in the history and in the current objects.
func TestMaintenance_LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "byre.db")
		if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
			t.Fatal(err)
		}
		driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { driver.Close() })
		db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?_pragma=busy_timeout(60000)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		writeDuringMaintenance(t, driver, func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, `VACUUM`)
			return err
		})
	})
	t.Run("postgres", func(t *testing.T) {
		dsn := pgtest.DSN(t)
		if _, err := migrations.Up(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { driver.Close() })
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		dump, err := pgtest.Program("pg_dump")
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(t.TempDir(), "dump.sql")
		writeDuringMaintenance(t, driver, func(ctx context.Context) error {
			if _, err := conn.Exec(ctx, `VACUUM FULL`); err != nil {
				return err
			}
			if out, err := exec.CommandContext(ctx, dump, "--file="+copied, dsn).CombinedOutput(); err != nil {
				return fmt.Errorf("pg_dump: %w: %s", err, out)
			}
			return nil
		})
	})
}

// writeDuringMaintenance writes and watches while maintain runs, twice, and compares what
// was acknowledged with what the watch, the history and the current objects have.
func writeDuringMaintenance(t *testing.T, driver sqlstore.Driver, maintain func(context.Context) error) {
	store, feed := dbtest.RunStore(t, driver, watch.Options{Interval: 50 * time.Millisecond})
	pods := sqlstore.Resource{Resource: "pods"}
	sub, err := feed.Subscribe(t.Context(), watch.Interest{Resource: pods}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	maintenanceDone := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		defer close(maintenanceDone)
		for range 2 {
			if err := maintain(ctx); err != nil {
				t.Errorf("maintenance: %v", err)
			}
		}
	})
	var mu sync.Mutex
	answered := map[int64]string{}
	last := map[string]int64{}
	for i := range 4 {
		working.Go(func() {
			name, at := fmt.Sprint("w", i), int64(0)
			for n := 0; ; n++ {
				select {
				case <-maintenanceDone:
					if n > 20 {
						return
					}
				default:
				}
				w := sqlstore.Write{Op: sqlstore.Update, Replaces: at, Key: sqlstore.Key{Resource: "pods", Name: name},
					Value: fmt.Append(nil, n)}
				if at == 0 {
					w.Op = sqlstore.Create
				}
				c, err := store.Commit(ctx, w)
				if err != nil {
					t.Errorf("write %d of %s: %v", n, name, err)
					return
				}
				mu.Lock()
				at, last[name], answered[c.Revision] = c.Revision, c.Revision, name
				mu.Unlock()
			}
		})
	}
	working.Wait()
	seen := int64(0)
	for seen < int64(len(answered)) {
		events, _, err := sub.Next(ctx)
		if err != nil {
			t.Fatalf("watch after %d of %d: %v", seen, len(answered), err)
		}
		for _, ev := range events {
			if seen++; ev.Revision != seen || answered[seen] != ev.Key().Name {
				t.Fatalf("event %d is revision %d of %s, written by %s", seen, ev.Revision, ev.Key().Name, answered[seen])
			}
		}
	}
	changes, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: 0, Limit: len(answered) + 1})
	if err != nil || len(changes) != len(answered) {
		t.Errorf("history has %d of %d changes, %v", len(changes), len(answered), err)
	}
	for name, revision := range last {
		r, _, err := driver.Get(ctx, sqlstore.Key{Resource: "pods", Name: name})
		if err != nil || r.Revision != revision {
			t.Errorf("%s is at revision %d, %v; want %d", name, r.Revision, err, revision)
		}
	}
}
