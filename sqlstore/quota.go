package sqlstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// quotaRecovery is the part of the quota, in percent, that must be in use at most before
// writes that grow the database are taken again. Without this hysteresis the alarm would
// change with every delete.
const quotaRecovery = 95

// quota is the alarm that etcd calls NOSPACE. Unlike etcd's it ends by itself.
type quota struct {
	limit  int64
	logger *slog.Logger

	mu sync.Mutex
	// used is the last measurement. isExceeded is true from a measurement that reaches
	// the limit to one that finds enough space.
	used       int64
	isExceeded bool
}

// measured records a measurement.
func (q *quota) measured(used int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used = used
	switch {
	case !q.isExceeded && used >= q.limit:
		q.isExceeded = true
		q.logger.Error("store: the database has reached its quota and takes no writes that make it larger: "+
			"delete objects, shorten --retention, or raise --database-quota", "used", used, "quota", q.limit)
	case q.isExceeded && used <= q.limit/100*quotaRecovery:
		q.isExceeded = false
		q.logger.Info("store: the database is below its quota again", "used", used, "quota", q.limit)
	}
}

// err is ErrQuota with the sizes while the quota is exceeded, else nil.
func (q *quota) err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isExceeded {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are in use, and the quota is %d", ErrQuota, q.used, q.limit)
}

// check refuses a write that makes the database larger while the quota is exceeded.
func (q *quota) check(w *Write) error {
	if w.Op == Delete || w.Op == Update && !w.Grows {
		return nil
	}
	return q.err()
}

// Quota returns an error that matches ErrQuota while the database has reached
// Options.Quota. It does not ask the database.
func (s *Store) Quota() error { return s.quota.err() }

// watchQuota measures the database until ctx ends.
func (s *Store) watchQuota(ctx context.Context, sizer Sizer) {
	ticker := time.NewTicker(s.options.QuotaInterval)
	defer ticker.Stop()
	for {
		// An error needs no handling: a database that does not answer takes no writes
		// either.
		if used, err := sizer.Used(ctx); err == nil {
			s.quota.measured(used)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
