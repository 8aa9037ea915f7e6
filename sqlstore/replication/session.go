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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

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
}

type localFile struct {
	id   ltx.TXID
	size int64
}

// openSession attaches to the database of r. The first file has the whole database.
func openSession(ctx context.Context, r *Replicator) (*session, error) {
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, err
	}
	s := &session{
		db: newDB(r.path, r.logger), committed: r.committed, revision: &r.revision, hasNoSpace: &r.hasNoSpace, dropped: &r.dropped,
		isFull: r.isFull, began: r.Began, pause: captureInterval, mergePause: r.mergePause,
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
			"and replication, which begins with a copy of the database, needs %d MiB: make room", errFull, r.path, free>>20, needed>>20)
	}
	// The backlog must not fill a small disk. It has room for its first file, which has the whole database.
	s.limit = max(info.Size(), min(r.backlogBytes, free/2))
	r.dropped.Store(false)
	if err := r.overwrite(ctx); err != nil {
		return nil, err
	}
	for _, d := range r.destinations {
		s.copies = append(s.copies, newCopier(d, s))
	}
	if err := s.db.Open(); err != nil {
		return nil, err
	}
	if err := s.capture(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close(context.WithoutCancel(ctx)))
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
	return ltx.NewFileInfoSliceIterator([]*ltx.FileInfo{{Level: level, MinTXID: position.TXID, MaxTXID: position.TXID}}), nil
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
		info, err := os.Stat(s.db.LTXPath(0, next, next))
		if err != nil {
			return err
		}
		s.backlog = append(s.backlog, localFile{id: next, size: info.Size()})
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
