package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/storetest"
)

// database is a database of several processes.
type database struct {
	sqlstore.Shared

	t    *testing.T
	rows sqlstore.Snapshot
	lock sync.Mutex
	// takes is how long a snapshot takes to be read.
	takes time.Duration

	mu   sync.Mutex
	last sqlstore.LastBackup
	// fails is why a snapshot can't be read, and forgets why a backup can't be recorded.
	fails, forgets error
}

func newDatabase(t *testing.T) *database {
	return &database{t: t, rows: storetest.RandomRows(t, rand.New(rand.NewPCG(1, 1))).Snapshot()}
}

// WithLock implements sqlstore.Shared.
func (d *database) WithLock(ctx context.Context, _ string, f func(context.Context) error) (bool, error) {
	if !d.lock.TryLock() {
		return false, nil
	}
	defer d.lock.Unlock()
	return true, f(ctx)
}

func (d *database) read(_ context.Context, read func(sqlstore.Snapshot) error) error {
	time.Sleep(d.takes) // of the bubble's clock
	d.mu.Lock()
	fails := d.fails
	d.mu.Unlock()
	if fails != nil {
		return fails
	}
	return read(d.rows)
}

func (d *database) fail(with error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = with
}

// logged is what schedules log.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (d *database) lastBackup(context.Context) (sqlstore.LastBackup, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last.Time.IsZero() {
		return d.last, sqlstore.ErrNotFound
	}
	return d.last, nil
}

func (d *database) record(_ context.Context, b sqlstore.LastBackup) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.forgets == nil {
		d.last = b
	}
	return d.forgets
}

// run runs a schedule of the database until the test's bubble calls stop. It returns what it logs.
func (d *database) run(times, dir string, keep int) (log *logged, stop func()) {
	d.t.Helper()
	return d.runWithKeys(times, dir, keep, nil)
}

func (d *database) runWithKeys(times, dir string, keep int, keys func(io.Writer) error) (log *logged, stop func()) {
	d.t.Helper()
	parsed, err := backup.ParseSchedule(times)
	if err != nil {
		d.t.Fatal(err)
	}
	log = new(logged)
	s := backup.Schedule{
		Times: parsed, To: bucket.Directory{Name: dir}, Keep: keep, Program: "test", WriteKeys: keys,
		Database: backup.ScheduledDatabase{Read: d.read, Last: d.lastBackup, Record: d.record, Shared: d},
		Logger:   slog.New(slog.NewTextHandler(log, nil)),
	}
	ctx, cancel := context.WithCancel(d.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			d.t.Error(err)
		}
	})
	return log, func() {
		cancel()
		running.Wait()
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// after lets a time of the bubble pass, and the schedules act.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// What is due is made: at the first start, at each time of the schedule, and at the start after some
// were missed, once. The oldest of its own are deleted, and no other file.
func TestSchedule_MakesWhatIsDue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"byre-2026-03-01.zst", "manual.zst", "note"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) { // begins on 2000-01-01T00:00:00Z
		d := newDatabase(t)
		expect := func(last string, count int) {
			t.Helper()
			synctest.Wait()
			names := files(t, dir)
			if len(names) != 3+count || !slices.Contains(names, last) {
				t.Errorf("at %s there are %q, want %d with %s", time.Now().UTC(), names, count, last)
			}
			recorded, err := d.lastBackup(t.Context())
			if want := filepath.Join(dir, last); err != nil || recorded.Location != want ||
				recorded.Revision != d.rows.Revision {
				t.Errorf("recorded is %+v, %v, want %s", recorded, err, want)
			}
		}
		log, stop := d.run("CRON_TZ=UTC 0 3 * * *", dir, 2)
		expect("byre-20000101T000000Z.zst", 1)
		after(3*time.Hour - time.Second)
		expect("byre-20000101T000000Z.zst", 1)
		after(time.Second)
		expect("byre-20000101T030000Z.zst", 2)
		after(24 * time.Hour)
		expect("byre-20000102T030000Z.zst", 2)
		stop()
		after(50 * time.Hour) // until 2000-01-04T05:00:00Z
		_, stop = d.run("CRON_TZ=UTC 0 3 * * *", dir, 2)
		expect("byre-20000104T050000Z.zst", 2)
		after(time.Hour)
		expect("byre-20000104T050000Z.zst", 2)
		stop()
		file, err := os.Open(d.last.Location)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		b, err := backup.Open(file)
		if err == nil {
			_, err = b.Verify(func(s sqlstore.Snapshot) sqlstore.Snapshot { return s })
		}
		if err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "\n"); n != 3 || strings.Contains(log.String(), "ERROR") {
			t.Errorf("three backups logged\n%s", log)
		}
	})
}

