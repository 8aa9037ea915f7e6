package sqlstore

// WithoutGathering has the writer take what is in the queue at once. It must come
// before Run.
func (s *Store) WithoutGathering() { s.withoutGathering = true }
