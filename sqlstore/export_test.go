package sqlstore

// WithoutGathering makes the writer take the queue without waiting for other writers. It
// must be called before Run.
func (s *Store) WithoutGathering() { s.withoutGathering = true }