// Of the processes on one database, whose clocks differ, one makes each backup.
func TestSchedule_OneProcessMakesABackup(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase(t)
		d.takes = 20 * time.Minute
		for _, dir := range dirs {
			_, stop := d.run("@every 24h", dir, 9)
			defer stop()
			time.Sleep(time.Second)
		}
		for day := range 3 {
			after(12 * time.Hour)
			count := 0
			for _, dir := range dirs {
				count += len(files(t, dir))
			}
			if count != day+1 {
				t.Errorf("on day %d there are %d backups", day, count)
			}
			after(12*time.Hour + 20*time.Minute)
		}
	})
}

// The clock was a year ahead when the last backups were made, and was set right. Backups are made at once
// and then as ever, and the newest of them are kept.
func TestSchedule_GoesOnAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ahead := []string{"byre-20001231T030000Z.zst", "byre-20010101T030000Z.zst"}
	for _, name := range ahead {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) { // begins on 2000-01-01T00:00:00Z
		d := newDatabase(t)
		d.last = sqlstore.LastBackup{Time: time.Now().AddDate(1, 0, 0), Revision: 1, Location: ahead[1]}
		log, stop := d.run("CRON_TZ=UTC 0 3 * * *", dir, 2)
		defer stop()
		after(30 * time.Hour)
		if got, want := files(t, dir),
			append([]string{"byre-20000101T030000Z.zst", "byre-20000102T030000Z.zst"}, ahead...); !slices.Equal(got, want) {
			t.Errorf("there are %q, want %q\n%s", got, want, log)
		}
	})
}

// A backup that fails is tried again. The log has one line of it, and one of the end.
func TestSchedule_LogsAFailureOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase(t)
		d.fail(errors.New("no answer"))
		log, stop := d.run("@daily", dir, 1)
		after(10 * backup.RetryInterval)
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=ERROR") ||
			!strings.Contains(text, "no answer") {
			t.Errorf("after failures:\n%s", text)
		}
		if names := files(t, dir); len(names) > 0 {
			t.Errorf("failures left %q", names)
		}
		d.fail(nil)
		after(backup.RetryInterval)
		if names := files(t, dir); len(names) != 1 {
			t.Errorf("after the failures there are %q", names)
		}
		if text := log.String(); strings.Count(text, "\n") != 3 || !strings.Contains(text, "is kept again") {
			t.Errorf("after the end of the failures:\n%s", text)
		}
		stop()
	})
}

// A backup that can't be recorded, because the disk of the database is full, is not made again before its time.
func TestSchedule_MakesABackupOnceThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { // begins on 2000-01-01T00:00:00Z
		d := newDatabase(t)
		d.forgets = errors.New("the disk is full")
		log, stop := d.run("CRON_TZ=UTC 0 3 * * *", dir, 9)
		defer stop()
		after(26 * time.Hour)
		if got, want := files(t, dir),
			[]string{"byre-20000101T000000Z.zst", "byre-20000101T030000Z.zst"}; !slices.Equal(got, want) {
			t.Errorf("there are %d, want %q", len(got), want)
		}
		if text := log.String(); !strings.Contains(text, "could not be recorded: the disk is full") {
			t.Errorf("logged is\n%s", text)
		}
	})
}

// Two clusters may share a directory: the backups of one do not count for the other, and it deletes none of them. Nor
// does it delete what it can't read.
func TestSchedule_LeavesTheBackupsOfAnotherCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, rows sqlstore.Snapshot) {
		t.Helper()
		if err := (bucket.Directory{Name: dir}).File(name).Write(t.Context(), func(w io.Writer) error {
			return backup.Write(w, rows, "test")
		}); err != nil {
			t.Fatal(err)
		}
	}
	own := newDatabase(t)
	own.rows.Cluster = "one"
	moved, other := own.rows, own.rows
	moved.Epoch, other.Cluster = "the epoch before a takeover", "two"
	write("byre-19991230T000000Z.zst", moved)
	write("byre-19991230T000001Z.zst", other)
	write("byre-19991231T000000Z.zst", other)
	if err := os.WriteFile(filepath.Join(dir, "byre-19991229T000000Z.zst"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		own.t = t
		_, stop := own.run("CRON_TZ=UTC 0 3 * * *", dir, 1)
		defer stop()
		after(4 * time.Hour)
		want := []string{"byre-19991229T000000Z.zst", "byre-19991230T000001Z.zst", "byre-19991231T000000Z.zst",
			"byre-20000101T030000Z.zst"}
		if got := files(t, dir); !slices.Equal(got, want) {
			t.Errorf("there are %q, want %q", got, want)
		}
	})
}

// A backup that is not recorded is no reason to keep all that are older.
func TestSchedule_DeletesOldBackupsWithoutARecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase(t)
		d.forgets = errors.New("the disk is full")
		log, stop := d.run("CRON_TZ=UTC 0 3 * * *", dir, 1)
		defer stop()
		after(52 * time.Hour)
		if got, want := files(t, dir), []string{"byre-20000103T030000Z.zst"}; !slices.Equal(got, want) {
			t.Errorf("there are %q, want %q", got, want)
		}
		if text := log.String(); !strings.Contains(text, "is complete, but") {
			t.Errorf("logged is\n%s", text)
		}
	})
}

