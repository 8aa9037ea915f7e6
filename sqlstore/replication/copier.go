package replication

import (
	"context"
	"crypto/rand"
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
	// retention is how long a folder can be restored as it was, and how old a snapshot becomes.
	retention = 24 * time.Hour
	// keptFolders is how many folders before the current one are kept for retention.
	keptFolders = 4
	// level0Retention is for how long a file stays that is compacted: a restore may have planned to
	// read it.
	level0Retention = 5 * time.Minute
	// mergePause is the least time between two merges, and mergePauses how many of it are between them unless there are
	// mergeBytes to merge. What is written is copied twice, once as a file of each capture and once merged: further
	// levels, each of which copies all of it again, would save a restore little of the 300 files a day.
	mergePause  = 30 * time.Second
	mergePauses = 10
	mergeBytes  = 16 << 20
	// checkedPauses is how many of it are between two listings of all files of a folder: ten minutes.
	checkedPauses = 20
)

// copier copies the backlog of a session to one destination, and merges what it has copied. Each is done by one
// goroutine: a commit may wait for a copy, and merging takes a request for each file.
type copier struct {
	*destination
	session *session
	// captured receives when the backlog has grown, and begun when there is another folder. Their capacity is 1.
	captured, begun chan struct{}

	// folder is the current one; nil if there is none.
	folder atomic.Pointer[folder]
	// needed is the last file of the backlog that neither copying nor merging needs; math.MaxUint64 if the destination
	// needs none. It needs all at first: the first one has the whole database.
	needed atomic.Uint64
	// before is the folder of the process before; empty when it has been looked at. claimant is random.
	before   resumeFolder
	claimant string
}

// folder is what a copier writes to.
type folder struct {
	client litestream.ReplicaClient
	// last is the last file that was copied to it.
	last atomic.Uint64
	// unmerged is how many bytes were copied that were not merged.
	unmerged atomic.Int64

	// What follows belongs to the goroutine that merges, once the folder is that of the copier.

	// old are the folders that are to be deleted.
	old       []string
	compactor *litestream.Compactor
	// merged is the time of the last merge, and snapshot that of the last snapshot.
	merged, snapshot time.Time
	// checked is when its files were last listed.
	checked time.Time
	// changed is true if it has files that are later than the last snapshot.
	changed bool
}

func newCopier(d *destination, s *session) *copier {
	return &copier{destination: d, session: s, captured: make(chan struct{}, 1), begun: make(chan struct{}, 1),
		claimant: rand.Text()}
}

// position returns the last file of the backlog that may be deleted.
func (c *copier) position() ltx.TXID { return ltx.TXID(c.needed.Load()) }

// run copies until ctx ends.
func (c *copier) run(ctx context.Context) {
	signal(c.captured)
	for pause := captureInterval; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.captured:
		}
		err := c.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			c.session.hasNoSpace.Store(false)
			pause = captureInterval
			continue
		}
		c.failed(ctx, err)
		c.session.hasNoSpace.Store(errors.Is(err, errFull))
		c.wake()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
		signal(c.captured)
	}
}

// merge maintains the current folder until ctx ends.
func (c *copier) merge(ctx context.Context) {
	ticker := time.NewTicker(c.session.mergePause)
	defer ticker.Stop()
	for isFailing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.begun:
		case <-ticker.C:
		}
		f := c.folder.Load()
		if f == nil {
			continue
		}
		err := errors.Join(c.check(ctx, f), c.deleteOld(ctx, f), c.maintain(ctx, f))
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != isFailing {
			if isFailing = err != nil; isFailing {
				c.logger.WarnContext(ctx,
					"replication: the files of the copy can't be merged, or old ones not deleted, and it is tried again: a restore takes longer until then", "err", err)
			}
		}
	}
}

// sync brings the backlog to the destination.
func (c *copier) sync(ctx context.Context) error {
	end := c.session.position()
	f := c.folder.Load()
	if f == nil {
		var err error
		if f, err = c.begin(ctx); err != nil {
			return err
		}
	}
	for next := ltx.TXID(f.last.Load()) + 1; next <= end.id; next++ {
		size, err := c.upload(ctx, f.client, 0, next)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				c.folder.Store(nil) // the next attempt begins a new folder
			}
			return err
		}
		f.last.Store(uint64(next))
		f.unmerged.Add(size)
	}
	if c.folder.Load() != f {
		return errDeleted
	}
	c.succeeded(ctx, end)
	return nil
}

// upload copies one file to a level, and returns its size. It fails with fs.ErrNotExist if the backlog has it no more.
func (c *copier) upload(
	ctx context.Context, client litestream.ReplicaClient, level int, id ltx.TXID,
) (size int64, err error) {
	file, err := os.Open(c.session.db.LTXPath(0, id, id))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := client.WriteLTXFile(ctx, level, id, id, file)
	if err != nil {
		return 0, err
	}
	return info.Size, nil
}

