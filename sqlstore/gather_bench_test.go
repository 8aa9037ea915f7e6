package sqlstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
)

// BenchmarkGather has writers do the work of a request (about 100 microseconds of processor
// time) and then write, with and without gathering.
func BenchmarkGather(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		for _, gathers := range []bool{true, false} {
			b.Run(fmt.Sprintf("writers=%d/gather=%v", writers, gathers), func(b *testing.B) { benchmarkGather(b, writers, gathers) })
		}
	}
}

func benchmarkGather(b *testing.B, writers int, gathers bool) {
	driver := dbtest.SQLite(b)
	defer driver.Close()
	store := sqlstore.New(driver, sqlstore.Options{})
	run := store.Run
	if !gathers {
		run = store.RunWithoutGathering
	}
	ctx, stop := context.WithCancel(b.Context())
	var running, writing sync.WaitGroup
	running.Go(func() { _ = run(ctx) })
	var next atomic.Int64
	began := processorTime(b)
	b.ResetTimer()
	for range writers {
		writing.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				w := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)}, Value: request(b)}
				if _, err := store.Commit(ctx, w); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	b.ReportMetric(float64((processorTime(b)-began).Microseconds())/float64(b.N), "cpu-µs/write")
	stop()
	running.Wait()
}

// request encodes and decodes a value of about 2 kB, as a request does.
func request(b *testing.B) []byte {
	value := map[string]any{}
	for i := range 60 {
		value[fmt.Sprint("field", i)] = "a value of some length"
	}
	encoded, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(encoded, &value)
	}
	if err != nil {
		b.Error(err)
	}
	return encoded
}

// processorTime is the processor time of this process, of user and system.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
