package controllers

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// blockedLock is a lock whose updates wait until proceed is closed, and succeed unless
// their context has ended by then.
type blockedLock struct {
	resourcelock.Interface
	begun, proceed chan struct{}
}

func (l *blockedLock) Update(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	close(l.begun)
	<-l.proceed
	return ctx.Err()
}

// TestLease_RenewalOutlivesItsElector cancels the context of a renewal before the server
// has answered: the renewal goes on to its end.
func TestLease_RenewalOutlivesItsElector(t *testing.T) {
	blocked := &blockedLock{begun: make(chan struct{}), proceed: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	renewed := make(chan error, 1)
	go func() {
		renewed <- uncancelledUpdates{blocked}.Update(ctx, resourcelock.LeaderElectionRecord{})
	}()
	<-blocked.begun
	cancel()
	close(blocked.proceed)
	if err := <-renewed; err != nil {
		t.Errorf("the renewal ended with %v", err)
	}
}

// TestLease_RenewalEndsAtItsDeadline: a renewal ends before the elector may no longer
// believe that it leads.
func TestLease_RenewalEndsAtItsDeadline(t *testing.T) {
	blocked := &blockedLock{begun: make(chan struct{}), proceed: make(chan struct{})}
	close(blocked.proceed)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := (uncancelledUpdates{blocked}).Update(ctx, resourcelock.LeaderElectionRecord{}); err == nil {
		t.Error("the renewal outlasted its deadline")
	}
}
