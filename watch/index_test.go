package watch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"byre/sqlstore/storetest"
)

// A feed that stops does not wait until an index has asked for every record: to
// find the value of one may take as long as a time-out of what decrypts it.
func TestBuildEndsWithTheFeed(t *testing.T) {
	f := New(&source{Model: storetest.NewModel()}, Options{SoleWriter: true})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	w := &fixture{t: t, Feed: f, source: f.source.(*source)}
	for i := range 100 {
		w.write(pod("a", fmt.Sprint(i)), "?")
	}
	var asked atomic.Int64
	index := byValue()
	index.Find = func(*Entry) (string, bool) {
		asked.Add(1)
		stop()
		return "", false
	}
	if _, err := f.SnapshotIndexed(t.Context(), pods, index); !errors.Is(err, ErrClosed) {
		t.Errorf("snapshot: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d records were asked for", n)
	}
}
