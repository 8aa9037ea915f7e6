package sqlstore

import (
	"context"
)

// Publish is told of changes after they are durable, before their writers are
// answered. It is called by one goroutine and must not block.
type Publish func([]Change)

// Store is a driver with a queue of writes before it and the housekeeping
// (expiry, compaction) behind it. Reads go straight to the driver.
type Store struct {
	Driver
	// (fields: the queue, options, metrics)
}

// Commit queues one write and waits until it is durable. The returned Change
// has the revision. Errors: ErrExists, ErrNotFound, ErrConflict, ErrUnavailable,
// ErrUnknown, ErrClosed, or the context's when the write left the queue before
// its transaction began (then it did not happen). Once the transaction has
// begun Commit waits for its end, whatever becomes of ctx.
func (s *Store) Commit(ctx context.Context, w Write) (Change, error) { panic("in work") }

// Run commits what is queued, deletes what expires and compacts, until ctx ends.
func (s *Store) Run(ctx context.Context) error { panic("in work") }
