package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// rate calls work from a number of clients until a time has passed or, where
// most is above 0, that many calls are made. Calls are numbered from first; it
// returns calls a second and how many calls were made.
func rate(ctx context.Context, clients int, d time.Duration, first, most int, work func(ctx context.Context, n int) error) (perSecond float64, made int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var calls, done atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil && time.Since(start) < d {
				n := int(calls.Add(1)) - 1
				if most > 0 && n >= most {
					return
				}
				if err := work(ctx, first+n); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	return float64(done.Load()) / took.Seconds(), int(done.Load()), context.Cause(ctx)
}

// times calls work n times, one after the other, and returns the median.
func times(n int, work func() error) (time.Duration, error) {
	var all []time.Duration
	for range n {
		start := time.Now()
		if err := work(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}
