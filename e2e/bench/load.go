package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// load is the result of a number of clients' requests.
type load struct {
	requests  int
	took      time.Duration
	latencies []time.Duration
}

func (l load) perSecond() float64 { return float64(l.requests) / l.took.Seconds() }

// closedLoop is a load of a number of clients, each of which sends a request, waits for the
// answer, and sends the next one.
type closedLoop struct {
	clients int
	// The load ends after the period, if it is above 0, or after the number of requests.
	period   time.Duration
	requests int
	// first is the number of the first request.
	first int
}

// run calls send with the numbers of the client and of the request.
func (c closedLoop) run(ctx context.Context, send func(ctx context.Context, client, n int) error) (load, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sent atomic.Int64
	var wg sync.WaitGroup
	latencies := make([][]time.Duration, c.clients)
	start := time.Now()
	for client := range c.clients {
		wg.Go(func() {
			for ctx.Err() == nil && (c.period == 0 || time.Since(start) < c.period) {
				n := int(sent.Add(1)) - 1
				if c.requests > 0 && n >= c.requests {
					return
				}
				begun := time.Now()
				if err := send(ctx, client, c.first+n); err != nil {
					cancel(err)
					return
				}
				latencies[client] = append(latencies[client], time.Since(begun))
			}
		})
	}
	wg.Wait()
	l := load{took: time.Since(start)}
	for _, of := range latencies {
		l.requests += len(of)
		l.latencies = append(l.latencies, of...)
	}
	return l, context.Cause(ctx)
}

// openLoop sends requests at a fixed rate, whether or not earlier ones have been answered,
// and returns when all have been.
func openLoop(ctx context.Context, perSecond, requests int, send func(ctx context.Context, n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for n := range requests {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		wg.Go(func() {
			if err := send(ctx, n); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// times sends n requests, one after another, and returns the median of their times.
func times(n int, send func() error) (time.Duration, error) {
	var all []time.Duration
	for range n {
		start := time.Now()
		if err := send(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	return percentile(all, 0.5), nil
}
