package sqlstore

import (
	"context"
	"time"
)

const (
	// mostForWriters and leastForWriters times the duration of a chunk are the longest and
	// the shortest pause after it, for the writers.
	mostForWriters, leastForWriters = 9, 6
	// paceInterval is how often the pause is adjusted.
	paceInterval = time.Second
)

// pace divides the time between the writers and work on the history that is done in chunks.
//
// Invariant: the writers have nine tenths of the time unless they have made more changes since
// the work began than it is done with. Then adjust takes from them, step by step, down to six
// sevenths: otherwise history would grow for as long as they write so much. It takes no more;
// history that grows all the same is bounded by Options.Quota.
type pace struct {
	// writers is the length of a pause, in durations of a chunk.
	writers int
	// adjusted is the time of the last adjustment, first the last revision at the first one.
	adjusted time.Time
	first    int64
}

// adjust compares the changes that were made with the number of those that the work is done
// with, both since it began.
func (p *pace) adjust(now time.Time, revision, done int64) {
	switch {
	case p.adjusted.IsZero():
		p.writers, p.first = mostForWriters, revision
	case done < revision-p.first:
		p.writers = max(p.writers-1, leastForWriters)
	default:
		p.writers = min(p.writers+1, mostForWriters)
	}
	p.adjusted = now
}

// pause leaves time to the writers after a chunk that took so long.
func (s *Store) pause(ctx context.Context, p *pace, took time.Duration, done int64) error {
	if now := time.Now(); now.Sub(p.adjusted) >= paceInterval {
		// Other processes make changes too.
		state, err := s.State(ctx)
		if err != nil {
			return err
		}
		p.adjust(now, state.Revision, done)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(p.writers) * took):
		return nil
	}
}
