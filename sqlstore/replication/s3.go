package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/minio/minio-go/v7"
	"github.com/superfly/ltx"
)

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
