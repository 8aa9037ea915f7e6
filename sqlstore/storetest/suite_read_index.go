package storetest

import (
	"context"
	"sync"

	"byre/sqlstore"
)

// testReadIndex: State is never older than what a read has returned, even if that read has seen a
// commit before Commit returned.
func testReadIndex(f fixture) {
	k := key("n", "a")
	last := f.revision(create(k, "0"))
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	all := sqlstore.Query{Range: sqlstore.Range{Resource: k.Resource}}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				_, read, err := f.Get(f.Context(), k)
				if err == nil {
					var listed sqlstore.ListResult
					listed, err = f.List(f.Context(), all, func(sqlstore.Record) error { return nil })
					read = max(read, listed.Revision)
				}
				state, stateErr := f.State(f.Context())
				if err != nil || stateErr != nil || state.Revision < read {
					f.Errorf("state %d after a read of %d: %v, %v", state.Revision, read, err, stateErr)
					return
				}
			}
		})
	}
	for range 200 {
		last = f.revision(update(k, last, "1"))
	}
	cancel()
	readers.Wait()
}
