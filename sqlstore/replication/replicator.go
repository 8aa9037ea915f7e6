package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/superfly/ltx"

	"byre/sqlstore/bucket"
)

const (
	// captureInterval is the least time between two captures of the log. Each makes a file,
	// with two syncs of the disk, and an upload.
	captureInterval = time.Second
	// longestPause is the longest time until something that has failed is tried again.
	longestPause = 30 * time.Second
	// closeTimeout bounds the last synchronization of a stop.
	closeTimeout = 10 * time.Second
)

// localSuffix is the suffix of the directory, beside the database, that has the backlog. It is not
// that of the program Litestream, which may replicate the database instead.
const localSuffix = ".replication"

// Replicator copies a database to its destinations.
type Replicator struct {
	destinations []*destination
	backlogBytes int64
	mergePause   time.Duration
	logger       *slog.Logger
	// Began, unless nil, is called with each folder of the only destination that has got a copy of the whole
	// database, and will have what follows. Until it has returned nil, AwaitCopy takes nothing for copied. The
	// caller sets it before Open.
	Began func(ctx context.Context, folder string) error
	// Sync has AwaitCopy wait, and commits captured without a pause. The caller sets it before Open.
	Sync bool
	// ended is closed when Run has returned.
	ended chan struct{}
	// complete is true if Close brought everything to all destinations.
	complete bool
	isClosed atomic.Bool

	path, lock string
	isFull     func() bool
	overwrite  func(context.Context) error
	// epoch and opened are the epoch and the revision with which the driver has opened the database.
	epoch  string
	opened int64
	// committed receives when there are commits to capture. Its capacity is 1.
	committed chan struct{}
	// revision is that of the last commit.
	revision atomic.Int64
	// attached is true while there is a session, or one begins.
	attached atomic.Bool
	// hasNoSpace is true from when a session has ended, or could not begin, because the disk is full, until one begins,
	// and while it has no space for the copy with which a folder begins.
	hasNoSpace atomic.Bool
	// dropped is true from when a COMMIT has failed until a session begins. SQLite drops the transaction, but Litestream,
	// which reads the log without its index, may have captured the frames.
	//
	// Invariant: what is read from the log is copied only if dropped is false after the read. The driver calls Dropped
	// before another transaction overwrites the frames. Otherwise Litestream would go on after them, and miss that
	// transaction.
	dropped atomic.Bool
	// hasRun is true after Run has begun, and hasAttached after the first attach.
	hasRun, hasAttached bool
	// session is nil while Litestream is not attached. Run owns it, and Close afterwards.
	session *session
	// shared is a descriptor of the file that stays open; see keepLock.
	shared *os.File
}

// New returns a Replicator to the destinations of the given URLs.
func New(urls []string, s3 bucket.S3, logger *slog.Logger) (*Replicator, error) {
	r := &Replicator{backlogBytes: 256 << 20, mergePause: mergePause, logger: logger, committed: make(chan struct{}, 1),
		ended: make(chan struct{})}
	for _, url := range urls {
		b, err := openBucket(url, s3)
		if err != nil {
			return nil, err
		}
		r.destinations = append(r.destinations,
			&destination{name: url, bucket: b, logger: logger.With("destination", url), changed: make(chan struct{})})
	}
	return r, nil
}

// Forget removes what replication keeps beside the database at path, so that no later attachment
// goes on from there. The caller has the database's lock.
func Forget(path string) error { return os.RemoveAll(path + localSuffix) }

// Open names the database, which the caller is about to open, and the identity of its lock, which may be empty. While
// isFull reports true, nothing is written beside it, and the driver runs the checkpoints. overwrite makes a
// transaction, after which Litestream can't read what is left in the log of one that SQLite has dropped. Open fails
// if the path can't be replicated.
func (r *Replicator) Open(
	path, lock string, isFull func() bool, overwrite func(context.Context) error,
) (err error) {
	if strings.ContainsAny(path, "?#%") {
		return fmt.Errorf("%s can't be replicated, because its path has one of ?, # and %%: move it", path)
	}
	r.path, r.lock, r.isFull, r.overwrite = path, lock, isFull, overwrite
	r.shared, err = os.Open(path)
	return err
}

