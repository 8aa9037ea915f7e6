package backup

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"byre/sqlstore"
)

const (
	// maxLine bounds the length of a line in bytes, and so the memory that it takes.
	maxLine = 256 << 20
	// maxWindow bounds the memory in bytes that decompression takes; what Write writes
	// needs 8 MiB.
	maxWindow = 128 << 20
)

// ErrNewer means that a newer release wrote the backup, in a version of the format that this
// one does not know.
var ErrNewer = errors.New("the backup is of a newer byre")

// File is a backup that is open for reading.
type File struct {
	sqlstore.Header
	// Program is the name and version of the program that wrote the backup.
	Program string
	file    io.ReadSeeker
}

// Open reads the first line of a backup. It fails with ErrNewer, with sqlstore.ErrBroken if
// the file is no backup, and with the errors of file. The caller closes file after the last
// use of the File.
func Open(file io.ReadSeeker) (*File, error) {
	f := &File{file: file}
	r, first, err := f.start()
	if err != nil {
		return nil, err
	}
	defer r.close()
	f.Program = first.Program
	f.Header = sqlstore.Header{
		Revision: first.Revision, Compacted: first.Compacted, Epoch: first.Epoch, Cluster: first.Cluster, Time: first.Time, ObjectCount: first.Objects,
	}
	f.Retained, err = first.retained()
	return f, err
}

// Snapshot returns the snapshot in the backup. Its sequences may be read any number of
// times. Changes reads the whole file; if the checksum is wrong it ends with
// sqlstore.ErrBroken.
func (f *File) Snapshot() sqlstore.Snapshot {
	return sqlstore.Snapshot{
		Header: f.Header,
		Objects: func(yield func(*sqlstore.ObjectRow, error) bool) {
			if err := f.objects(yield); err != nil {
				yield(nil, err)
			}
		},
		Changes: func(yield func(*sqlstore.ChangeRow, error) bool) {
			if err := f.changes(yield); err != nil {
				yield(nil, err)
			}
		},
	}
}

// Verify reads the whole backup and returns its digest. It reads the snapshot that follow
// returns for the backup's, so that follow can count the rows. It fails with
// sqlstore.ErrBroken unless the file is complete, its checksum is right and its rows can be
// loaded.
func (f *File) Verify(follow func(sqlstore.Snapshot) sqlstore.Snapshot) (Digest, error) {
	return DigestOf(follow(f.Snapshot()))
}

// objects yields the rows of objects. It returns nil after the last one, and when yield
// returns false.
func (f *File) objects(yield func(*sqlstore.ObjectRow, error) bool) error {
	r, _, err := f.start()
	if err != nil {
		return err
	}
	defer r.close()
	for {
		l, err := r.next()
		if err != nil || l.Object == nil {
			return err
		}
		if !yield(l.Object.row(), nil) {
			return nil
		}
	}
}

// changes yields the rows of changes, and then compares the counts and the checksum in the
// last line. It returns nil without doing so when yield returns false.
func (f *File) changes(yield func(*sqlstore.ChangeRow, error) bool) error {
	r, _, err := f.start()
	if err != nil {
		return err
	}
	defer r.close()
	r.skipObjects = true
	changes := int64(0)
	for {
		l, err := r.next()
		switch {
		case err != nil:
			return err
		case l.Change != nil:
			changes++
			if !yield(l.Change.row(), nil) {
				return nil
			}
		case l.End == nil || l.End.Objects != r.skipped || l.End.Changes != changes:
			return fmt.Errorf("%w: it has %d objects and %d changes, and its last line has other numbers", sqlstore.ErrBroken, r.skipped, changes)
		default:
			return r.end()
		}
	}
}

// start returns a reader behind the first line of the file, and that line. The caller closes
// the reader.
func (f *File) start() (*reader, *header, error) {
	if _, err := f.file.Seek(0, io.SeekStart); err != nil {
		return nil, nil, fmt.Errorf("read backup: %w", err)
	}
	decompressor, err := zstd.NewReader(f.file, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, nil, fmt.Errorf("read backup: %w", err)
	}
	r := &reader{decompressor: decompressor, lines: bufio.NewScanner(decompressor), sum: sha256.New()}
	r.lines.Buffer(make([]byte, 1<<20), maxLine)
	r.lines.Split(splitLine)
	l, err := r.next()
	switch {
	case err != nil:
	case l.Header == nil:
		err = fmt.Errorf("%w: it does not begin as a backup does", sqlstore.ErrBroken)
	case l.Header.Version > version:
		err = fmt.Errorf("%w: %s, version %d of the format; this byre reads version %d", ErrNewer, l.Header.Program, l.Header.Version, version)
	case l.Header.Version < 1:
		err = fmt.Errorf("%w: version %d", sqlstore.ErrBroken, l.Header.Version)
	}
	if err != nil {
		r.close()
		return nil, nil, err
	}
	return r, l.Header, nil
}
