package storage

import (
	"time"

	"k8s.io/utils/clock"
)

// preTimeout is how long before the end of a watch its last bookmark is due; upstream's
// watch cache has the same value.
const preTimeout = 2 * time.Second

// BookmarkSchedule says when the next bookmark of a watch is due: after an
// interval, and shortly before the watch ends. The zero value is never due.
type BookmarkSchedule struct {
	clock    clock.Clock
	interval time.Duration
	deadline time.Time // zero: none
	next     time.Time // zero: no more
	tick     clock.Timer
}

// NewBookmarkSchedule returns the schedule of a watch; without a deadline if it is zero.
func NewBookmarkSchedule(c clock.Clock, interval time.Duration, deadline time.Time) BookmarkSchedule {
	b := BookmarkSchedule{clock: c, interval: interval, deadline: deadline}
	b.plan(c.Now())
	return b
}

func (b *BookmarkSchedule) plan(now time.Time) {
	b.next = now.Add(b.interval)
	if last := b.deadline.Add(-preTimeout); !b.deadline.IsZero() && last.Before(b.next) {
		b.next = last
	}
	if !b.next.After(now) {
		b.next = time.Time{}
	}
}

// Due reports whether a bookmark is due, and plans the next one if so.
func (b *BookmarkSchedule) Due() bool {
	if b.next.IsZero() {
		return false
	}
	now := b.clock.Now()
	if now.Before(b.next) {
		return false
	}
	b.plan(now)
	return true
}

// Timer fires when the next bookmark is due.
func (b *BookmarkSchedule) Timer() <-chan time.Time {
	if b.next.IsZero() {
		return nil
	}
	wait := b.next.Sub(b.clock.Now())
	if b.tick == nil {
		b.tick = b.clock.NewTimer(wait)
	} else {
		b.tick.Reset(wait)
	}
	return b.tick.C()
}

// Stop stops the timer.
func (b *BookmarkSchedule) Stop() {
	if b.tick != nil {
		b.tick.Stop()
	}
}