// Opened notes the epoch and the revision with which the caller has opened the database. It does not block.
func (r *Replicator) Opened(epoch string, revision int64) {
	r.epoch, r.opened = epoch, revision
	r.Committed(revision)
}

// attach has Litestream capture the database from this moment on. The first time it goes on from what the process
// before has kept, if it can.
func (r *Replicator) attach(ctx context.Context) error {
	if r.isFull() {
		return errFull
	}
	r.attached.Store(true)
	var err error
	if before := r.readResumeState(); before != nil && !r.hasAttached {
		if r.session, err = openSession(ctx, r, before); err != nil {
			r.logger.WarnContext(ctx,
				"replication: new copies are begun, because those of before can't be continued", "err", err)
			err = r.keepLock()
		}
	}
	r.hasAttached = true
	if r.session == nil {
		if err = errors.Join(err, Forget(r.path)); err == nil {
			r.session, err = openSession(ctx, r, nil)
		}
	}
	if err != nil {
		r.attached.Store(false)
		return errors.Join(err, r.keepLock())
	}
	return nil
}

// errFull means that the space of the disk is kept for deletes.
var errFull = errors.New("the disk is full")

// detach lets go of the database, so that the driver runs the checkpoints.
func (r *Replicator) detach() error {
	err := r.session.db.Close(context.Background())
	err = errors.Join(err, r.session.sums.file.Close())
	r.session = nil
	err = errors.Join(err, r.keepLock(), Forget(r.path))
	r.attached.Store(false)
	return err
}

// keepLock takes SQLite's shared lock of the file again.
//
// Invariant: the process has that lock while the driver has connections. Litestream's descriptor of
// the file releases all locks of the process when it is closed, and SQLite does not notice. Then
// another program, such as a shell, would delete the log when it ends, because it seems to be the
// last one.
func (r *Replicator) keepLock() error {
	const first, size = 0x40000002, 510 // SHARED_FIRST and SHARED_SIZE of SQLite's os.h
	lock := syscall.Flock_t{Type: syscall.F_RDLCK, Start: first, Len: size}
	return syscall.FcntlFlock(r.shared.Fd(), syscall.F_SETLK, &lock)
}

// Attached reports whether Litestream captures the database, and so runs its checkpoints.
func (r *Replicator) Attached() bool { return r.attached.Load() }

