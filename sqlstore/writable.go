package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// writable tells whether the database takes writes. It judges by how the last transaction
// of the writer ended.
type writable struct {
	logger *slog.Logger

	mu sync.Mutex
	// err is why the last transaction failed; nil if it was committed.
	err error
	// cause is the cause that was logged last, and logged the time at which each cause
	// was. isFailing is true from the line that says that the database takes no writes
	// until the line that says that it takes them again.
	// Invariant: the log has one line for each change of state, and at most one line for
	// each cause in a logPause. record keeps it. Otherwise an outage would fill the log:
	// on a full disk small writes may succeed between large ones that fail, and two
	// causes may alternate.
	cause     string
	logged    map[string]time.Time
	isFailing bool
}

// logPause is the shortest time between two log lines of one cause.
const logPause = time.Minute

// record records how a transaction ended, and logs a change of state.
func (w *writable) record(err error, now time.Time) {
	if err != nil && !isOutage(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.err
	w.err = err
	if err == nil {
		if w.isFailing {
			w.isFailing = false
			w.logger.Info("store: the database takes writes again")
		}
		return
	}
	if before == nil && errors.Is(err, ErrUnknown) { // if the database takes no writes, the next transaction tells why
		w.logger.Warn("store: it is not known whether a transaction was committed", "err", err)
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

// isOutage reports whether the next transaction, whatever its writes are, is likely to fail
// with the same error.
func isOutage(err error) bool {
	var cause *Cause
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown) || errors.As(err, &cause)
}

// lastError returns why the last transaction failed, or nil.
func (w *writable) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Writable returns nil, or why the database takes no writes, in a text that a client may
// read (see Public); that of a full disk has what is free, and what must be before all writes go on. It does not
// ask the database. While transactions fail, the writer tries one every Options.RetryInterval.
func (s *Store) Writable() error {
	err := s.writable.lastError()
	if err == nil && s.inReserve() { // since the start, when no transaction has been made yet
		err = ErrDiskFull
	}
	if err == nil {
		return nil
	}
	text := Public(err)
	if driver, ok := s.Driver.(Exclusive); ok && errors.Is(err, ErrDiskFull) {
		if space, err := driver.Space(); err == nil && space.NeededFree > 0 {
			text += fmt.Sprintf(": %d MiB are free, and %d MiB must be", space.Free>>20, space.NeededFree>>20)
		}
	}
	return errors.New(text)
}

// retryDue returns a channel that receives when it is time to try whether the database
// takes writes again. The channel is nil if the last transaction was committed.
func (s *Store) retryDue() <-chan time.Time {
	if s.writable.lastError() == nil {
		return nil
	}
	return time.After(s.options.RetryInterval)
}

// tryWrite commits an empty batch, to find out whether the database takes writes again. A
// server that is not ready gets no requests: without tryWrite it would never become ready.
func (s *Store) tryWrite(ctx context.Context) {
	var err error
	if !s.inReserve() {
		_, err = s.Driver.Commit(ctx, nil)
	}
	s.recordCommit(err)
}

// recordCommit records how a transaction ended. While the reserve of a full disk is in use the
// database counts as one that takes no writes, though it takes deletes.
func (s *Store) recordCommit(err error) {
	if err == nil && s.inReserve() {
		err = ErrDiskFull
	}
	s.writable.record(err, time.Now())
}

func (s *Store) inReserve() bool {
	d, ok := s.Driver.(Exclusive)
	return ok && d.InReserve()
}

// checkSpace refuses a write that makes the database larger while the quota is exceeded or the
// reserve of a full disk is in use.
func (s *Store) checkSpace(w *Write) error {
	if w.Op == Delete || !w.Grows {
		return nil
	}
	if s.inReserve() {
		return ErrDiskFull
	}
	return s.quota.err()
}

// quotaRecovery is the percentage of the quota to which use must fall before the database
// takes writes again that make it larger. Without this hysteresis each delete and each
// create near the quota would end and raise the alarm.
const quotaRecovery = 95

// quota is the alarm that etcd calls NOSPACE. Unlike etcd's, it ends by itself.
type quota struct {
	limit  int64
	logger *slog.Logger

	mu sync.Mutex
	// used is the last measurement, in bytes. isExceeded is true from a measurement that
	// reaches limit until one that is at most quotaRecovery percent of it.
	used       int64
	isExceeded bool
}

// record records a measurement, in bytes.
func (q *quota) record(used int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used = used
	switch {
	case !q.isExceeded && used >= q.limit:
		q.isExceeded = true
		q.logger.Error("store: the database has reached its quota and takes no writes that make it larger: "+
			"delete objects and run \"byre compact --keep 0\", or raise --database-quota", "used", used, "quota", q.limit)
	case q.isExceeded && used <= q.limit/100*quotaRecovery:
		q.isExceeded = false
		q.logger.Info("store: the database is below its quota again", "used", used, "quota", q.limit)
	}
}

// err returns an error that matches ErrQuota and tells the sizes while the quota is exceeded,
// and else nil.
func (q *quota) err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isExceeded {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are in use, and the quota is %d", ErrQuota, q.used, q.limit)
}

// Quota returns an error that matches ErrQuota while the database has reached
// Options.Quota. It does not ask the database.
func (s *Store) Quota() error { return s.quota.err() }

// watchQuota measures the database until ctx ends.
func (s *Store) watchQuota(ctx context.Context) {
	ticker := time.NewTicker(s.options.QuotaInterval)
	defer ticker.Stop()
	for {
		// After an error the last measurement stays: a database that does not answer
		// takes no writes either.
		if used, err := s.Used(ctx); err == nil {
			s.quota.record(used)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
