package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"byre/sqlstore"
	"byre/sqlstore/bucket"
)

const (
	// RetryInterval is the time after which a backup that failed, or that another process makes, is
	// looked at again.
	RetryInterval = 5 * time.Minute
	// backupTimeout bounds one backup.
	backupTimeout = 12 * time.Hour
	// recordTimeout bounds the write of its record.
	recordTimeout = 5 * time.Second
	// mostAhead is how far the clock of another process may be ahead of this one's. A moment that is later is one
	// of a clock that was set back since.
	mostAhead = time.Hour
	// nameFormat is the form of Name, for package time.
	nameFormat = "byre-20060102T150405Z" + bucket.Suffix
	// partialNames matches each Name, also with bucket.KeysSuffix, for package path.
	partialNames = "byre-*" + bucket.Suffix + "*"
)

// FileName returns the name of the backup of a moment.
func FileName(moment time.Time) string { return moment.UTC().Format(nameFormat) }

// ParseSchedule parses the times of a schedule: the five fields of cron, in local time, or @daily and the like.
func ParseSchedule(text string) (cron.Schedule, error) {
	times, err := cron.ParseStandard(text)
	if err == nil && times.Next(time.Now()).IsZero() {
		err = errors.New("that never comes")
	}
	return times, err
}

// ScheduledDatabase is the database of the backups.
type ScheduledDatabase struct {
	// Read calls a function with a snapshot of the whole store, which is valid until it returns.
	Read func(context.Context, func(sqlstore.Snapshot) error) error
	// Last returns the record of the last backup, or sqlstore.ErrNotFound, and Record replaces it.
	Last   func(context.Context) (sqlstore.LastBackup, error)
	Record func(context.Context, sqlstore.LastBackup) error
	// Shared has the locks of a database that other processes use too; nil if there are none.
	Shared sqlstore.Shared
}

// Schedule makes backups until Run ends.
type Schedule struct {
	Times    cron.Schedule
	To       bucket.Directory
	Keep     int
	Database ScheduledDatabase
	// Program is the name and version of the program, for the backups.
	Program string
	// WriteKeys writes the file of bucket.KeysSuffix beside each backup; nil for none.
	WriteKeys func(io.Writer) error
	Logger    *slog.Logger

	// made is when Run has last completed a backup. The database may not have its record, because its disk is full.
	made time.Time
	// withoutKeys is the last backup that Run has made, while WriteKeys has not written its keys.
	withoutKeys string
}

