package location

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Location is where a file is, or will be.
type Location struct {
	// Name is a path, "-", or s3://BUCKET/KEY.
	Name string
	// Force replaces what is there already.
	Force bool
	// S3 says how s3://BUCKET/KEY is reached.
	S3 S3
	// Stdin and Stdout are what "-" means.
	Stdin  io.Reader
	Stdout io.Writer
}

// ErrExists means that something is there already.
var ErrExists = errors.New("exists already")

// Write makes the file; fill writes what it contains.
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

// Open opens the file for reading at any place. What comes from elsewhere is first copied
// to a temporary file, which has no name.
func (l Location) Open(ctx context.Context) (*os.File, error) {
	address, ok, err := parseS3(l.Name)
	switch {
	case err != nil:
		return nil, err
	case ok:
		return l.openS3(ctx, address)
	case l.Name != "-":
		return os.Open(l.Name)
	}
	return spool(l.Stdin)
}

// writeFile writes to a file of another name in the same directory, which then gets the
// name.
func (l Location) writeFile(fill func(io.Writer) error) (err error) {
	if err := l.checkFree(); err != nil {
		return err
	}
	dir, base := filepath.Split(filepath.Clean(l.Name))
	file, err := os.CreateTemp(dir, "."+base+".*") // of mode 0600: there are Secrets in it
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
	return syncDirectory(filepath.Dir(l.Name))
}

func (l Location) checkFree() error {
	switch file, err := os.Lstat(l.Name); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !file.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file: write to - and redirect that", l.Name)
	case !l.Force:
		return fmt.Errorf("%s %w", l.Name, ErrExists)
	}
	return nil
}

func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// spool copies what can only be read once to a file without a name.
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
	return file, nil
}
