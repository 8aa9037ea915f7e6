package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

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
	address, ok, err := parseS3(l.Name)
	switch {
	case err != nil:
		return err
	case ok:
		return l.writeS3(ctx, address, fill)
	}
	return l.writeFile(fill)
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
	return file, l.explain(err)
}

// Peek opens the file to read its beginning: of an object of S3 it fetches only what is read. The caller
// closes the file.
func (l Location) Peek(ctx context.Context) (io.ReadSeekCloser, error) {
	address, ok, err := parseS3(l.Name)
	switch {
	case err != nil:
		return nil, err
	case ok:
		return l.getS3(ctx, address)
	}
	return os.Open(l.Name)
}

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
