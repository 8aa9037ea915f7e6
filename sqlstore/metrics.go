package sqlstore

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	commits     *prometheus.CounterVec
	seconds     prometheus.Histogram
	sizes       prometheus.Histogram
	revision    prometheus.Gauge
	compacted   prometheus.Gauge
	compactions prometheus.Histogram
	expired     prometheus.Counter
	cut         *prometheus.CounterVec
}

// newMetrics makes the metrics of a store on a driver, and registers them with r unless r is nil.
// queued returns the length of the store's queue.
func newMetrics(r prometheus.Registerer, driver Driver, queued func() int, quota *quota) *metrics {
	f := promauto.With(r)
	m := &metrics{
		commits: f.NewCounterVec(prometheus.CounterOpts{
			Name: "byre_store_commits_total",
			Help: "Transactions of the store's writer by result: ok, unavailable, unknown or error.",
		}, []string{"result"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "byre_store_commit_seconds",
			Help:    "Duration of the transactions of the store's writer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		sizes: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "byre_store_batch_writes",
			Help:    "Writes in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		revision: f.NewGauge(prometheus.GaugeOpts{
			Name: "byre_store_revision",
			Help: "Last revision that this process has seen in the store.",
		}),
		compacted: f.NewGauge(prometheus.GaugeOpts{
			Name: "byre_store_compacted_revision",
			Help: "Last revision whose history is gone.",
		}),
		compactions: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "byre_store_compaction_chunk_seconds",
			Help:    "Duration of one chunk of a compaction.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		expired: f.NewCounter(prometheus.CounterOpts{
			Name: "byre_store_expired_total",
			Help: "Records deleted because their time had come.",
		}),
		cut: f.NewCounterVec(prometheus.CounterOpts{
			Name: "byre_store_history_cut_total",
			Help: "Changes deleted before their age because a resource had more than --retention-changes.",
		}, []string{"group", "resource"}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "byre_store_queue_length",
		Help: "Writes that wait for their transaction to begin.",
	}, func() float64 { return float64(queued()) })
	quota.register(f)
	if driver, ok := driver.(Exclusive); ok && r != nil {
		r.MustRegister(spaceCollector{driver})
	}
	return m
}

// spaceCollector has the metrics of the file system of a database.
type spaceCollector struct{ driver Exclusive }

var (
	logDesc   = prometheus.NewDesc("byre_store_wal_bytes", "Size of the SQLite write-ahead log.", nil, nil)
	limitDesc = prometheus.NewDesc("byre_store_wal_limit_bytes",
		"Size at which the SQLite write-ahead log starts over if no reader needs it.", nil, nil)
	readerDesc = prometheus.NewDesc("byre_store_wal_reader_seconds",
		"For how long at least a reader in a transaction has kept the write-ahead log from being copied back; 0 if none does.", nil, nil)
	freeDesc = prometheus.NewDesc("byre_store_disk_free_bytes",
		"Free space of the file system of the SQLite database.", nil, nil)
	reserveDesc = prometheus.NewDesc("byre_store_disk_reserve_missing",
		"1 if there is no --disk-reserve, so that deletes fail too when the disk is full.", nil, nil)
)

// Describe implements prometheus.Collector.
func (spaceCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{logDesc, limitDesc, readerDesc, freeDesc, reserveDesc} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector. There are no metrics while the file system does not answer.
func (c spaceCollector) Collect(metrics chan<- prometheus.Metric) {
	s, err := c.driver.Space()
	if err != nil {
		return
	}
	missing := 0.0
	if s.IsReserveMissing {
		missing = 1
	}
	for desc, value := range map[*prometheus.Desc]float64{
		logDesc: float64(s.Log), limitDesc: float64(s.LogLimit), readerDesc: s.Reader.Seconds(),
		freeDesc: float64(s.Free), reserveDesc: missing,
	} {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
}

// register registers the metrics of the quota, unless the store has none.
func (q *quota) register(f promauto.Factory) {
	if q.limit <= 0 {
		return
	}
	gauge := func(name, help string, value func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			q.mu.Lock()
			defer q.mu.Unlock()
			return value()
		})
	}
	gauge("byre_store_quota_bytes", "Size of the database at which writes that make it larger are refused.",
		func() float64 { return float64(q.limit) })
	gauge("byre_store_used_bytes", "Bytes of the database that are in use, as counted against its quota.",
		func() float64 { return float64(q.used) })
	gauge("byre_store_quota_exceeded", "1 while writes are refused because of the quota.",
		func() float64 {
			if q.isExceeded {
				return 1
			}
			return 0
		})
}

// observeCommit counts a transaction of the writer.
func (m *metrics) observeCommit(writes int, took time.Duration, err error) {
	result := "ok"
	switch {
	case err == nil:
	case errors.Is(err, ErrUnavailable):
		result = "unavailable"
	case errors.Is(err, ErrUnknown):
		result = "unknown"
	default:
		result = "error"
	}
	m.commits.WithLabelValues(result).Inc()
	m.seconds.Observe(took.Seconds())
	m.sizes.Observe(float64(writes))
}

const (
	// ReportAfter is how long work takes before anything is said of it.
	ReportAfter = 2 * time.Second
	// ReportInLog is the time between two lines of a log.
	ReportInLog = 10 * time.Second
)

// ReportElapsed calls report after a time, and then every so often, with the time since Report was
// called, until stop is called. If after is not positive, the first call is made before Report
// returns. The others are made in a goroutine, none of which is left once stop has returned. The
// caller calls stop once.
func ReportElapsed(after, every time.Duration, report func(elapsed time.Duration)) (stop func()) {
	start := time.Now()
	if after <= 0 {
		report(0)
		after = every
	}
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		timer := time.NewTimer(after)
		defer timer.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-timer.C:
				report(time.Since(start))
				timer.Reset(every)
			}
		}
	}()
	return func() {
		close(stopped)
		<-ended
	}
}
