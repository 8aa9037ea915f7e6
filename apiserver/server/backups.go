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
	"github.com/spf13/pflag"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"byre/apiserver/process"
	"byre/apiserver/process/pki"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
)

// newBackupFeature makes the feature of scheduled backups, and of copies of the keys beside them and beside
// continuous copies.
func newBackupFeature() Feature {
	o := &backupOptions{Keep: 7}
	return Feature{
		AddFlags: func(section func(string) *pflag.FlagSet) { o.addFlags(section("store")) },
		Validate: o.validate,
		New: func(b *Base) (part Part, _ error) {
			legacyregistry.Registerer().MustRegister(backupCollector{b.Database.Driver})
			// A fork may have the configuration of the cluster that it is of, whose backups it must not delete.
			if o.Schedule != "" && !b.IsFork {
				part.Work = append(part.Work, process.Component{
					Name: "scheduled backups", Run: func(ctx context.Context) error { return o.makeBackups(ctx, b) },
				})
			}
			if b.Database.Replication != nil && len(o.Recipients) > 0 {
				part.Work = append(part.Work, process.Component{
					Name: "copies of keys", Run: func(ctx context.Context) error { return o.copyKeys(ctx, b) },
				})
			}
			return part, nil
		},
	}
}

// backupOptions say when the server makes backups of its database by itself, and where.
type backupOptions struct {
	// Schedule is in the form of backup.ParseSchedule, and To is the name of a bucket.Directory.
	Schedule, To string
	Keep         int
	Recipients   []string
}

func (o *backupOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Schedule, "backup-schedule", o.Schedule,
		"When to make a backup of the database: the five fields of cron, such as 'CRON_TZ=UTC 0 3 * * *', in local time without CRON_TZ (a time that the clocks skip in spring has no run that day), or @hourly, @daily, @weekly, '@every 6h'. Of the servers on one PostgreSQL one makes it. A backup that was due while no server ran is made at the next start. If not set, none is made.")
	fs.StringVar(&o.To, "backup-to", o.To,
		"Where --backup-schedule writes to: a directory, which must exist, s3://BUCKET or s3://BUCKET/PREFIX.")
	fs.IntVar(&o.Keep, "backup-keep", o.Keep,
		"How many backups of --backup-schedule are kept; older ones of the same cluster are deleted.")
	fs.StringArrayVar(&o.Recipients, "age-recipient", o.Recipients,
		"Write the certificates and keys of --cert-dir beside each backup of --backup-schedule, and into each place of --replicate-to, encrypted by age for this public key, as age-keygen prints it. May be repeated.")
}

func (o *backupOptions) validate(all *Options) []error {
	var errs invalid
	errs.unless((o.Schedule == "") == (o.To == ""), "--backup-schedule and --backup-to need each other: set both, or none")
	if o.Schedule != "" {
		_, err := backup.ParseSchedule(o.Schedule)
		errs.unless(err == nil, "--backup-schedule %q: %w; want five fields such as '0 3 * * *', or @daily", o.Schedule, err)
	}
	_, err := pki.Recipients(o.Recipients)
	errs.add(err)
	errs.unless(o.Keep >= 1, "--backup-keep must be at least 1")
	errs.unless(len(o.Recipients) == 0 || o.Schedule != "" || len(all.Store.ReplicateTo) > 0,
		"--age-recipient needs --backup-schedule or --replicate-to, beside whose copies the keys are")
	return errs
}

// backupCollector is the metric byre_store_last_backup_timestamp_seconds. It asks the
// database for the last backup at each scrape, because other processes make
// backups too. A database without a backup has no metric.
type backupCollector struct{ driver sqlstore.Driver }

// backupTimeout bounds the query that one scrape makes.
const backupTimeout = 2 * time.Second

var lastBackupDesc = prometheus.NewDesc("byre_store_last_backup_timestamp_seconds",
	"When byre backup, or --backup-schedule, has last completed a backup of this database, with its revision and where it was written to.",
	[]string{"revision", "location"}, nil)

// writeKeys returns what writes the certificates and keys of the server for the keys of --age-recipient; nil if there
// are none.
func (o *backupOptions) writeKeys(certDir string) (func(io.Writer) error, error) {
	to, err := pki.Recipients(o.Recipients)
	if err != nil || len(to) == 0 {
		return nil, err
	}
	return func(w io.Writer) error { return pki.WriteArchive(w, certDir, to...) }, nil
}

// keysInterval is the time after which copyKeys writes again: a CA may have been replaced.
const keysInterval = 24 * time.Hour

// copyKeys writes the certificates and keys into the places of --replicate-to, until ctx ends.
func (o *backupOptions) copyKeys(ctx context.Context, b *Base) error {
	store := &b.Options.Store
	write, err := o.writeKeys(b.Options.CertDir)
	if err != nil {
		return err
	}
	for failed := false; ; {
		var errs []error
		for _, place := range store.ReplicateTo {
			file := replication.Location(place, store.S3)
			file.Name += bucket.KeysSuffix
			errs = append(errs, file.Write(ctx, write))
		}
		err, next := errors.Join(errs...), keysInterval
		if err != nil {
			next = backup.RetryInterval
			if !failed && ctx.Err() == nil {
				klog.ErrorS(err, "A place of --replicate-to has no copy of the certificates and keys; trying again until it has",
					"every", next)
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
func (o *backupOptions) makeBackups(ctx context.Context, b *Base) error {
	times, err := backup.ParseSchedule(o.Schedule)
	if err != nil {
		return err
	}
	keys, err := o.writeKeys(b.Options.CertDir)
	if err != nil {
		return err
	}
	database := &b.Database
	shared, _ := database.Driver.(sqlstore.Shared)
	backups := backup.Schedule{
		Times: times, To: bucket.Directory{Name: o.To, S3: b.Options.Store.S3}, Keep: o.Keep, Program: ProgramVersion(),
		WriteKeys: keys,
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
