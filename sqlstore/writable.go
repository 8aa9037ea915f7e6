package sqlstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// writable knows whether the database takes writes: how the writer's last
// transaction ended.
type writable struct {
	logger *slog.Logger

	mu sync.Mutex
	// err is why the last transaction failed; nil when it was committed.
	err error
	// cause is what the log was told last, logged when it was told of each;
	// failing says that the log has not been told since that writes go through
	// again.
	// Invariant: the log has one line a change of state, and of one cause at most
	// one a logPause: on a full disk small writes may go through between large
	// ones that don't, and what fails may take turns.
	cause   string
	logged  map[string]time.Time
	failing bool
}

const logPause = time.Minute

// note takes down how a transaction ended.
func (w *writable) note(err error, now time.Time) {
	if err != nil && !isOutage(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if err == nil {
		if w.failing {
			w.failing = false
			w.logger.Info("store: the database takes writes again")
		}
		return
	}
	cause := Public(err)
	at, known := w.logged[cause]
	if cause == w.cause && w.failing || known && now.Sub(at) < logPause {
		return
	}
	w.cause, w.logged[cause], w.failing = cause, now, true
	w.logger.Error("store: the database takes no writes", "cause", cause, "err", err)
}

// isOutage tells an error that the next transaction would meet too from that of
// one write.
func isOutage(err error) bool {
	var cause *Cause
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown) || errors.As(err, &cause)
}

// last returns why the last transaction failed, or nil.
func (w *writable) last() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Writable returns nil, or why the database does not take writes, in words for
// everybody. It asks nobody: while writes fail the writer tries one every
// Options.RetryInterval by itself.
func (s *Store) Writable() error {
	if err := s.writable.last(); err != nil {
		return errors.New(Public(err))
	}
	return nil
}

// retry fires when it is time to try whether the database takes writes again;
// nil where the last one went through.
func (s *Store) retry() <-chan time.Time {
	if s.writable.last() == nil {
		return nil
	}
	return time.After(s.options.RetryInterval)
}

// tryWrite finds out whether the database takes writes again, so that a server
// which gets no requests because it is not ready becomes ready.
func (s *Store) tryWrite(ctx context.Context) {
	_, err := s.Driver.Commit(ctx, nil)
	s.writable.note(err, time.Now())
}
