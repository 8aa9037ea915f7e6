package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"byre/migrations"
	"byre/sqlstore/bucket"
)

// listInterval is the time between two listings of a folder: files of the lowest level are merged, and
// deleted after level0Retention.
const listInterval = 30 * time.Second

// Follower keeps a copy of a database that another process replicates. One goroutine uses it.
type Follower struct {
	bucket *s3Bucket
	file   *os.File

	// folder is what the file is a copy of, up to the transaction last; 0 if it is none yet.
	folder string
	client litestream.ReplicaClient
	last   ltx.TXID
	// listed is when the last listing began, and seen the last transaction that it had. hole is that of the copy after
	// a listing that had no file which follows on it.
	listed     time.Time
	seen, hole ltx.TXID
}

// NewFollower returns a Follower of a destination in S3, which writes a new file at path.
func NewFollower(url string, s3 bucket.S3, path string) (*Follower, error) {
	b, err := openS3(url, s3)
	if err != nil {
		return nil, err
	}
	file, err := migrations.OpenOwned(path, os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return &Follower{bucket: b, file: file}, nil
}

// openS3 parses the URL of a destination in S3.
func openS3(url string, s3 bucket.S3) (*s3Bucket, error) {
	b, err := openBucket(url, s3)
	if err != nil {
		return nil, err
	}
	in, ok := b.(*s3Bucket)
	if !ok {
		return nil, fmt.Errorf("%q: want s3://BUCKET/PATH, because files have no conditional writes", url)
	}
	return in, nil
}

// LeaseOf returns the object with the lease of a destination in S3.
func LeaseOf(url string, s3 bucket.S3) (*LeaseObject, error) {
	b, err := openS3(url, s3)
	if err != nil {
		return nil, err
	}
	return NewLeaseObject(b.service, b.bucket, b.prefix+"/lease.json"), nil
}

// Folders returns the folders in the order in which they were begun.
func (f *Follower) Folders(ctx context.Context) ([]string, error) { return f.bucket.folders(ctx) }

// ErrHole means that a folder lacks a file, and has files that follow it.
var ErrHole = errors.New("a file of the copy is missing in the bucket: see whether a lifecycle rule or another program deletes them")

// CatchUp applies what is new in a folder. With all, the copy then has everything that is there;
// otherwise it may miss what was merged in the last 30 seconds. It fails with ErrEmpty if the folder has no
// database, and with ErrHole, when the copy has everything before the hole. After any other error the file may have a part of a change, until a CatchUp of the folder succeeds.
func (f *Follower) CatchUp(ctx context.Context, folder string, all bool) error {
	if folder != f.folder {
		f.folder, f.client, f.last, f.hole = folder, f.bucket.client(folder), 0, 0
	}
	for {
		if f.last > 0 { // mostly the next file, which is asked for by its name, or nothing
			err := f.apply(ctx, &ltx.FileInfo{MinTXID: f.last + 1, MaxTXID: f.last + 1})
			switch {
			case err == nil:
				continue
			case !errors.Is(err, fs.ErrNotExist):
				return err
			case !all && (f.last >= f.seen || f.last == f.hole) && time.Since(f.listed) < listInterval:
				return f.checkHole() // commits that go on while it lists do not keep it from returning
			}
		}
		begin := time.Now()
		info, err := f.next(ctx)
		if err != nil {
			return err
		}
		f.listed = begin
		if info == nil {
			f.hole = f.last
			return f.checkHole()
		}
		if err := f.apply(ctx, info); err != nil {
			return err
		}
	}
}

// checkHole fails with ErrHole if the last listing had files after those that the copy has.
func (f *Follower) checkHole() error {
	if f.seen <= f.last {
		return nil
	}
	return fmt.Errorf("%s has transaction %d, and none from %d on: %w", f.folder, f.seen, f.last+1, ErrHole)
}

// Last returns the last transaction that the copy has.
func (f *Follower) Last() uint64 { return uint64(f.last) }

// next returns the file that brings the copy farthest; nil if there is none. It prefers any to a snapshot,
// which has the whole database.
func (f *Follower) next(ctx context.Context) (best *ltx.FileInfo, err error) {
	hasSnapshot := false
	f.seen = 0
	for _, level := range []int{0, 1, 2, 3, litestream.SnapshotLevel} {
		files, err := f.client.LTXFiles(ctx, level, 0, false)
		if err != nil {
			return nil, err
		}
		for files.Next() {
			info := files.Item()
			hasSnapshot = hasSnapshot || level == litestream.SnapshotLevel
			f.seen = max(f.seen, info.MaxTXID)
			if info.MinTXID > f.last+1 || info.MaxTXID <= f.last || level == litestream.SnapshotLevel && best != nil && best.Level != level {
				continue
			}
			if best == nil || info.MaxTXID > best.MaxTXID {
				best = &ltx.FileInfo{Level: level, MinTXID: info.MinTXID, MaxTXID: info.MaxTXID}
			}
		}
		if err := errors.Join(files.Err(), files.Close()); err != nil {
			return nil, err
		}
	}
	if !hasSnapshot {
		return nil, fmt.Errorf("%s: %w", f.folder, ErrEmpty)
	}
	return best, nil
}

// apply writes the pages of a file, which the copy may have already.
func (f *Follower) apply(ctx context.Context, info *ltx.FileInfo) (err error) {
	body, err := f.client.OpenLTXFile(ctx, info.Level, info.MinTXID, info.MaxTXID, 0, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	decoder := ltx.NewDecoder(body)
	if err := decoder.DecodeHeader(); err != nil {
		return err
	}
	header := decoder.Header()
	page := make([]byte, header.PageSize)
	for {
		var at ltx.PageHeader
		if err := decoder.DecodePage(&at, page); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if _, err := f.file.WriteAt(page, int64(at.Pgno-1)*int64(header.PageSize)); err != nil {
			return err
		}
	}
	if err := decoder.Close(); err != nil { // it compares the checksum
		return err
	}
	f.last = info.MaxTXID
	return f.file.Truncate(int64(header.Commit) * int64(header.PageSize))
}

// Path is that of the copy.
func (f *Follower) Path() string { return f.file.Name() }

// Close syncs the copy and closes it.
func (f *Follower) Close() error { return errors.Join(f.file.Sync(), f.file.Close()) }
