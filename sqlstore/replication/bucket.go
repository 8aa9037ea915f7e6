package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path"
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
	// claim makes an object in a folder. It fails with bucket.ErrChanged or fs.ErrExist if another claimant has made it,
	// and with ErrUnconditional if nothing can tell. It may be called again after another error.
	claim(ctx context.Context, folder, name, claimant string) error
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
	case strings.HasPrefix(text, "file:///") && u.Path != "/":
		return directory(filepath.Clean(strings.TrimPrefix(text, "file://"))), nil
	case u.Scheme == "s3" && u.Host != "" && strings.Trim(u.Path, "/") != "":
		client, err := s3.Open(text)
		if err != nil {
			return nil, err
		}
		return s3Place{client}, nil
	}
	return nil, fmt.Errorf("%q: want file:///PATH or s3://BUCKET/PATH", text)
}

// directory is a destination in a file system.
type directory string

// folders implements folderStore. The directory must exist: a medium that is not mounted must not
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

// claim implements folderStore.
func (d directory) claim(_ context.Context, folder, name, _ string) error {
	file, err := os.OpenFile(filepath.Join(string(d), folder, name), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// client implements folderStore.
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
func (c *directoryClient) WriteLTXFile(
	ctx context.Context, level int, first, last ltx.TXID, r io.Reader,
) (*ltx.FileInfo, error) {
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

// s3Place is a place in a bucket of S3.
type s3Place struct{ *bucket.Client }

// folders implements folderStore.
func (p s3Place) folders(ctx context.Context) ([]string, error) {
	objects, err := p.List(ctx, "", false)
	var names []string
	for _, object := range objects {
		names = append(names, strings.TrimSuffix(object.Name, "/"))
	}
	return onlyFolders(names), err
}

// claim implements folderStore.
func (p s3Place) claim(ctx context.Context, folder, name, claimant string) error {
	in := p.In(folder)
	for i := range 2 { // the second write must fail
		_, err := in.Replace(ctx, name, []byte(claimant), "")
		switch {
		case err == nil && i == 1 || errors.Is(err, errors.ErrUnsupported):
			return ErrUnconditional
		case err != nil && !errors.Is(err, bucket.ErrChanged):
			return err
		}
	}
	// After the loss of an answer it may be this claimant's.
	body, _, err := in.Get(ctx, name, 0, 0)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err == nil && string(text) != claimant {
		err = bucket.ErrChanged
	}
	return err
}

// client implements folderStore.
func (p s3Place) client(folder string) litestream.ReplicaClient { return s3Client{p.In(folder)} }

// s3Client is a litestream.ReplicaClient of a folder. Litestream's own would add the SDK of AWS to the
// program.
type s3Client struct{ folder *bucket.Client }

// Type implements litestream.ReplicaClient.
func (c s3Client) Type() string { return "s3" }

// Init implements litestream.ReplicaClient.
func (c s3Client) Init(context.Context) error { return nil }

// SetLogger implements litestream.ReplicaClient.
func (c s3Client) SetLogger(*slog.Logger) {}

// LTXFiles implements litestream.ReplicaClient. S3 lists keys in their order, which is that of
// the transactions.
func (c s3Client) LTXFiles(ctx context.Context, level int, seek ltx.TXID, _ bool) (ltx.FileIterator, error) {
	objects, err := c.folder.List(ctx, litestream.LTXLevelDir("", level)+"/", false)
	if err != nil {
		return nil, err
	}
	var infos []*ltx.FileInfo
	for _, o := range objects {
		first, last, err := ltx.ParseFilename(path.Base(o.Name))
		if err != nil || first < seek {
			continue
		}
		infos = append(infos, &ltx.FileInfo{Level: level, MinTXID: first, MaxTXID: last, Size: o.Size, CreatedAt: o.Modified})
	}
	return ltx.NewFileInfoSliceIterator(infos), nil
}

// OpenLTXFile implements litestream.ReplicaClient.
func (c s3Client) OpenLTXFile(
	ctx context.Context, level int, first, last ltx.TXID, offset, size int64,
) (io.ReadCloser, error) {
	body, _, err := c.folder.Get(ctx, litestream.LTXFilePath("", level, first, last), offset, size)
	return body, err
}

// WriteLTXFile implements litestream.ReplicaClient.
func (c s3Client) WriteLTXFile(
	ctx context.Context, level int, first, last ltx.TXID, r io.Reader,
) (*ltx.FileInfo, error) {
	size, err := c.folder.Put(ctx, litestream.LTXFilePath("", level, first, last), r)
	if err != nil {
		return nil, err
	}
	return &ltx.FileInfo{Level: level, MinTXID: first, MaxTXID: last, Size: size, CreatedAt: time.Now().UTC()}, nil
}

// DeleteLTXFiles implements litestream.ReplicaClient.
func (c s3Client) DeleteLTXFiles(ctx context.Context, infos []*ltx.FileInfo) error {
	var names []string
	for _, info := range infos {
		names = append(names, litestream.LTXFilePath("", info.Level, info.MinTXID, info.MaxTXID))
	}
	return c.folder.Delete(ctx, names...)
}

// DeleteAll implements litestream.ReplicaClient.
func (c s3Client) DeleteAll(ctx context.Context) error {
	objects, err := c.folder.List(ctx, "", true)
	if err != nil {
		return err
	}
	var names []string
	for _, object := range objects {
		names = append(names, object.Name)
	}
	return c.folder.Delete(ctx, names...)
}
