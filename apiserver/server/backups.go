package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"byre/apiserver/process/pki"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
)

// backupCollector is the metric byre_store_last_backup_timestamp_seconds. It asks the
// database for the last backup at each scrape, because other processes make
// backups too. A database without a backup has no metric.
type backupCollector struct{ driver sqlstore.Driver }

// backupTimeout bounds the query that one scrape makes.
const backupTimeout = 2 * time.Second

var lastBackupDesc = prometheus.NewDesc("byre_store_last_backup_timestamp_seconds",
	"When byre backup, or --backup-schedule, has last completed a backup of this database, with its revision and where it was written to.",
	[]string{"revision", "location"}, nil)

// writeKeys returns what writes the certificates and keys of the server for the keys of --age-recipient; nil if there are none.
func writeKeys(o Completed) (func(io.Writer) error, error) {
	to, err := pki.Recipients(o.Backup.Recipients)
	if err != nil || len(to) == 0 {
		return nil, err
	}
	return func(w io.Writer) error { return pki.WriteArchive(w, o.CertDir, to...) }, nil
}

// keysInterval is the time after which copyKeys writes again: a CA may have been replaced.
const keysInterval = 24 * time.Hour

// copyKeys writes the certificates and keys into the places of --replicate-to, until ctx ends.
func copyKeys(ctx context.Context, o Completed) error {
	write, err := writeKeys(o)
	if err != nil {
		return err
	}
	for failed := false; ; {
		var errs []error
		for _, place := range o.Store.ReplicateTo {
			file := replication.Location(place, o.Store.S3)
			file.Name += bucket.KeysSuffix
			errs = append(errs, file.Write(ctx, write))
		}
		err, next := errors.Join(errs...), keysInterval
		if err != nil {
			next = backup.RetryInterval
			if !failed && ctx.Err() == nil {
				klog.ErrorS(err, "A place of --replicate-to has no copy of the certificates and keys; trying again until it has", "every", next)
			}
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// makeBackups makes the backups of --backup-schedule.
func makeBackups(ctx context.Context, o Completed, database Database) error {
	times, err := backup.ParseSchedule(o.Backup.Schedule)
	if err != nil {
		return err
	}
	keys, err := writeKeys(o)
	if err != nil {
		return err
	}
	shared, _ := database.Driver.(sqlstore.Shared)
	backups := backup.Schedule{
		Times: times, To: bucket.Directory{Name: o.Backup.To, S3: o.Store.S3}, Keep: o.Backup.Keep, Program: ProgramVersion(), WriteKeys: keys,
		Database: backup.ScheduledDatabase{
			Read: database.ReadSnapshot, Last: database.Driver.LastBackup, Record: database.RecordBackup, Shared: shared,
		},
		Logger: slog.New(logr.ToSlogHandler(klog.Background())),
	}
	return backups.Run(ctx)
}

// Describe implements prometheus.Collector.
func (backupCollector) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- lastBackupDesc }

// Collect implements prometheus.Collector.
func (c backupCollector) Collect(metrics chan<- prometheus.Metric) {
	// Prometheus passes no context to a collector.
	ctx, cancel := context.WithTimeout(context.Background(), backupTimeout)
	defer cancel()
	last, err := c.driver.LastBackup(ctx)
	if errors.Is(err, sqlstore.ErrNotFound) {
		return
	}
	if err != nil {
		klog.V(2).InfoS("The last backup is not known", "err", err)
		return
	}
	metrics <- prometheus.MustNewConstMetric(lastBackupDesc, prometheus.GaugeValue,
		float64(last.Time.Unix()), strconv.FormatInt(last.Revision, 10), last.Location)
}
