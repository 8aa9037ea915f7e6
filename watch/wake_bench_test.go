package watch

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// BenchmarkWake has 200 watchers read each event, at several rates of events, with and
// without the pause of wakeWatchers. It reports the processor time of one delivery, and the
// average time until the last watcher has an event.
func BenchmarkWake(b *testing.B) {
	const watchers = 200
	for _, rate := range []int{1000, 5000} {
		for _, interval := range []time.Duration{0, time.Millisecond, 2 * time.Millisecond} {
			b.Run(fmt.Sprintf("rate=%d/interval=%v", rate, interval), func(b *testing.B) {
				benchmarkWake(b, watchers, rate, interval)
			})
		}
	}
}

func benchmarkWake(b *testing.B, watchers, rate int, interval time.Duration) {
	f := New(&source{Model: storetest.NewModel()}, Options{})
	f.wakeInterval = interval
	ctx, stop := context.WithCancel(b.Context())
	var running, reading sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	w := &fixture{t: b, Feed: f, source: f.tail.source.(*source)}
	published := make([]time.Time, b.N+1)
	var mu sync.Mutex
	var waited time.Duration
	subscriptions := make([]*Subscription, watchers)
	for i := range subscriptions {
		subscriptions[i] = w.subscribe(Interest{}, 0)
	}
	changes := make([]sqlstore.Change, b.N)
	for i := range changes {
		changes[i] = w.put(pod("a", fmt.Sprint(i%100)), "x")
	}
	for _, s := range subscriptions {
		reading.Go(func() {
			for read := 0; read < b.N; {
				events, _, err := s.Next(ctx)
				if err != nil {
					b.Error(err)
					return
				}
				read += len(events)
				now := time.Now()
				mu.Lock()
				for _, ev := range events {
					waited += now.Sub(published[ev.Revision])
				}
				mu.Unlock()
			}
		})
	}
	began := processorTime(b)
	b.ResetTimer()
	for i, c := range changes {
		if due := time.Duration(i) * time.Second / time.Duration(rate); due > b.Elapsed() {
			time.Sleep(due - b.Elapsed()) // the rate is the parameter
		}
		mu.Lock()
		published[c.Revision] = time.Now()
		mu.Unlock()
		f.Publish([]sqlstore.Change{c})
	}
	reading.Wait()
	deliveries := float64(b.N * watchers)
	b.ReportMetric(float64(processorTime(b)-began)/deliveries, "cpu-ns/delivery")
	b.ReportMetric(float64(waited.Microseconds())/deliveries, "µs/delay")
	stop()
	running.Wait()
}

// processorTime is the processor time of this process, of user and system.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
