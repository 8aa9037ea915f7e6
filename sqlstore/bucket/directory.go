package bucket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"byre/migrations"
)

const (
	// Suffix is that of the names of backups in a Directory.
	Suffix = ".zst"
	// KeysSuffix follows the name of a backup in that of the file beside it, with the certificates
	// and keys of its server, encrypted.
	KeysSuffix = ".pki.age"
)

// Directory is a place of backups that an operator names.
type Directory struct {
	// Name is the path of a directory, s3://BUCKET or s3://BUCKET/PREFIX.
	Name string
	// S3 says how to reach the service for S3.
	S3 S3
}

// Entry is a file in a Directory.
type Entry struct {
	// Name is the name of the file without that of the Directory, and Size its length in bytes.
	Name string
	Size int64
}

// File returns the Location of a file in the directory.
func (d Directory) File(name string) Location {
	if strings.HasPrefix(d.Name, "s3:") {
		return Location{Name: strings.TrimSuffix(d.Name, "/") + "/" + name, S3: d.S3}
	}
	return Location{Name: filepath.Join(d.Name, name), S3: d.S3}
}

// List returns the files whose names end with Suffix, in the order of their names. It leaves out those
// of directories below.
func (d Directory) List(ctx context.Context) ([]Entry, error) {
	address, ok, err := d.parseS3()
	switch {
	case err != nil:
		return nil, err
	case ok:
		return d.listS3(ctx, address)
	}
	files, err := os.ReadDir(d.Name)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, file := range files {
		if !file.Type().IsRegular() || !isBackup(file.Name()) {
			continue
		}
		info, err := file.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{file.Name(), info.Size()})
	}
	return entries, nil
}

// isBackup leaves out files that are being written.
func isBackup(name string) bool {
	return strings.HasSuffix(name, Suffix) && !strings.HasPrefix(name, ".")
}

// Remove deletes a file of the directory, and the file of KeysSuffix beside it.
func (d Directory) Remove(ctx context.Context, name string) error {
	address, ok, err := d.parseS3()
	if err != nil {
		return err
	}
	if !ok {
		keys := os.Remove(filepath.Join(d.Name, name+KeysSuffix))
		if errors.Is(keys, os.ErrNotExist) {
			keys = nil
		}
		return errors.Join(os.Remove(filepath.Join(d.Name, name)), keys, migrations.SyncDir(d.Name))
	}
	client, err := d.S3.Client()
	if err != nil {
		return err
	}
	for _, key := range []string{name, name + KeysSuffix} {
		// Some services say that there was no such object.
		err := client.RemoveObject(ctx, address.bucket, address.key+key, minio.RemoveObjectOptions{})
		if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchKey {
			return d.File(key).explain(err)
		}
	}
	return nil
}

// RemovePartial deletes what a Write to a name of the pattern, as of path.Match, has left because its process was killed, if it was
// last written before a moment. In S3 it deletes nothing.
func (d Directory) RemovePartial(pattern string, before time.Time) error {
	if strings.HasPrefix(d.Name, "s3:") {
		return nil
	}
	names, err := fs.Glob(os.DirFS(d.Name), temporaryName(pattern))
	errs := []error{err}
	for _, name := range names {
		file := filepath.Join(d.Name, name)
		info, err := os.Lstat(file)
		if err == nil && info.Mode().IsRegular() && info.ModTime().Before(before) {
			err = os.Remove(file)
		}
		if !errors.Is(err, fs.ErrNotExist) { // another process may have removed it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// parseS3 returns the bucket, and the prefix of keys.
func (d Directory) parseS3() (address s3Address, ok bool, err error) {
	if !strings.HasPrefix(d.Name, "s3:") {
		return s3Address{}, false, nil
	}
	bucket, prefix, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(d.Name, "s3://"), "/"), "/")
	if !strings.HasPrefix(d.Name, "s3://") || bucket == "" {
		return s3Address{}, false, fmt.Errorf("%s: want s3://BUCKET or s3://BUCKET/PREFIX", d.Name)
	}
	if prefix != "" {
		prefix += "/"
	}
	return s3Address{bucket, prefix}, true, nil
}

func (d Directory) listS3(ctx context.Context, address s3Address) ([]Entry, error) {
	client, err := d.S3.Client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var entries []Entry
	for object := range client.ListObjects(ctx, address.bucket, minio.ListObjectsOptions{Prefix: address.key}) {
		if object.Err != nil {
			return nil, fmt.Errorf("%s: %w", d.Name, object.Err)
		}
		if name := strings.TrimPrefix(object.Key, address.key); isBackup(name) {
			entries = append(entries, Entry{name, object.Size})
		}
	}
	return entries, nil
}
