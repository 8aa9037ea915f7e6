package sqlstore_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
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
