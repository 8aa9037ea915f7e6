package sqlstore

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options of a Store. The zero value of each field means its default.
type Options struct {
	// Publish is told of this process's changes; nil for nobody.
	Publish Publish
	// Logger takes what no caller is there to be told; it is discarded.
	Logger *slog.Logger
	// Registerer takes the byre_store_* metrics; they aren't registered.
	Registerer prometheus.Registerer

	// Retention is the age at which changes are forgotten: 24 hours. Negative
	// means never.
	Retention time.Duration
	// RetentionChanges is the number of changes above which older ones are
	// forgotten, whatever their age: 1,000,000 (with values of 5 kB about 5 GB
	// of disk). Negative means any number.
	RetentionChanges int64
	// RetentionFor is for how long the history of single resources is kept, for people.
	// Watches resume, and lists read at a revision, only within Retention.
	RetentionFor []ResourceRetention
	// CompactInterval is how often the two are looked at: 1 minute.
	CompactInterval time.Duration
	// ExpireInterval is how often expired records are looked for: 1 second.
	ExpireInterval time.Duration
	// RetryInterval is how often a write is tried while the database takes none:
	// 1 second.
	RetryInterval time.Duration

	// Quota is how many bytes the database may have in use before it takes only writes
	// that don't make it larger (ErrQuota); 0 means any number. The driver is a Sizer.
	Quota int64
	// QuotaInterval is how often that is measured: 1 second. What is written meanwhile
	// may exceed the quota.
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
