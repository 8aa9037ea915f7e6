package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"byre/sqlstore/bucket"
)

// ErrEmpty means that there is nothing to restore.
var ErrEmpty = errors.New("there is no copy of a database")

// Location is the copy in the destination of the given URL, as if it were one file. The certificates and
// keys of the server lie beside it, at bucket.KeysSuffix.
func Location(destination string, s3 bucket.S3) bucket.Location {
	l := bucket.Location{Name: strings.TrimSuffix(destination, "/") + "/byre", Force: true, S3: s3}
	if u, err := url.Parse(l.Name); err == nil && u.Scheme == "file" {
		l.Name = u.Path
	}
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
		return nil, fmt.Errorf("%s: %w", destination, err)
	}
	copies := make([]Copy, len(folders))
	for i, folder := range folders {
		if copies[i], err = scan(ctx, b.client(folder)); err != nil {
			return nil, fmt.Errorf("%s/%s: %w", destination, folder, err)
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
	for level := 0; level <= litestream.SnapshotLevel; level++ { // upwards: a file is merged into a higher level before it goes
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
