package postgres_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
)

// All processes end, the primary fails with commits that its standby does not have, and the
// standby is promoted: no process remembers the lost commits. The first process that starts
// begins an epoch, so that no client continues at a revision that is given twice.
func TestFailover_IsNoticedByTheNextStart(t *testing.T) {
	t.Parallel()
	primary, standby, dsn := startPair(t)
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	haltStandby(t, standby, mustCreate(t, driver, "kept"))
	lost := mustCreate(t, driver, "a", "b", "c")
	before, err := driver.State(t.Context())
	if err := errors.Join(err, driver.Close()); err != nil {
		t.Fatal(err)
	}
	failOver(t, primary, standby)

	var log syncBuffer
	driver = openMore(t, standby.DSN("postgres"), postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	state, err := driver.State(t.Context())
	if err != nil || state.Epoch == before.Epoch || state.Compacted <= lost || state.Revision != state.Compacted {
		t.Errorf("after the failover %+v, %v; before %+v", state, err, before)
	}
	if !strings.Contains(log.String(), "a new epoch begins") {
		t.Errorf("the log says nothing: %s", &log)
	}
	if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: lost, Limit: 10}); !errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("changes after a revision that is lost: %v", err)
	}
	if again, err := openMore(t, standby.DSN("postgres"), postgres.Options{}).State(t.Context()); err != nil || again.Epoch != state.Epoch || again.Revision != state.Revision {
		t.Errorf("the start after that: %+v, %v; want %+v", again, err, state)
	}
}

// Open begins an epoch in a dump that was restored on another server. To the epoch of an
// earlier release, which has no lineage, it only appends the lineage.
func TestOpen_BeginsAnEpochOnAnotherServer(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	last := mustCreate(t, driver, "a", "b")
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		epoch string
		moves bool
	}{{"earlier", false}, {"other@7000000000000000000/1", true}} {
		if _, err := connect(t, dsn).Exec(t.Context(), `UPDATE store SET epoch = $1`, test.epoch); err != nil {
			t.Fatal(err)
		}
		state, err := openMore(t, dsn, postgres.Options{}).State(t.Context())
		kept, _, isMarked := strings.Cut(state.Epoch, "@")
		if err != nil || !isMarked || (kept != test.epoch) != test.moves || (state.Revision > last) != test.moves || (state.Compacted > last) != test.moves {
			t.Errorf("%s: %+v, %v", test.epoch, state, err)
		}
	}
}
