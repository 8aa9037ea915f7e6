package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
	"github.com/minio/minio-go/v7"
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

// partSize is the size in bytes of the parts of an upload, of which one at a time is in memory.
// S3 takes 10,000 parts, which are 156 GiB.
const partSize = 16 << 20

// s3Bucket is a bucket of S3, below a prefix.
type s3Bucket struct {
	service        *minio.Client
	bucket, prefix string
}

// folders implements bucket.
func (b *s3Bucket) folders(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var names []string
	for object := range b.service.ListObjects(ctx, b.bucket, minio.ListObjectsOptions{Prefix: b.prefix + "/"}) {
		if object.Err != nil {
			return nil, object.Err
		}
		names = append(names, path.Base(object.Key))
	}
	return onlyFolders(names), nil
}

// client implements bucket.
func (b *s3Bucket) client(folder string) litestream.ReplicaClient {
	return &s3Client{b.service, b.bucket, b.prefix + "/" + folder}
}

// s3Client is a litestream.ReplicaClient over minio-go, which "byre backup" uses too.
// Litestream's own would add the SDK of AWS to the program.
type s3Client struct {
	service      *minio.Client
	bucket, root string
}

var _ litestream.ReplicaClient = (*s3Client)(nil)

// Type implements litestream.ReplicaClient.
func (c *s3Client) Type() string { return "s3" }

// Init implements litestream.ReplicaClient.
func (c *s3Client) Init(context.Context) error { return nil }

// SetLogger implements litestream.ReplicaClient.
func (c *s3Client) SetLogger(*slog.Logger) {}

// LTXFiles implements litestream.ReplicaClient. S3 lists keys in their order, which is that of
// the transactions.
func (c *s3Client) LTXFiles(ctx context.Context, level int, seek ltx.TXID, _ bool) (ltx.FileIterator, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var infos []*ltx.FileInfo
	for object := range c.service.ListObjects(ctx, c.bucket, minio.ListObjectsOptions{Prefix: litestream.LTXLevelDir(c.root, level) + "/"}) {
		if object.Err != nil {
			return nil, object.Err
		}
		first, last, err := ltx.ParseFilename(path.Base(object.Key))
		if err != nil || first < seek {
			continue
		}
		infos = append(infos, &ltx.FileInfo{Level: level, MinTXID: first, MaxTXID: last, Size: object.Size, CreatedAt: object.LastModified.UTC()})
	}
	return ltx.NewFileInfoSliceIterator(infos), nil
}

// OpenLTXFile implements litestream.ReplicaClient.
func (c *s3Client) OpenLTXFile(ctx context.Context, level int, first, last ltx.TXID, offset, size int64) (io.ReadCloser, error) {
	var options minio.GetObjectOptions
	if offset > 0 || size > 0 {
		end := int64(0) // the end of the object
		if size > 0 {
			end = offset + size - 1
		}
		if err := options.SetRange(offset, end); err != nil {
			return nil, err
		}
	}
	key := litestream.LTXFilePath(c.root, level, first, last)
	body, _, _, err := minio.Core{Client: c.service}.GetObject(ctx, c.bucket, key, options)
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%s: %w", key, os.ErrNotExist)
	}
	return body, err
}

// WriteLTXFile implements litestream.ReplicaClient.
func (c *s3Client) WriteLTXFile(ctx context.Context, level int, first, last ltx.TXID, r io.Reader) (*ltx.FileInfo, error) {
	size := int64(-1)
	if file, ok := r.(*os.File); ok {
		info, err := file.Stat()
		if err != nil {
			return nil, err
		}
		size = info.Size()
	}
	info, err := c.service.PutObject(ctx, c.bucket, litestream.LTXFilePath(c.root, level, first, last), r, size,
		minio.PutObjectOptions{PartSize: partSize, SendContentMd5: true})
	if err != nil {
		return nil, err
	}
	return &ltx.FileInfo{Level: level, MinTXID: first, MaxTXID: last, Size: info.Size, CreatedAt: time.Now().UTC()}, nil
}

// DeleteLTXFiles implements litestream.ReplicaClient.
func (c *s3Client) DeleteLTXFiles(ctx context.Context, infos []*ltx.FileInfo) error {
	objects := make(chan minio.ObjectInfo, len(infos))
	for _, info := range infos {
		objects <- minio.ObjectInfo{Key: litestream.LTXFilePath(c.root, info.Level, info.MinTXID, info.MaxTXID)}
	}
	close(objects)
	var err error
	for failed := range c.service.RemoveObjects(ctx, c.bucket, objects, minio.RemoveObjectsOptions{}) { // one request for a thousand
		err = errors.Join(err, failed.Err)
	}
	return err
}

// DeleteAll implements litestream.ReplicaClient.
func (c *s3Client) DeleteAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for object := range c.service.ListObjects(ctx, c.bucket, minio.ListObjectsOptions{Prefix: strings.TrimSuffix(c.root, "/") + "/", Recursive: true}) {
		if object.Err != nil {
			return object.Err
		}
		if err := c.service.RemoveObject(ctx, c.bucket, object.Key, minio.RemoveObjectOptions{}); err != nil {
			return err
		}
	}
	return nil
}
