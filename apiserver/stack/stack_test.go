package stack

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

// TestRoomIsMade: stacks are as large as what was asked for makes them, and no larger.
func TestRoomIsMade(t *testing.T) {
	for name, c := range map[string]struct {
		make func()
		size uint64
	}{
		"some": {Some, 8 << 10},
		"much": {Much, 32 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			const goroutines = 500
			runtime.GC()                                     // gives back the stacks of goroutines that ended
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection halves those that are hardly used
			before := stacks()
			var made, ended sync.WaitGroup
			end := make(chan struct{})
			for range goroutines {
				made.Add(1)
				ended.Go(func() {
					c.make()
					made.Done()
					<-end
				})
			}
			made.Wait()
			each := (stacks() - before) / goroutines
			close(end)
			ended.Wait()
			// The runtime takes stacks from the heap by the span.
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
