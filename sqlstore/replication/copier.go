package replication

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync/atomic"
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
	// compactionPause is the interval of the lowest level.
	compactionPause = 30 * time.Second
)

// copier copies the backlog of a session to one destination. One goroutine uses it at a time.
type copier struct {
	*destination
	session *session
	// captured receives when the backlog has grown. Its capacity is 1.
	captured chan struct{}

	// client writes the current folder; nil if there is none. last is the last file that is there.
	client litestream.ReplicaClient
	last   ltx.TXID
	// needed is the last file of the backlog that the destination does not need; math.MaxUint64 if it needs none.
	needed atomic.Uint64

	compactor *litestream.Compactor
	// compacted is when a level was last compacted, and snapshot the time of the last snapshot.
	compacted [4]time.Time
	snapshot  time.Time
	// changed says which levels have files that are not compacted into the next one.
	changed [4]bool
}

func newCopier(d *destination, s *session) *copier {
	c := &copier{destination: d, session: s, captured: make(chan struct{}, 1)}
	c.needed.Store(math.MaxUint64)
	return c
}

// position returns the last file of the backlog that may be deleted.
func (c *copier) position() ltx.TXID { return ltx.TXID(c.needed.Load()) }

// run copies until ctx ends.
func (c *copier) run(ctx context.Context) {
	ticker := time.NewTicker(compactionPause)
	defer ticker.Stop()
	signal(c.captured)
	for pause := captureInterval; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-c.captured:
		}
		err := c.sync(ctx)
		if err == nil {
			err = c.maintain(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			pause = captureInterval
			continue
		}
		c.failed(ctx, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
		signal(c.captured)
	}
}

// sync brings the backlog to the destination.
func (c *copier) sync(ctx context.Context) error {
	end, until := c.session.position()
	if c.client == nil {
		if err := c.begin(ctx); err != nil {
			return err
		}
	}
	for c.last < end {
		if err := c.upload(ctx, c.last+1); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				c.client = nil // the next attempt begins a new folder
			}
			return err
		}
		c.last++
		c.needed.Store(uint64(c.last))
		c.changed[0] = true
	}
	c.succeeded(ctx, until)
	return nil
}

// upload copies one file. It fails with fs.ErrNotExist if the backlog has it no more.
func (c *copier) upload(ctx context.Context, id ltx.TXID) error {
	file, err := os.Open(c.session.db.LTXPath(0, id, id))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = c.client.WriteLTXFile(ctx, 0, id, id, file)
	return err
}

// begin makes a new folder, with a snapshot, and deletes old ones.
func (c *copier) begin(ctx context.Context) error {
	before, err := c.bucket.folders(ctx)
	if err != nil {
		return err
	}
	end, _ := c.session.position()
	c.needed.Store(uint64(end)) // what comes after the snapshot stays
	name := newFolder(time.Now(), before)
	client := c.bucket.client(name)
	if c.last, err = c.writeSnapshot(ctx, client); err != nil {
		c.needed.Store(math.MaxUint64)
		return err
	}
	c.client = client
	c.compactor = litestream.NewCompactor(client, c.session.db.Logger)
	c.changed = [4]bool{}
	if c.session.began != nil {
		c.session.began(name)
	}
	oldest := time.Now().UTC().Add(-retention).Format(folderFormat)
	for i, name := range before {
		if i < len(before)-keptFolders || i < len(before)-1 && name < oldest {
			if err := c.bucket.client(name).DeleteAll(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeSnapshot copies the whole database, and returns the last file that is in it. It makes the
// snapshot on the local disk first, because Litestream runs no checkpoint meanwhile.
func (c *copier) writeSnapshot(ctx context.Context, client litestream.ReplicaClient) (ltx.TXID, error) {
	file, err := os.CreateTemp(c.session.db.MetaPath(), "snapshot-*")
	if err != nil {
		return 0, err
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
		return 0, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	_, err = client.WriteLTXFile(ctx, litestream.SnapshotLevel, 1, position.TXID, file)
	c.snapshot = time.Now()
	return position.TXID, err
}

// maintain merges files of the folder into larger ones, makes a snapshot once a day, and deletes
// what is older than retention.
func (c *copier) maintain(ctx context.Context) error {
	for _, level := range litestream.DefaultCompactionLevels[1:] {
		below := level.Level - 1
		if !c.changed[below] || time.Since(c.compacted[level.Level]) < level.Interval {
			continue
		}
		c.compacted[level.Level] = time.Now()
		if _, err := c.compactor.Compact(ctx, level.Level); err != nil && !errors.Is(err, litestream.ErrNoCompaction) {
			return err
		}
		c.changed[below], c.changed[level.Level] = false, true
		if level.Level == 1 {
			if err := c.compactor.EnforceL0Retention(ctx, level0Retention); err != nil {
				return err
			}
		}
	}
	if time.Since(c.snapshot) < retention || !slices.Contains(c.changed[:], true) {
		return nil
	}
	if _, err := c.writeSnapshot(ctx, c.client); err != nil {
		return err
	}
	c.changed[3] = false
	oldest, err := c.compactor.EnforceSnapshotRetention(ctx, retention)
	if err != nil {
		return err
	}
	for level := range c.compacted {
		if err := c.compactor.EnforceRetentionByTXID(ctx, level, oldest); err != nil {
			return err
		}
	}
	return nil
}
