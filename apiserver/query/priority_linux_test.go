package query

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// priority returns the niceness of the calling thread.
func priority(t testing.TB) int {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // the system call returns 20 minus the niceness
	if err != nil {
		t.Fatal(err)
	}
	return 20 - raw
}

func TestQuery_LowersThePriorityOfItsThread(t *testing.T) {
	t.Parallel()
	before, during := priority(t), 0
	failed := errors.New("failed")
	if err := atLowPriority(func() error { during = priority(t); return failed }); !errors.Is(err, failed) {
		t.Errorf("the error is %v", err)
	}
	if want := min(before+niceness, 19); during != want {
		t.Errorf("the thread of a query has niceness %d, want %d", during, want)
	}
	// The thread has ended: no other goroutine runs on it.
	for range 100 {
		done := make(chan int)
		go func() { done <- priority(t) }()
		if after := <-done; after != before {
			t.Fatalf("a goroutine runs at niceness %d, want %d", after, before)
		}
	}
}

func TestQuery_PanicsWhereItIsAsked(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() != "a panic" {
			t.Error("the panic is lost")
		}
	}()
	_ = atLowPriority(func() error { panic("a panic") })
}

func BenchmarkAtLowPriority(b *testing.B) {
	nothing := func() error { return nil }
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			_ = nothing()
		}
	})
	b.Run("thread", func(b *testing.B) {
		for b.Loop() {
			_ = atLowPriority(nothing)
		}
	})
}