// While the keys can't be written, backups are made. As soon as they can be written, the last backup gets them, in
// place of what an earlier attempt has left.
func TestSchedule_WritesMissingKeysLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { // begins on 2000-01-01T00:00:00Z
		var unreadable atomic.Bool
		log, stop := newDatabase(t).runWithKeys("CRON_TZ=UTC 0 3 * * *", dir, 1, func(w io.Writer) error {
			if unreadable.Load() {
				return errors.New("no files")
			}
			_, err := io.WriteString(w, "keys")
			return err
		})
		defer stop()
		expect := func(names ...string) {
			t.Helper()
			if got := files(t, dir); !slices.Equal(got, names) {
				t.Errorf("at %s there are %q, want %q\n%s", time.Now().UTC(), got, names, log)
			}
		}
		const first, second, third, fourth = "byre-20000101T000000Z.zst", "byre-20000101T030000Z.zst",
			"byre-20000102T030000Z.zst", "byre-20000103T030000Z.zst"
		synctest.Wait()
		unreadable.Store(true)
		after(28 * time.Hour)
		expect(third)
		if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "is complete, but") ||
			strings.Contains(text, "is kept again") {
			t.Errorf("without keys:\n%s", text)
		}
		// A write whose answer was lost has left a file.
		keys := filepath.Join(dir, third+bucket.KeysSuffix)
		if err := os.WriteFile(keys, []byte("ke"), 0o600); err != nil {
			t.Fatal(err)
		}
		unreadable.Store(false)
		after(backup.RetryInterval)
		expect(third, third+bucket.KeysSuffix)
		if got, err := os.ReadFile(keys); string(got) != "keys" {
			t.Errorf("the file of the keys has %q, %v", got, err)
		}
		if text := log.String(); !strings.Contains(text, "is kept again") {
			t.Errorf("with keys:\n%s", text)
		}
		after(24 * time.Hour)
		expect(fourth, fourth+bucket.KeysSuffix)
	})
}

// A process that was killed while it wrote a backup or its keys has left a part. The next backup deletes it, unless
// another process may still write it, or no schedule has made it.
func TestSchedule_DeletesWhatAKilledProcessLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const stale, keys, fresh, manual = ".byre-19991230T030000Z.zst.1", ".byre-19991230T030000Z.zst.pki.age.1",
		".byre-20000101T020000Z.zst.1", ".manual.zst.1"
	synctest.Test(t, func(t *testing.T) { // begins on 2000-01-01T00:00:00Z
		for name, age := range map[string]time.Duration{stale: 13 * time.Hour, keys: 13 * time.Hour, fresh: 11 * time.Hour,
			manual: 13 * time.Hour} {
			path, modified := filepath.Join(dir, name), time.Now().Add(-age)
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, modified, modified)); err != nil {
				t.Fatal(err)
			}
		}
		log, stop := newDatabase(t).run("@daily", dir, 2)
		synctest.Wait()
		stop()
		if got, want := files(t, dir), []string{fresh, manual, "byre-20000101T000000Z.zst"}; !slices.Equal(got, want) {
			t.Errorf("there are %q, want %q\n%s", got, want, log)
		}
	})
}

// The documented schedule has a run each day, also where the clocks skip its hour in spring.
func TestParse_TheDocumentedScheduleRunsEveryDay(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations/backup.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile(`backup-schedule: "(.*?)"`).FindSubmatch(page)
	if documented == nil {
		t.Fatal("there is no schedule in docs/operations/backup.md")
	}
	times, err := backup.ParseSchedule(string(documented[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Europe/Athens", "Europe/Berlin", "America/New_York", "UTC"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		last := time.Date(2027, 1, 1, 12, 0, 0, 0, zone)
		for last.Year() == 2027 {
			next := times.Next(last)
			if gap := next.Sub(last); gap > 25*time.Hour {
				t.Errorf("%s: %v without a backup until %s", name, gap, next)
			}
			last = next
		}
	}
}

func TestParse_RefusesWhatNeverComes(t *testing.T) {
	t.Parallel()
	for text, isValid := range map[string]bool{
		"0 3 * * *": true, "@daily": true, "@every 6h": true, "CRON_TZ=Europe/Berlin 0 3 * * 1": true,
		"": false, "daily": false, "0 3 * *": false, "0 0 30 2 *": false, "* * * * * *": false, "@reboot": false,
	} {
		if _, err := backup.ParseSchedule(text); (err == nil) != isValid {
			t.Errorf("%q: %v", text, err)
		}
	}
}
