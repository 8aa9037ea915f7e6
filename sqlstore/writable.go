package sqlstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// writable reports whether the database takes writes, by how the writer's last
// transaction ended.
type writable struct {
	logger *slog.Logger

	mu sync.Mutex
	// err is why the last transaction failed; nil when it was committed.
	err error
	// cause is the cause that was logged last, logged when each was; isFailing is
	// true from the line that says that writes fail to the line that says that they
	// go through again.
	// Invariant: the log has one line a change of state, and at most one line of a
	// cause in a logPause. On a full disk small writes may go through between large
	// ones that fail, and two causes may alternate.
	cause     string
	logged    map[string]time.Time
	isFailing bool
}

const logPause = time.Minute

// record records how a transaction ended.
func (w *writable) record(err error, now time.Time) {
	if err != nil && !isOutage(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if err == nil {
		if w.isFailing {
			w.isFailing = false
			w.logger.Info("store: the database takes writes again")
		}
		return
	}
	cause := Public(err)
	at, isLogged := w.logged[cause]
	if cause == w.cause && w.isFailing || isLogged && now.Sub(at) < logPause {
		return
	}
	w.cause, w.logged[cause], w.isFailing = cause, now, true
	w.logger.Error("store: the database takes no writes", "cause", cause, "err", err)
}

// isOutage reports whether the next transaction is likely to fail by the same error,
// unlike by an error of one write.
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

// retry receives when it is time to try whether the database takes writes again. It
// is nil where the last transaction was committed.
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
	s.writable.record(err, time.Now())
}
