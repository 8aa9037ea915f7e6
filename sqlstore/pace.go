package sqlstore

import (
	"context"
	"time"
)

const (
	// longestPause and shortestPause bound the pause after a chunk. The unit is the
	// duration of that chunk.
	longestPause, shortestPause = 9, 6
	// paceInterval is how often the pause is adjusted.
	paceInterval = time.Second
)

// pace divides the time between the writers and a compaction, which works in chunks and pauses
// after each.
//
// Invariant: the writers have nine tenths of the time, unless they have made more changes
// since the compaction began than it has processed. Then adjust shortens the pauses step by
// step, until the writers have six sevenths: otherwise history would grow for as long as they
// write at that rate. It does not shorten them further, because that would slow the writers
// down too much. If history still grows, Options.Quota bounds it.
type pace struct {
	// pause is the length of a pause; the unit is the duration of the chunk before it.
	pause int
	// adjusted is the time of the last adjustment, first the last revision at the first one.
	adjusted time.Time
	first    int64
	// processed is the number of changes that the compaction has deleted so far.
	processed int64
}

// adjust compares the changes that writers have made with those that the compaction has
// processed, both since it began.
func (p *pace) adjust(now time.Time, revision int64) {
	switch {
	case p.adjusted.IsZero():
		p.pause, p.first = longestPause, revision
	case p.processed < revision-p.first:
		p.pause = max(p.pause-1, shortestPause)
	default:
		p.pause = min(p.pause+1, longestPause)
	}
	p.adjusted = now
}

// pause leaves time to the writers after a chunk. took is the duration of the chunk.
func (s *Store) pause(ctx context.Context, p *pace, took time.Duration) error {
	if now := time.Now(); now.Sub(p.adjusted) >= paceInterval {
		// The driver is asked, because other processes make changes too.
		state, err := s.State(ctx)
		if err != nil {
			return err
		}
		p.adjust(now, state.Revision)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(p.pause) * took):
		return nil
	}
}
