package sqlstore

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options of a Store. The zero value of each field means its default.
type Options struct {
	// Publish is called with the changes of this process; nil calls nothing.
	Publish Publish
	// Logger logs the errors that no caller gets; by default nothing is logged.
	Logger *slog.Logger
	// Registerer registers the byre_store_* metrics; by default they are not registered.
	Registerer prometheus.Registerer

	// Retention is the age at which changes are forgotten: 24 hours. Negative
	// means never.
	Retention time.Duration
	// RetentionChanges is the number of changes above which older ones are
	// forgotten, whatever their age: 1,000,000 (with values of 5 kB about 5 GB
	// of disk). Negative means any number.
	RetentionChanges int64
	// RetentionFor says for how long the history of single resources is kept for SQL.
	// Watches resume, and lists read at a revision, only within Retention.
	RetentionFor []ResourceRetention
	// CompactInterval is the time between two compactions: 1 minute.
	CompactInterval time.Duration
	// ExpireInterval is the time between two searches for expired records: 1 second.
	ExpireInterval time.Duration
	// RetryInterval is how often a write is tried while the database takes none:
	// 1 second.
	RetryInterval time.Duration

	// Quota is how many bytes the database may have in use before it takes only writes
	// that don't make it larger (ErrQuota); 0 means any number. The driver is a Sizer.
	Quota int64
	// QuotaInterval is the time between two measurements of the size: 1 second. Writes
	// between two measurements may exceed the quota.
	QuotaInterval time.Duration

	// BatchWrites and BatchBytes bound one transaction: 512 writes, 8 MiB of
	// values. (A greater value than that still gets a batch of its own.)
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
	setDefault(&o.Retention, 24*time.Hour)
	setDefault(&o.RetentionChanges, 1_000_000)
	setDefault(&o.CompactInterval, time.Minute)
	setDefault(&o.ExpireInterval, time.Second)
	setDefault(&o.RetryInterval, time.Second)
	setDefault(&o.QuotaInterval, time.Second)
	setDefault(&o.BatchWrites, 512)
	setDefault(&o.BatchBytes, 8<<20)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
