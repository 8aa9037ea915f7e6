package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"byre/migrations"
)

// Location is the place of a file that an operator names.
type Location struct {
	// Name is a path, "-", or s3://BUCKET/KEY.
	Name string
	// Force has Write replace a file that exists.
	Force bool
	// S3 says how to reach the service for s3://BUCKET/KEY.
	S3 S3
	// Stdin is what Open reads, and Stdout what Write writes to, if Name is "-".
	Stdin  io.Reader
	Stdout io.Writer
}

// ErrExists means that the file exists and Location.Force is not set.
var ErrExists = errors.New("exists already")

// Write makes the file. It calls fill, which writes the content. It fails with ErrExists,
// with the error of fill, and with those of the file system or the service.
func (l Location) Write(ctx context.Context, fill func(io.Writer) error) error {
	if l.Name == "-" {
		return fill(l.Stdout)
	}
	client, key, err := l.openS3()
	switch {
	case err != nil:
		return err
	case client != nil:
		return l.writeS3(ctx, client, key, fill)
	}
	return l.writeFile(fill)
}

// openS3 returns a client of the bucket and the key; no client if Name is a path.
func (l Location) openS3() (client *Client, key string, err error) {
	bucket, key, ok := splitS3(l.Name)
	switch {
	case !ok:
		return nil, "", nil
	case bucket == "" || key == "" || strings.HasSuffix(key, "/"):
		return nil, "", fmt.Errorf("%s: want s3://BUCKET/KEY", l.Name)
	}
	client, err = l.S3.Open("s3://" + bucket)
	return client, key, err
}

// Open opens the file for reading, from its beginning, and seeking. It copies standard input that can't seek,
// and an object of S3, to a temporary file that has no name. The caller closes the file.
func (l Location) Open(ctx context.Context) (*os.File, error) {
	if l.Name == "-" {
		return spool(l.Stdin)
	}
	source, err := l.Peek(ctx)
	if err != nil {
		return nil, err
	}
	if file, ok := source.(*os.File); ok {
		return file, nil
	}
	defer source.Close()
	file, err := spool(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.Name, err)
	}
	return file, nil
}

// Peek opens the file to read its beginning: of an object of S3 it fetches only what is read. The caller
// closes the file.
func (l Location) Peek(ctx context.Context) (io.ReadSeekCloser, error) {
	client, key, err := l.openS3()
	switch {
	case err != nil:
		return nil, err
	case client != nil:
		return client.Seek(ctx, key)
	}
	return os.Open(l.Name)
}

// writeS3 uploads the file in parts.
func (l Location) writeS3(ctx context.Context, client *Client, key string, fill func(io.Writer) error) error {
	if !l.Force {
		switch body, _, err := client.Get(ctx, key, 0, 0); {
		case err == nil:
			return errors.Join(fmt.Errorf("%s %w", l.Name, ErrExists), body.Close())
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	read, write := io.Pipe()
	filled := make(chan error, 1)
	go func() {
		err := fill(write)
		write.CloseWithError(err)
		filled <- err
	}()
	_, err := client.Put(ctx, key, read)
	read.CloseWithError(errUpload) // so that the writes of fill fail after a failed upload
	if fillErr := <-filled; fillErr != nil && !errors.Is(fillErr, errUpload) {
		return fillErr
	}
	return err
}

var errUpload = errors.New("the upload has ended")

// writeFile writes to a temporary file in the same directory, syncs it, and renames it.
func (l Location) writeFile(fill func(io.Writer) error) (err error) {
	if err := l.checkFree(); err != nil {
		return err
	}
	dir, base := filepath.Dir(l.Name), filepath.Base(l.Name)
	file, err := os.CreateTemp(dir, temporaryName(base)) // with mode 0600, because backups hold Secrets
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: there is no directory %s", l.Name, dir)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := errors.Join(fill(file), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := l.checkFree(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), l.Name); err != nil {
		return err
	}
	return migrations.SyncDir(filepath.Dir(l.Name))
}

// temporaryName is the pattern of the names of files that are being written.
func temporaryName(name string) string { return "." + name + ".*" }

// checkFree fails if Write must not write to the path: a file exists there and Force is not
// set, or it is no regular file.
func (l Location) checkFree() error {
	switch file, err := os.Lstat(l.Name); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !file.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file: write to - and redirect standard output", l.Name)
	case !l.Force:
		return fmt.Errorf("%s %w", l.Name, ErrExists)
	}
	return nil
}

// spool returns r if it is a file that can seek. Otherwise it copies r to a temporary file
// without a name.
func spool(r io.Reader) (_ *os.File, err error) {
	if file, ok := r.(*os.File); ok {
		if _, err := file.Seek(0, io.SeekCurrent); err == nil {
			return file, nil
		}
	}
	file, err := os.CreateTemp("", "byre-backup-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if _, err := io.Copy(file, r); err != nil {
		return nil, errors.Join(fmt.Errorf("copy to a temporary file: %w", err), file.Close())
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

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
	// Name is the name of the file without that of the Directory, Size its length in bytes, and Modified
	// when it was written.
	Name     string
	Size     int64
	Modified time.Time
}

// File returns the Location of a file in the directory.
func (d Directory) File(name string) Location {
	if _, _, ok := splitS3(d.Name); ok {
		return Location{Name: strings.TrimRight(d.Name, "/") + "/" + name, S3: d.S3}
	}
	return Location{Name: filepath.Join(d.Name, name), S3: d.S3}
}

// List returns the files whose names end with Suffix, in the order of their names. It leaves out those
// of directories below.
func (d Directory) List(ctx context.Context) ([]Entry, error) {
	client, err := d.S3.Open(d.Name)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	if client != nil {
		entries, err = client.List(ctx, "", false)
		return slices.DeleteFunc(entries, func(e Entry) bool { return !isBackup(e.Name) }), err
	}
	files, err := os.ReadDir(d.Name)
	if err != nil {
		return nil, err
	}
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
		entries = append(entries, Entry{file.Name(), info.Size(), info.ModTime()})
	}
	return entries, nil
}

// isBackup leaves out files that are being written.
func isBackup(name string) bool {
	return strings.HasSuffix(name, Suffix) && !strings.HasPrefix(name, ".")
}

// Remove deletes a file of the directory, and the file of KeysSuffix beside it.
func (d Directory) Remove(ctx context.Context, name string) error {
	client, err := d.S3.Open(d.Name)
	switch {
	case err != nil:
		return err
	case client != nil:
		if err := client.Delete(ctx, name); err != nil {
			return err
		}
		return client.Delete(ctx, name+KeysSuffix)
	}
	keys := os.Remove(filepath.Join(d.Name, name+KeysSuffix))
	if errors.Is(keys, os.ErrNotExist) {
		keys = nil
	}
	return errors.Join(os.Remove(filepath.Join(d.Name, name)), keys, migrations.SyncDir(d.Name))
}

// RemovePartial deletes what a Write to a name of the pattern, as of path.Match, has left because its
// process was killed, if it was last written before a moment. In S3 it deletes nothing.
func (d Directory) RemovePartial(pattern string, before time.Time) error {
	if _, _, ok := splitS3(d.Name); ok {
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