// AwaitDetached waits while Litestream captures a database whose disk is full: it keeps the log from being copied back,
// and the next transactions would fill what the disk has left. The session ends after its capture. AwaitDetached waits
// no longer than ctx and Run.
func (r *Replicator) AwaitDetached(ctx context.Context) {
	for r.isFull() && r.Attached() {
		signal(r.committed) // for the session to notice
		select {
		case <-ctx.Done():
			return
		case <-r.ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Committed notes that the database has changed, and that it now has all changes up to a revision. It does not block.
func (r *Replicator) Committed(revision int64) {
	r.revision.Store(revision)
	r.changed()
}

func (r *Replicator) changed() {
	now := time.Now()
	for _, d := range r.destinations {
		d.markBehind(now)
	}
	signal(r.committed)
}

// Dropped notes that a COMMIT has failed, before another transaction begins: new folders are begun. It does not block.
func (r *Replicator) Dropped() {
	r.dropped.Store(true)
	r.changed()
}

// Position returns how far a copy in the first destination must reach for another process to go on from it: as far as
// the destination has confirmed. It is the last commit, which no copy has, while the destination is behind for longer
// than a tolerable time, or after Close has left it behind.
func (r *Replicator) Position(tolerable time.Duration) (revision int64, txid uint64) {
	if r.isClosed.Load() {
		tolerable = 0
	}
	d := r.destinations[0]
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.confirmed.id == 0 || !d.behind.IsZero() && time.Since(d.behind) > tolerable {
		return r.revision.Load(), 0
	}
	return d.confirmed.revision, uint64(d.confirmed.id)
}

// AwaitCopy waits until all destinations have what was committed before the call. It fails if ctx or replication ends
// before, and while the disk has no space for it: nothing is copied then, and the caller has deletes to make. Without
// Sync it returns at once.
func (r *Replicator) AwaitCopy(ctx context.Context) error {
	if !r.Sync {
		return nil
	}
	now := time.Now()
	signal(r.committed) // a capture that has begun before may have the commit, but an earlier time
	for _, d := range r.destinations {
		if err := d.await(ctx, now, r.ended, &r.hasNoSpace); err != nil {
			return err
		}
	}
	return nil
}

// Run replicates until ctx ends.
func (r *Replicator) Run(ctx context.Context) {
	defer close(r.ended)
	r.hasRun = true
	r.changed()
	var failing bool
	for pause := captureInterval; ; pause = min(2*pause, longestPause) {
		var err error
		if r.session == nil {
			err = r.attach(ctx)
		}
		if err == nil {
			if failing {
				r.logger.InfoContext(ctx, "replication: the database is captured again")
			}
			failing, pause = false, captureInterval
			r.hasNoSpace.Store(false)
			err = r.session.run(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if !failing {
			r.logger.ErrorContext(ctx,
				"replication: the database can't be captured, and is tried again: the copies are not complete until then", "err",
				err)
		}
		failing = true
		if r.session != nil {
			_ = r.detach() // what Litestream could not write is why
		}
		r.hasNoSpace.Store(errors.Is(err, errFull) || errors.Is(err, syscall.ENOSPC))
		for _, d := range r.destinations {
			d.fail(err)
			d.wake()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Close brings the last commits to the destinations that answer, within 10 seconds, and lets go of
// the database. The caller has closed its own connections, and Run has returned. The next process goes on from there.
func (r *Replicator) Close() error {
	defer r.isClosed.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if r.hasRun && r.session == nil {
		errs = append(errs, r.attach(ctx))
	}
	if s := r.session; s != nil {
		captured := s.capture(ctx)
		errs = append(errs, captured)
		var synced sync.WaitGroup
		failures := make([]error, len(s.copies))
		for i, c := range s.copies {
			synced.Go(func() {
				if err := c.sync(ctx); err != nil {
					failures[i] = fmt.Errorf("%s does not have the last commits: %w", c.name, err)
				}
			})
		}
		synced.Wait()
		// Litestream synchronizes once more, which can't fail for a destination.
		closed := s.db.Close(ctx)
		if captured == nil && closed == nil {
			closed = s.stop()
		}
		errs = append(append(errs, failures...), closed, s.sums.file.Close())
	}
	if r.shared != nil {
		errs = append(errs, r.shared.Close())
	}
	err := errors.Join(errs...)
	r.complete = r.hasRun && err == nil
	return err
}

// IsComplete reports, after Close, whether all destinations have every commit.
func (r *Replicator) IsComplete() bool { return r.complete }

const (
	// checkpointPages is the length of the log, in pages, at which Litestream copies it back: as
	// that of the driver.
	checkpointPages = 4096
	// busyTimeout is how long Litestream waits for the writer.
	busyTimeout = 10 * time.Second
	// spareBytes is what must be free on the disk beside the copy with which a session begins. While the driver's
	// reserve is in use, none begins.
	spareBytes = 16 << 20
	// patience is how often in a row a capture may fail.
	patience = 3
)

// session is one attachment of Litestream to the database.
type session struct {
	db     *litestream.DB
	copies []*copier
	// committed, revision, hasNoSpace, dropped, isFull and began are those of the Replicator.
	committed           chan struct{}
	revision            *atomic.Int64
	hasNoSpace, dropped *atomic.Bool
	isFull              func() bool
	began               func(ctx context.Context, folder string) error
	// sums has what the backlog has.
	sums *pageSums
	// resumed is the header of the last file that the process before has captured; zero if this one does not go on from
	// there.
	resumed ltx.Header
	// pause is the time between two captures, and mergePause that between two merges.
	pause, mergePause time.Duration

	// mu guards the fields below.
	mu sync.Mutex
	// backlog are the LTX files that are on the local disk, in their order. The last one stays,
	// because Litestream goes on from it.
	backlog []localFile
	// limit is how many bytes the backlog may have.
	limit int64
	// captured is what the backlog has.
	captured position
	// resumeState is for the next process.
	resumeState resumeState
}

type localFile struct {
	id   ltx.TXID
	size int64
}

// openSession attaches to the database of r. The first file has the whole database, or what has changed since the last
// one that the process before has captured. Without before, no process has left anything.
func openSession(ctx context.Context, r *Replicator, before *resumeState) (_ *session, err error) {
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, err
	}
	s := &session{
		db: newDB(r.path, r.logger), committed: r.committed, revision: &r.revision, hasNoSpace: &r.hasNoSpace,
		dropped: &r.dropped,
		isFull:  r.isFull, began: r.Began, pause: captureInterval, mergePause: r.mergePause,
		resumeState: resumeState{Lock: r.lock, Epoch: r.epoch, Folders: map[string]resumeFolder{}},
	}
	if r.Sync {
		s.pause = 0 // a commit waits for the one before
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(r.path, &disk); err != nil {
		return nil, err
	}
	free := int64(disk.Bavail) * int64(disk.Bsize) //nolint:unconvert // of other types on other systems
	if needed := info.Size() + spareBytes; free < needed {
		return nil, fmt.Errorf("%w: that of %s has %d MiB free, "+
			"and replication, which begins with a copy of the database, needs %d MiB: make room", errFull, r.path, free>>20,
			needed>>20)
	}
	// The backlog must not fill a small disk. It has room for its first file, which has the whole database.
	s.limit = max(info.Size(), min(r.backlogBytes, free/2))
	r.dropped.Store(false)
	if err := r.overwrite(ctx); err != nil {
		return nil, err
	}
	for _, d := range r.destinations {
		c := newCopier(d, s)
		if before != nil {
			c.before = before.Folders[d.name]
			s.resumeState.Folders[d.name] = c.before
		}
		s.copies = append(s.copies, c)
	}
	if err := os.MkdirAll(r.path+localSuffix, 0o700); err != nil {
		return nil, err
	}
	if s.sums, err = openSums(r.path); err != nil {
		return nil, err
	}
	if err := s.db.Open(); err != nil {
		return nil, errors.Join(err, s.sums.file.Close())
	}
	if before != nil {
		err = s.resume(r.opened)
	}
	if err == nil {
		err = s.resumeState.write(r.path)
	}
	if err == nil {
		err = s.capture(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.db.Close(context.WithoutCancel(ctx)), s.sums.file.Close())
	}
	return s, nil
}

// newDB returns Litestream's database, which this package drives: it has no goroutines of its own.
func newDB(path string, logger *slog.Logger) *litestream.DB {
	db := litestream.NewDB(path)
	db.SetMetaPath(path + localSuffix)
	db.SetLogger(slog.New(quiet{logger.Handler()}))
	db.Replica = litestream.NewReplicaWithClient(db, &localReplica{db: db})
	db.Replica.MonitorEnabled = false
	db.MonitorInterval = 0
	db.ShutdownSyncTimeout = 0
	db.BusyTimeout = busyTimeout
	db.MinCheckpointPageN = checkpointPages
	db.CheckpointInterval = 0
	// Litestream must never truncate the log: the writer would wait for all readers.
	db.TruncatePageN = math.MaxInt32
	return db
}

// quiet is a handler of logs without Litestream's notes about each of its steps.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && q.Handler.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }

// localReplica is what Litestream takes for its only replica: it has what the backlog has. The real
// ones have clients of their own, so that the capture does not depend on any of them.
type localReplica struct {
	litestream.ReplicaClient // nil: Litestream calls nothing else
	db                       *litestream.DB
}

// Type implements litestream.ReplicaClient.
func (*localReplica) Type() string { return "local" }

// SetLogger implements litestream.ReplicaClient.
func (*localReplica) SetLogger(*slog.Logger) {}

// LTXFiles implements litestream.ReplicaClient.
func (l *localReplica) LTXFiles(_ context.Context, level int, _ ltx.TXID, _ bool) (ltx.FileIterator, error) {
	position, err := l.db.Pos()
	if err != nil || position.TXID == 0 {
		return ltx.NewFileInfoSliceIterator(nil), err
	}
	return ltx.NewFileInfoSliceIterator([]*ltx.FileInfo{{Level: level, MinTXID: position.TXID, MaxTXID: position.TXID}}),
		nil
}

// run captures commits, and copies them, until ctx ends or captures fail.
func (s *session) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var copying sync.WaitGroup
	defer copying.Wait()
	defer cancel()
	for _, c := range s.copies {
		copying.Go(func() { c.run(ctx) })
		copying.Go(func() { c.merge(ctx) })
	}
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.committed:
		}
		if s.isFull() {
			return errFull
		}
		switch err := s.capture(ctx); {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
			return nil
		default:
			if failures++; failures == patience || errors.Is(err, syscall.ENOSPC) || errors.Is(err, errDropped) {
				return err
			}
			signal(s.committed)
		}
		for _, c := range s.copies {
			signal(c.captured)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.pause):
		}
	}
}

// signal sends to a channel with the capacity 1 unless it is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errDropped means that Litestream may have captured a transaction that SQLite has dropped.
var errDropped = errors.New("a commit failed, and may have been copied all the same: a new copy is begun")

// capture adds the commits of the log to the backlog.
func (s *session) capture(ctx context.Context) error {
	at, revision := time.Now(), s.revision.Load()
	if err := s.db.Sync(ctx); err != nil {
		return err
	}
	if s.dropped.Load() {
		return errDropped
	}
	last, err := s.db.Pos()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := ltx.TXID(1)
	if n := len(s.backlog); n > 0 {
		next = s.backlog[n-1].id + 1
	}
	for ; next <= last.TXID; next++ {
		path := s.db.LTXPath(0, next, next)
		if next == s.resumed.MaxTXID+1 && next > 1 {
			if err := s.sums.removeKnown(path, s.resumed); err != nil {
				return err
			}
		}
		info, err := os.Stat(path)
		if err == nil {
			err = s.sums.apply(path)
		}
		if err != nil {
			return err
		}
		s.backlog = append(s.backlog, localFile{id: next, size: info.Size()})
	}
	if err := s.sums.setRevision(revision); err != nil {
		return err
	}
	s.captured = position{id: s.backlog[len(s.backlog)-1].id, until: at, revision: revision}
	return s.trim()
}

// trim deletes what all destinations have, and more from the beginning while there is too much: a
// destination that misses it begins a new folder.
func (s *session) trim() error {
	var size int64
	for _, file := range s.backlog {
		size += file.size
	}
	held := ltx.TXID(math.MaxUint64)
	for _, c := range s.copies {
		held = min(held, c.position())
	}
	for len(s.backlog) > 1 && (s.backlog[0].id <= held || size > s.limit) {
		first := s.backlog[0]
		if err := os.Remove(s.db.LTXPath(0, first.id, first.id)); err != nil {
			return err
		}
		size -= first.size
		s.backlog = s.backlog[1:]
	}
	return nil
}

// open opens a file of the backlog. It fails with fs.ErrNotExist if the backlog has it no more.
func (s *session) open(level int, first, last ltx.TXID) (io.ReadCloser, error) {
	if level > 0 {
		return nil, fs.ErrNotExist
	}
	return os.Open(s.db.LTXPath(0, first, last))
}

// position returns how far the backlog reaches.
func (s *session) position() position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.captured
}

var (
	lagDesc = prometheus.NewDesc("byre_replication_lag_seconds",
		"Age of the oldest commit that a destination of --replicate-to does not have; 0 if it has all.",
		[]string{"destination"}, nil)
	successDesc = prometheus.NewDesc("byre_replication_last_success_timestamp_seconds",
		"When a destination of --replicate-to last had all commits; 0 if not since the start.", []string{"destination"}, nil)
	failuresDesc = prometheus.NewDesc("byre_replication_failures_total",
		"Failed attempts to copy commits to a destination of --replicate-to.", []string{"destination"}, nil)
)

// Describe implements prometheus.Collector.
func (r *Replicator) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- lagDesc
	descriptions <- successDesc
	descriptions <- failuresDesc
}

// Collect implements prometheus.Collector.
func (r *Replicator) Collect(metrics chan<- prometheus.Metric) {
	for _, s := range r.Status() {
		var success float64
		if !s.LastSuccess.IsZero() {
			success = float64(s.LastSuccess.UnixMilli()) / 1000
		}
		metrics <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, s.Lag.Seconds(), s.Destination)
		metrics <- prometheus.MustNewConstMetric(successDesc, prometheus.GaugeValue, success, s.Destination)
		metrics <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(s.Failures), s.Destination)
	}
}
