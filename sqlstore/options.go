package sqlstore

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options of a Store. The zero value of each field means its default.
type Options struct {
	// Publish gets the changes that this process makes. By default nobody gets them.
	Publish Publish
	// Logger logs the errors that no caller gets. By default nothing is logged.
	Logger *slog.Logger
	// Registerer registers the byre_store_* metrics. By default they are not registered.
	Registerer prometheus.Registerer

	// ReadOnly is for a process that writes nothing: Commit fails with ErrReadOnly, nothing expires and
	// nothing is compacted.
	ReadOnly bool

	// Retention is the age at which changes are deleted; the default is 7 days. Negative means
	// never.
	Retention time.Duration
	// RetentionChanges is the number of changes of one resource above which the oldest ones
	// are deleted, whatever their age; the default is 1,000,000 (with values of 5 kB about 5
	// GB of disk). There may be a tenth more. Negative means any number. It does not apply to
	// a resource whose history RetentionFor keeps for longer than Retention.
	RetentionChanges int64
	// RetentionFor says for how long the history of single resources is kept.
	RetentionFor []ResourceRetention
	// Alone says that nobody else writes: compactions leave no time to writers.
	Alone bool
	// CompactInterval is the time between two compactions; the default is 1 minute.
	CompactInterval time.Duration
	// ExpireInterval is the time between two searches for expired records; the default
	// is 1 second.
	ExpireInterval time.Duration
	// RetryInterval is the time between two attempts to write while the database takes
	// no writes; the default is 1 second.
	RetryInterval time.Duration

	// Quota is the number of bytes in use (Driver.Used) from which on writes that make the
	// database larger fail with ErrQuota; 0 means no quota.
	Quota int64
	// QuotaInterval is the time between two measurements of the size; the default is 1
	// second. Writes between two measurements may exceed the quota.
	QuotaInterval time.Duration

	// BatchWrites and BatchBytes bound one transaction; the defaults are 512 writes and
	// 8 MiB of values. (A value of more than BatchBytes gets a transaction of its own.)
	BatchWrites int
	BatchBytes  int
}

func (o Options) withDefaults() Options {
	if o.Publish == nil {
		o.Publish = func([]Change) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Retention = cmp.Or(o.Retention, 7*24*time.Hour)
	o.RetentionChanges = cmp.Or(o.RetentionChanges, 1_000_000)
	o.CompactInterval = cmp.Or(o.CompactInterval, time.Minute)
	o.ExpireInterval = cmp.Or(o.ExpireInterval, time.Second)
	o.RetryInterval = cmp.Or(o.RetryInterval, time.Second)
	o.QuotaInterval = cmp.Or(o.QuotaInterval, time.Second)
	o.BatchWrites = cmp.Or(o.BatchWrites, 512)
	o.BatchBytes = cmp.Or(o.BatchBytes, 8<<20)
	return o
}