// Run makes each backup when it is due, until ctx ends.
func (s *Schedule) Run(ctx context.Context) error {
	failed := false
	for {
		next, err := s.makeIfDue(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			next = time.Now().Add(RetryInterval)
			if !failed {
				s.Logger.Error("backup: the schedule is not kept; trying again until it is", "to", s.To.Name, "every",
					RetryInterval, "err", err)
			}
		case failed:
			s.Logger.Info("backup: the schedule is kept again", "to", s.To.Name)
		}
		failed = err != nil
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// makeIfDue makes a backup if one is due, and returns when to look again.
func (s *Schedule) makeIfDue(ctx context.Context) (next time.Time, err error) {
	next, err = s.due(ctx)
	if err != nil || time.Now().Before(next) {
		return next, errors.Join(err, s.writeKeys(ctx))
	}
	ran := true
	if s.Database.Shared == nil {
		err = s.make(ctx)
	} else {
		ran, err = s.Database.Shared.WithLock(ctx, "backup", s.make)
	}
	if err != nil || !ran {
		return time.Now().Add(RetryInterval), err
	}
	return s.due(ctx)
}

// due returns when the next backup is due.
func (s *Schedule) due(ctx context.Context) (time.Time, error) {
	last, err := s.Database.Last(ctx)
	if errors.Is(err, sqlstore.ErrNotFound) || isAhead(last.Time) {
		last.Time, err = time.Time{}, nil
	}
	if last.Time.Before(s.made) && !isAhead(s.made) {
		last.Time = s.made
	}
	if err != nil || last.Time.IsZero() {
		return time.Time{}, err
	}
	return s.Times.Next(last.Time.Local()), nil
}

// isAhead reports whether a moment is one of a clock that was set back since.
func isAhead(moment time.Time) bool { return time.Until(moment) > mostAhead }

// make makes a backup, unless another process has made it before this one held the lock.
func (s *Schedule) make(ctx context.Context) error {
	if next, err := s.due(ctx); err != nil || time.Now().Before(next) {
		return errors.Join(err, s.writeKeys(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, backupTimeout)
	defer cancel()
	start := time.Now()
	file := s.To.File(FileName(start))
	var errs []error
	if err := s.To.RemovePartial(partialNames, start.Add(-backupTimeout)); err != nil {
		errs = append(errs, fmt.Errorf("delete partial backups: %w", err))
	}
	var header sqlstore.Header
	if err := s.Database.Read(ctx, func(snapshot sqlstore.Snapshot) error {
		header = snapshot.Header
		return file.Write(ctx, func(w io.Writer) error { return Write(w, snapshot, s.Program) })
	}); err != nil {
		return err
	}
	s.made = time.Now().Round(0)
	// the backup is there, though the server stops
	recording, recorded := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer recorded()
	if err := s.Database.Record(recording,
		sqlstore.LastBackup{Time: s.made, Revision: header.Revision, Location: file.Name}); err != nil {
		errs = append(errs, fmt.Errorf("%s is complete, but could not be recorded: %w", file.Name, err))
	}
	s.Logger.Info("backup: made", "location", file.Name, "revision", header.Revision, "duration",
		time.Since(start).Round(time.Millisecond))
	if s.WriteKeys != nil {
		s.withoutKeys = FileName(start)
	}
	return errors.Join(append(errs, s.writeKeys(ctx), s.prune(ctx, &header))...)
}

// writeKeys writes the certificates and keys beside the last backup, if it has none yet.
func (s *Schedule) writeKeys(ctx context.Context) error {
	if s.withoutKeys == "" {
		return nil
	}
	keys := s.To.File(s.withoutKeys + bucket.KeysSuffix)
	keys.Force = true // a write that failed may have left it
	if err := keys.Write(ctx, s.WriteKeys); err != nil {
		return fmt.Errorf("%s is complete, but has no certificates and keys beside it: %w", s.To.File(s.withoutKeys).Name,
			err)
	}
	s.withoutKeys = ""
	return nil
}

// prune deletes all backups of schedules but the last ones, of the cluster of a backup. It leaves those of a clock that
// was set back since, which would be the last ones in place of those that are made now.
func (s *Schedule) prune(ctx context.Context, of *sqlstore.Header) error {
	entries, err := s.To.List(ctx)
	if err != nil {
		return fmt.Errorf("delete old backups: %w", err)
	}
	var names []string
	for _, entry := range entries { // in the order of their moments
		if moment, err := time.Parse(nameFormat, entry.Name); err != nil || isAhead(moment) {
			continue
		}
		isOwn, err := s.isOf(ctx, entry.Name, of)
		if err != nil {
			return fmt.Errorf("delete old backups: %w", err)
		}
		if isOwn {
			names = append(names, entry.Name)
		}
	}
	for _, name := range names[:max(0, len(names)-s.Keep)] {
		if err := s.To.Remove(ctx, name); err != nil {
			return fmt.Errorf("delete old backups: %w", err)
		}
	}
	return nil
}

// isOf reports whether a file is a backup of the cluster of another one. It reads the beginning.
func (s *Schedule) isOf(ctx context.Context, name string, of *sqlstore.Header) (bool, error) {
	file, err := s.To.File(name).Peek(ctx)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	b, err := Open(file)
	if errors.Is(err, sqlstore.ErrBroken) || errors.Is(err, ErrNewer) {
		return false, nil
	}
	return err == nil && of.IsSameCluster(&b.Header), err
}