// begin goes on in the folder of the process before, or makes a new one, with a snapshot.
func (c *copier) begin(ctx context.Context) (*folder, error) {
	before, err := c.bucket.folders(ctx)
	if err != nil {
		return nil, err
	}
	f, err := c.resume(ctx, before)
	if err != nil {
		return nil, err
	}
	name := c.before.Name
	c.before = resumeFolder{}
	if f != nil {
		before = before[:len(before)-1]
	} else {
		name = newFolder(time.Now(), before)
		f = &folder{client: c.bucket.client(name), snapshot: time.Now(), checked: time.Now()}
		last, err := c.beginWith(ctx, f.client)
		if err != nil {
			return nil, err
		}
		f.last.Store(uint64(last))
		c.needed.Store(uint64(last))
		c.begins()
	}
	if err := c.session.keep(c.destination.name, name); err != nil {
		return nil, err
	}
	f.compactor = litestream.NewCompactor(f.client, c.session.db.Logger)
	f.compactor.LocalFileOpener = c.session.open
	if c.session.began != nil {
		if err := c.session.began(ctx, name); err != nil {
			return nil, err
		}
	}
	oldest := time.Now().UTC().Add(-retention).Format(folderFormat)
	for i, name := range before {
		if i < len(before)-keptFolders || i < len(before)-1 && name < oldest {
			f.old = append(f.old, name)
		}
	}
	c.folder.Store(f)
	signal(c.begun)
	return f, nil
}

// beginWith copies the whole database, and returns the last file of the backlog that is in it. The first file of
// the backlog is such a copy: while it is there, the disk needs no space for another one.
func (c *copier) beginWith(ctx context.Context, client litestream.ReplicaClient) (last ltx.TXID, err error) {
	if _, err := c.upload(ctx, client, litestream.SnapshotLevel, 1); !errors.Is(err, fs.ErrNotExist) {
		return 1, err
	}
	c.needed.Store(uint64(c.session.position().id)) // what comes after the snapshot stays
	if last, err = c.writeSnapshot(ctx, client); err != nil {
		c.needed.Store(math.MaxUint64)
	}
	return last, err
}

// errDeleted means that another program deletes what was copied.
var errDeleted = errors.New(
	"files of the copy are missing at the destination, and a new copy is begun: see whether a lifecycle rule or another program deletes them")

// check lists all files of a folder that is the current one, and has a new one begun if the database can't be restored
// from them.
func (c *copier) check(ctx context.Context, f *folder) error {
	if time.Since(f.checked) < checkedPauses*c.session.mergePause {
		return nil
	}
	if _, err := c.bucket.folders(ctx); err != nil { // such as a directory that is not mounted
		return err
	}
	want := f.last.Load()
	there, err := scan(ctx, f.client)
	if err != nil {
		return err
	}
	f.checked = time.Now()
	if there.Last < want && c.folder.CompareAndSwap(f, nil) {
		c.lost(ctx, f.checked, errDeleted)
		signal(c.captured)
	}
	return nil
}

// deleteOld deletes the folders that are older than one. That takes a request for each file, of which there are
// thousands a day.
func (c *copier) deleteOld(ctx context.Context, f *folder) error {
	for ; len(f.old) > 0; f.old = f.old[1:] {
		if err := c.bucket.client(f.old[0]).DeleteAll(ctx); err != nil {
			return err
		}
	}
	return nil
}

// writeSnapshot copies the whole database, and returns the last file that is in it. It makes the
// snapshot on the local disk first, because Litestream runs no checkpoint meanwhile.
func (c *copier) writeSnapshot(ctx context.Context, client litestream.ReplicaClient) (ltx.TXID, error) {
	file, err := os.CreateTemp(c.session.db.MetaPath(), "snapshot-*")
	if err != nil {
		return 0, explainFull(err)
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return 0, err
	}
	position, r, err := c.session.db.SnapshotReader(ctx)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(file, r)
	if err := errors.Join(err, r.Close()); err != nil {
		return 0, explainFull(err)
	}
	if c.session.dropped.Load() {
		return 0, errDropped
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	_, err = client.WriteLTXFile(ctx, litestream.SnapshotLevel, 1, position.TXID, file)
	return position.TXID, err
}

// explainFull makes an error of the local disk that has no space one of errFull: nobody waits for a copy then. A
// destination that is full may have space soon.
func explainFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: replication begins with a copy of the database on it: make room: %w", errFull, err)
	}
	return err
}

