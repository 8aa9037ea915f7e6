package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"byre/migrations"
	"byre/sqlstore/bucket"
)

// ErrEmpty means that there is nothing to restore.
var ErrEmpty = errors.New("there is no copy of a database")

// Location is the copy in the destination of the given URL, as if it were one file. The certificates and
// keys of the server lie beside it, at bucket.KeysSuffix.
func Location(destination string, s3 bucket.S3) bucket.Location {
	l := bucket.Directory{Name: strings.TrimPrefix(destination, "file://"), S3: s3}.File("byre")
	l.Force = true
	return l
}

// Copy says what can be restored from a folder of a destination, which one process has written.
type Copy struct {
	// Folder is its name. Names sort in the order of time.
	Folder string
	// Last is the last transaction of the copy up to which none is missing; 0 if there is no copy of the whole
	// database. Time is when it was made, and zero then.
	Last uint64
	Time time.Time
	// Seen is the last transaction that there is a file of; 0 if there are no files.
	Seen uint64
	// SizeBytes is the size of all files.
	SizeBytes int64
}

// HasHole reports whether files are missing. Of files that are missing at the end nothing tells.
func (c *Copy) HasHole() bool { return c.Last < c.Seen }

// Hole says what is missing; empty if nothing is.
func (c *Copy) Hole() string {
	switch {
	case !c.HasHole():
		return ""
	case c.Last == 0:
		return "the copy of the whole database is missing, with which it begins"
	}
	return fmt.Sprintf("files are missing after transaction %d, of %d", c.Last, c.Seen)
}

// Copies returns the copies in the destination of the given URL, the oldest first. It only lists files.
func Copies(ctx context.Context, destination string, s3 bucket.S3) ([]Copy, error) {
	b, err := openBucket(destination, s3)
	if err != nil {
		return nil, err
	}
	folders, err := b.folders(ctx)
	if err != nil {
		return nil, err
	}
	copies := make([]Copy, len(folders))
	for i, folder := range folders {
		if copies[i], err = scan(ctx, b.client(folder)); err != nil {
			return nil, err
		}
		copies[i].Folder = folder
	}
	return copies, nil
}

// Latest returns the last one of Copies that has any file: a process that ended before it had copied the whole
// database has left none. It fails with ErrEmpty.
func Latest(copies []Copy) (Copy, error) {
	for _, c := range slices.Backward(copies) {
		if c.Seen > 0 {
			return c, nil
		}
	}
	return Copy{}, ErrEmpty
}

// scan lists the files of a folder.
func scan(ctx context.Context, client litestream.ReplicaClient) (c Copy, err error) {
	var all []*ltx.FileInfo
	// upwards: a file is merged into a higher level before it goes
	for level := 0; level <= litestream.SnapshotLevel; level++ {
		files, err := client.LTXFiles(ctx, level, 0, false)
		if err != nil {
			return c, err
		}
		for files.Next() {
			all = append(all, files.Item())
		}
		if err := errors.Join(files.Err(), files.Close()); err != nil {
			return c, err
		}
	}
	for _, info := range all {
		c.Seen, c.SizeBytes = max(c.Seen, uint64(info.MaxTXID)), c.SizeBytes+info.Size
	}
	slices.SortFunc(all, func(a, b *ltx.FileInfo) int { return cmp.Compare(a.MinTXID, b.MinTXID) })
	for _, info := range all {
		if uint64(info.MinTXID) <= c.Last+1 && uint64(info.MaxTXID) > c.Last {
			c.Last, c.Time = uint64(info.MaxTXID), info.CreatedAt
		}
	}
	return c, nil
}

// Restore makes a database file at path, which must not exist, of a copy that Copies has returned for the
// destination of the given URL, up to c.Last if files are missing, and else up to the last transaction that is there.
func Restore(ctx context.Context, destination string, s3 bucket.S3, c Copy, path string) error {
	b, err := openBucket(destination, s3)
	if err != nil {
		return err
	}
	replica := litestream.NewReplicaWithClient(nil, b.client(c.Folder))
	options := litestream.NewRestoreOptions()
	options.OutputPath = path
	if c.HasHole() {
		options.TXID = ltx.TXID(c.Last)
	}
	if err := replica.Restore(ctx, options); err != nil {
		return fmt.Errorf("%s/%s: %w", destination, c.Folder, err)
	}
	return nil
}

// listInterval is the time between two listings of a folder: files of the lowest level are merged, and
// deleted after level0Retention.
const listInterval = 30 * time.Second

// Follower keeps a copy of a database that another process replicates. One goroutine uses it.
type Follower struct {
	bucket s3Place
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
func openS3(url string, s3 bucket.S3) (s3Place, error) {
	b, err := openBucket(url, s3)
	if err != nil {
		return s3Place{}, err
	}
	in, ok := b.(s3Place)
	if !ok {
		return s3Place{}, fmt.Errorf("%q: want s3://BUCKET/PATH, because files have no conditional writes", url)
	}
	return in, nil
}

// LeaseOf returns the object with the lease of a destination in S3.
func LeaseOf(url string, s3 bucket.S3) (*LeaseObject, error) {
	b, err := openS3(url, s3)
	if err != nil {
		return nil, err
	}
	return NewLeaseObject(b.Client), nil
}

// Folders returns the folders in the order in which they were begun.
func (f *Follower) Folders(ctx context.Context) ([]string, error) { return f.bucket.folders(ctx) }

// ErrHole means that a folder lacks a file, and has files that follow it.
var ErrHole = errors.New(
	"a file of the copy is missing in the bucket: see whether a lifecycle rule or another program deletes them")

// CatchUp applies what is new in a folder. With all, the copy then has everything that is there;
// otherwise it may miss what was merged in the last 30 seconds. It fails with ErrEmpty if the folder has no
// database, and with ErrHole, when the copy has everything before the hole. After any other error the file may have a
// part of a change, until a CatchUp of the folder succeeds.
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
			if info.MinTXID > f.last+1 || info.MaxTXID <= f.last || level == litestream.SnapshotLevel && best != nil &&
				best.Level != level {
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
	if err := eachPage(decoder, func(number uint32, page []byte) error {
		_, err := f.file.WriteAt(page, int64(number-1)*int64(header.PageSize))
		return err
	}); err != nil {
		return err
	}
	f.last = info.MaxTXID
	return f.file.Truncate(int64(header.Commit) * int64(header.PageSize))
}

// Path is that of the copy.
func (f *Follower) Path() string { return f.file.Name() }

// Close syncs the copy and closes it.
func (f *Follower) Close() error { return errors.Join(f.file.Sync(), f.file.Close()) }
