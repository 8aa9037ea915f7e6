package power

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"reflect"
	"strings"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// byre is byre's store, compared with a model of it.
type byre struct {
	connections
	driver *sqlite.Driver
	// model has the acknowledged writes, and pending in addition the write that was in
	// progress when the power failed.
	model     *storetest.Model
	pending   func(context.Context) error
	hasFailed bool
}

// now is the time of all changes.
func now() time.Time { return time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC) }

func newByre() *byre {
	b := &byre{model: storetest.NewModel()}
	b.model.Clock = now
	return b
}

func (b *byre) open(ctx context.Context, path string) error {
	b.hasFailed = false
	pending := b.pending
	b.pending = nil
	if _, err := sqlite.InspectAfterCrash(ctx, path, true, time.Minute, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, (&url.URL{Scheme: "sqlite", Path: path}).String()); err != nil {
		return err
	}
	var err error
	if b.driver, err = sqlite.Open(ctx, path, sqlite.Options{Clock: now, LogPages: 300}); err != nil {
		return err
	}
	if err := b.connections.open(path); err != nil {
		return err
	}
	err = b.compare(ctx)
	if err != nil && pending != nil {
		if err := pending(ctx); err != nil {
			return err
		}
		err = b.compare(ctx)
	}
	return cmp.Or(err, inspect(ctx, path))
}

// inspect reads every page and every row.
func inspect(ctx context.Context, path string) error {
	var findings []error
	err := sqlite.Inspect(ctx, path, func(f sqlstore.Finding) { findings = append(findings, fmt.Errorf("%+v", f)) })
	readErr := sqlite.ReadSnapshot(ctx, path, func(s sqlstore.Snapshot) error {
		_, err := backup.DigestOf(s)
		return err
	})
	return errors.Join(append(findings, err, readErr)...)
}

// contents are what a driver holds.
type contents struct {
	revision, compacted int64
	records             []sqlstore.Record
	changes             []sqlstore.Change
}

func read(ctx context.Context, d sqlstore.Driver) (c contents, err error) {
	state, err := d.State(ctx)
	if err != nil {
		return c, err
	}
	c.revision, c.compacted = state.Revision, state.Compacted
	_, err = d.List(ctx, sqlstore.Query{Range: configMaps}, func(r sqlstore.Record) error {
		c.records = append(c.records, r)
		return nil
	})
	if err != nil {
		return c, err
	}
	c.changes, err = d.Changes(ctx, sqlstore.ChangesQuery{After: c.compacted, Limit: 1_000_000})
	return c, err
}

func (b *byre) compare(ctx context.Context) error {
	want, err := read(ctx, b.model)
	if err != nil {
		return err
	}
	got, err := read(ctx, b.driver)
	if err == nil && !reflect.DeepEqual(got, want) {
		err = fmt.Errorf(
			"revision %d after %d, %d objects, %d changes; acknowledged: revision %d after %d, %d objects, %d changes",
			got.revision, got.compacted, len(got.records), len(got.changes), want.revision, want.compacted, len(want.records),
			len(want.changes))
	}
	return err
}

var configMaps = sqlstore.Range{Resource: "configmaps"}

func (b *byre) step(ctx context.Context, r *rand.Rand) error {
	switch n := r.IntN(20); {
	case n < 4:
		return b.connections.step(ctx, r)
	case n == 4: // seldom, so that a compaction removes enough for the file to shrink
		state, err := b.model.State(ctx)
		if err != nil {
			return err
		}
		upTo, limit := state.Revision-r.Int64N(20), 1+r.IntN(150)
		return b.both(ctx, func(ctx context.Context, d sqlstore.Driver) error {
			_, _, err := d.DeleteHistory(ctx,
				sqlstore.Deletion{Of: sqlstore.Resource{Resource: configMaps.Resource}, UpTo: upTo, Limit: limit})
			return err
		})
	}
	batch, err := b.writes(ctx, r)
	if err != nil {
		return err
	}
	return b.both(ctx, func(ctx context.Context, d sqlstore.Driver) error {
		outcomes, err := d.Commit(ctx, batch)
		for _, o := range outcomes {
			err = cmp.Or(err, o.Err)
		}
		return err
	})
}

// both applies a write to the store and then to the model.
func (b *byre) both(ctx context.Context, do func(context.Context, sqlstore.Driver) error) error {
	if err := do(ctx, b.driver); err != nil {
		return err
	}
	inModel := func(ctx context.Context) error { return do(ctx, b.model) }
	if b.hasFailed {
		b.pending = inModel
		return nil
	}
	return inModel(ctx)
}

// writes are creations, updates and deletions of some keys.
func (b *byre) writes(ctx context.Context, r *rand.Rand) ([]sqlstore.Write, error) {
	var batch []sqlstore.Write
	for _, n := range r.Perm(40)[:1+r.IntN(4)] {
		w := sqlstore.Write{
			Op: sqlstore.Create, UID: fmt.Sprint(r.Uint64()), Author: sqlstore.Author{User: "somebody", Verb: "update"},
			Key:   sqlstore.Key{Resource: configMaps.Resource, Namespace: "default", Name: fmt.Sprint("n", n)},
			Value: []byte(`{"data":"` + strings.Repeat(fmt.Sprintf("%016x", r.Uint64()), r.IntN(1200)) + `"}`),
		}
		old, _, err := b.model.Get(ctx, w.Key)
		switch {
		case errors.Is(err, sqlstore.ErrNotFound):
		case err != nil:
			return nil, err
		default:
			w.Op, w.Replaces = sqlstore.Update, old.Revision
			if r.IntN(6) == 0 {
				w.Op = sqlstore.Delete
			}
		}
		batch = append(batch, w)
	}
	return batch, nil
}

func (b *byre) powerFailed() { b.hasFailed = true }

func (b *byre) close() error {
	if err := b.connections.close(); err != nil {
		return err
	}
	return b.driver.Close()
}
