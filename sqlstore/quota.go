package sqlstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

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
