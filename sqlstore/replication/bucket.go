package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
	"github.com/superfly/ltx"

	"byre/sqlstore/bucket"
)

// folderStore holds the folders of one destination.
type folderStore interface {
	// folders returns the names of the folders, sorted. It fails if the bucket does not answer.
	folders(ctx context.Context) ([]string, error)
	// client returns what reads and writes one folder.
	client(folder string) litestream.ReplicaClient
}

// IsURL reports whether text has the form of a destination.
func IsURL(text string) bool {
	return strings.HasPrefix(text, "file:") || strings.HasPrefix(text, "s3:")
}

// Check fails if text is not the URL of a destination.
func Check(text string, s3 bucket.S3) error {
	_, err := openBucket(text, s3)
	return err
}

// openBucket parses the URL of a destination. It reaches for nothing.
func openBucket(text string, s3 bucket.S3) (folderStore, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "":
	case u.Scheme == "file" && u.Host == "" && filepath.IsAbs(u.Path) && u.Path != "/":
		return directory(filepath.Clean(u.Path)), nil
	case u.Scheme == "s3" && u.Host != "" && strings.Trim(u.Path, "/") != "":
		client, err := s3.Client()
		if err != nil {
			return nil, err
		}
		return &s3Bucket{service: client, bucket: u.Host, prefix: strings.Trim(u.Path, "/")}, nil
	}
	return nil, fmt.Errorf("%q: want file:///PATH or s3://BUCKET/PATH", text)
}

// directory is a bucket in a file system.
type directory string

// folders implements bucket. The directory must exist: a medium that is not mounted must not
// fill the disk that it is to be mounted on.
func (d directory) folders(context.Context) ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no directory %s: make it, or mount what it is on", string(d))
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return onlyFolders(names), err
}

// client implements bucket.
func (d directory) client(folder string) litestream.ReplicaClient {
	return &directoryClient{file.NewReplicaClient(filepath.Join(string(d), folder)), string(d)}
}

// directoryClient is Litestream's client, which does not make the directory, nor a folder without
// its snapshot.
type directoryClient struct {
	*file.ReplicaClient
	root string
}

// WriteLTXFile implements litestream.ReplicaClient. It fails with fs.ErrNotExist if the folder was
// deleted.
func (c *directoryClient) WriteLTXFile(ctx context.Context, level int, first, last ltx.TXID, r io.Reader) (*ltx.FileInfo, error) {
	needed := c.root
	if level != litestream.SnapshotLevel {
		needed = c.LTXLevelDir(litestream.SnapshotLevel)
	}
	if _, err := os.Stat(needed); err != nil {
		return nil, fmt.Errorf("what was copied was deleted, or is not mounted: %w", err)
	}
	return c.ReplicaClient.WriteLTXFile(ctx, level, first, last, r)
}

// folderFormat is the format of the names of folders, whose order is that of time.
const folderFormat = "20060102T150405.000000Z"

// newFolder returns a name that sorts after those of before, whose clock may have been ahead.
func newFolder(now time.Time, before []string) string {
	name := now.UTC().Format(folderFormat)
	if len(before) > 0 && before[len(before)-1] >= name {
		last, _ := time.Parse(folderFormat, before[len(before)-1]) // onlyFolders has parsed it
		name = last.Add(time.Microsecond).Format(folderFormat)
	}
	return name
}

// onlyFolders returns the names that have folderFormat, sorted.
func onlyFolders(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool {
		_, err := time.Parse(folderFormat, name)
		return err != nil
	})
	slices.Sort(names)
	return names
}
