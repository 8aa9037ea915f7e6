package server

import (
	"github.com/spf13/pflag"

	"byre/apiserver/process/pki"
	"byre/sqlstore/backup"
)

// BackupOptions say when the server makes backups of its database by itself, and where.
type BackupOptions struct {
	// Schedule is in the form of backup.ParseSchedule, and To is the name of a bucket.Directory.
	Schedule, To string
	Keep         int
	Recipients   []string
}

// AddFlags adds the flags.
func (o *BackupOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Schedule, "backup-schedule", o.Schedule,
		"When to make a backup of the database: the five fields of cron, such as 'CRON_TZ=UTC 0 3 * * *', in local time without CRON_TZ (a time that the clocks skip in spring has no run that day), or @hourly, @daily, @weekly, '@every 6h'. Of the servers on one PostgreSQL one makes it. A backup that was due while no server ran is made at the next start. If not set, none is made.")
	fs.StringVar(&o.To, "backup-to", o.To,
		"Where --backup-schedule writes to: a directory, which must exist, s3://BUCKET or s3://BUCKET/PREFIX.")
	fs.IntVar(&o.Keep, "backup-keep", o.Keep,
		"How many backups of --backup-schedule are kept; older ones of the same cluster are deleted.")
	fs.StringArrayVar(&o.Recipients, "age-recipient", o.Recipients,
		"Write the certificates and keys of --cert-dir beside each backup of --backup-schedule, and into each place of --replicate-to, encrypted by age for this public key, as age-keygen prints it. May be repeated.")
}

// Validate returns one error for each invalid flag.
func (o *BackupOptions) Validate() []error {
	var errs invalid
	errs.unless((o.Schedule == "") == (o.To == ""), "--backup-schedule and --backup-to need each other: set both, or none")
	if o.Schedule != "" {
		_, err := backup.ParseSchedule(o.Schedule)
		errs.unless(err == nil, "--backup-schedule %q: %w; want five fields such as '0 3 * * *', or @daily", o.Schedule, err)
	}
	_, err := pki.Recipients(o.Recipients)
	errs.add(err)
	errs.unless(o.Keep >= 1, "--backup-keep must be at least 1")
	return errs
}
