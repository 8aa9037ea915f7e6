package storage

import (
	"context"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// ahead is how far the next epoch of a restartable begins beyond the last revision.
const ahead = 1_000

// restartable is a driver whose database begins a new epoch when the test tells it to.
type restartable struct {
	sqlstore.Driver
	isNext atomic.Bool
}

func (r *restartable) State(ctx context.Context) (sqlstore.State, error) {
	state, err := r.Driver.State(ctx)
	if r.isNext.Load() {
		state.Revision += ahead
		state.Compacted, state.Epoch = state.Revision, "next"
	}
	return state, err
}

func (r *restartable) List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error) {
	listed, err := r.Driver.List(ctx, q, yield)
	if r.isNext.Load() {
		listed.Revision += ahead
	}
	return listed, err
}

// A client may learn a revision of a new epoch from one server, and ask another one for it that
// has not seen the epoch yet. The read waits for the epoch, and is answered.
func TestReads_WaitForARevisionOfANewEpoch(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(context.Context, *fixture, storage.ListOptions) error{
		"get": func(ctx context.Context, f *fixture, o storage.ListOptions) error {
			_, err := f.GetEncoded(ctx, "/pods/ns/a", storage.GetOptions{ResourceVersion: o.ResourceVersion}, f.Stored())
			return err
		},
		"list": func(ctx context.Context, f *fixture, o storage.ListOptions) error {
			_, err := f.ListEncoded(ctx, "/pods", o, f.Stored())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := &restartable{Driver: storetest.NewModel()}
			f := newFixture(t, backend{"restartable", func(testing.TB) sqlstore.Driver { return driver }, false})
			f.create(t, "ns", "a", "")
			f.listed(t, "/pods", all())
			reading := &waitedFor{Context: t.Context(), began: make(chan struct{})}
			go func() {
				<-reading.began
				driver.isNext.Store(true)
			}()
			if err := read(reading, f, all(from(f.feed.Revision()+ahead))); err != nil {
				t.Error(err)
			}
		})
	}
}
