package sqlstore

import "context"

// RunWithoutGathering is Run with a writer that takes the queue without waiting for other writers.
func (s *Store) RunWithoutGathering(ctx context.Context) error { return s.run(ctx, func() {}) }
