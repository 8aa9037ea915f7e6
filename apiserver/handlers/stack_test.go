package handlers

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

// TestGrow_HasTheSizeAskedFor: a grown stack has the requested size and no more.
func TestGrow_HasTheSizeAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		grow func()
		size uint64
	}{
		"filters": {GrowForFilters, 8 << 10},
		"handler": {GrowForHandler, 32 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			const goroutines = 500
			runtime.GC()                                     // frees the stacks of goroutines that have ended
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection halves stacks that are hardly used
			before := stacks()
			var grown, ended sync.WaitGroup
			end := make(chan struct{})
			for range goroutines {
				grown.Add(1)
				ended.Go(func() {
					c.grow()
					grown.Done()
					<-end
				})
			}
			grown.Wait()
			each := (stacks() - before) / goroutines
			close(end)
			ended.Wait()
			// The runtime allocates stacks from the heap in whole spans.
			if each < c.size*9/10 || each > c.size*12/10 {
				t.Errorf("a stack takes %d bytes, want %d", each, c.size)
			}
		})
	}
}

func stacks() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.StackInuse
}