// maintain merges files of a folder into larger ones, makes a snapshot once a day, and deletes
// what is older than retention.
func (c *copier) maintain(ctx context.Context, f *folder) error {
	if n := f.unmerged.Load(); n >= mergeBytes || n > 0 && time.Since(f.merged) >= mergePauses*c.session.mergePause {
		f.merged, f.changed = time.Now(), true
		merged, err := f.compactor.Compact(ctx, 1)
		if err != nil && !errors.Is(err, litestream.ErrNoCompaction) {
			return err
		}
		f.unmerged.Add(-n)
		if merged != nil && c.folder.Load() == f {
			c.needed.Store(uint64(merged.MaxTXID))
		}
		if err := f.compactor.EnforceL0Retention(ctx, level0Retention); err != nil {
			return err
		}
	}
	if time.Since(f.snapshot) < retention || !f.changed {
		return nil
	}
	if _, err := c.writeSnapshot(ctx, f.client); err != nil {
		return err
	}
	f.snapshot, f.changed = time.Now(), false
	oldest, err := f.compactor.EnforceSnapshotRetention(ctx, retention)
	if err != nil {
		return err
	}
	for level := range 2 {
		if err := f.compactor.EnforceRetentionByTXID(ctx, level, oldest); err != nil {
			return err
		}
	}
	return nil
}

// destination is one place that the database is copied to.
type destination struct {
	// name is its URL, which has no secrets.
	name   string
	bucket folderStore
	logger *slog.Logger

	// mu guards the fields below.
	mu sync.Mutex
	// lastCommit is when the last commit was made. behind is when the first one was made that the
	// destination does not have, or later by the length of one capture; zero if it has all.
	lastCommit, behind time.Time
	lastSuccess        time.Time
	failures           int64
	err                error
	// confirmed is up to where the destination has all commits; zero if its folder does not have all of the database.
	// changed is closed, and replaced, when that changes.
	confirmed position
	changed   chan struct{}
}

// Status says how complete the copy at one destination is.
type Status struct {
	// Destination is its URL.
	Destination string
	// Lag is the age of the oldest commit that is not there; 0 if all are.
	Lag time.Duration
	// LastSuccess is when the destination last had all commits that were captured; zero if it never
	// had in this process.
	LastSuccess time.Time
	// Failures counts failed attempts, and those to capture the database. Err is the error of the last attempt; nil if
	// it succeeded.
	Failures int64
	Err      error
}

// Status returns the status of each destination.
func (r *Replicator) Status() []Status {
	all := make([]Status, len(r.destinations))
	for i, d := range r.destinations {
		all[i] = d.status(time.Now())
	}
	return all
}

func (d *destination) status(now time.Time) Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{Destination: d.name, LastSuccess: d.lastSuccess, Failures: d.failures, Err: d.err}
	if !d.behind.IsZero() {
		s.Lag = now.Sub(d.behind)
	}
	return s
}

// markBehind notes a commit.
func (d *destination) markBehind(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastCommit = now
	if d.behind.IsZero() {
		d.behind = now
	}
}

// position is how far the backlog, or the folder of a destination, reaches.
type position struct {
	// id is the last file. It and those before have all commits that were made until a time, and those up to a revision.
	id       ltx.TXID
	until    time.Time
	revision int64
}

// succeeded notes that the destination has all commits up to a position.
func (d *destination) succeeded(ctx context.Context, to position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behind = to.until
	if d.lastCommit.Before(to.until) {
		d.behind = time.Time{}
	}
	if d.err != nil {
		d.logger.InfoContext(ctx, "replication: the destination has everything again")
	}
	d.lastSuccess, d.err, d.confirmed = time.Now(), nil, to
	d.signalChanged()
}

// begins notes that a folder begins, from which a process may go on instead of the one before.
func (d *destination) begins() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.confirmed = position{}
}

// wake has await look again.
func (d *destination) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.signalChanged()
}

func (d *destination) signalChanged() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// await waits until the destination has all commits until a time. It fails if ctx ends before, ended is closed, or
// hasNoSpace becomes true, after which wake is called.
func (d *destination) await(ctx context.Context, at time.Time, ended <-chan struct{}, hasNoSpace *atomic.Bool) error {
	for {
		d.mu.Lock()
		has, changed := !d.confirmed.until.Before(at), d.changed
		d.mu.Unlock()
		switch {
		case has:
			return nil
		case hasNoSpace.Load():
			return fmt.Errorf("nothing is copied: %w", errFull)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return errors.New("the server stops before " + d.name + " has the commit")
		}
	}
}

// lost notes that the destination has lost what it had.
func (d *destination) lost(ctx context.Context, now time.Time, err error) {
	d.mu.Lock()
	if d.behind.IsZero() {
		d.behind = now
	}
	d.mu.Unlock()
	d.failed(ctx, err)
}

// failed notes a failed attempt.
func (d *destination) failed(ctx context.Context, err error) {
	if d.fail(err) {
		d.logger.ErrorContext(ctx,
			"replication: the copy is not complete, and is tried again: see whether the destination can be reached and written",
			"err", err)
	}
}

// fail counts a failed attempt, and reports whether the one before succeeded.
func (d *destination) fail(err error) (isFirst bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	isFirst = d.err == nil
	d.failures++
	d.err = err
	return isFirst
}
