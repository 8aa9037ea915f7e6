package backup

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"byre/sqlstore"
	"byre/sqlstore/snapshot"
)

const (
	// maxLine bounds the memory that a line takes.
	maxLine = 256 << 20
	// maxWindow bounds the memory that decompression takes; Write needs 8 MiB.
	maxWindow = 128 << 20
)

// ErrNewer means that a newer byre has written the backup.
var ErrNewer = errors.New("the backup is of a newer byre")

// File is a backup that is open for reading.
type File struct {
	sqlstore.Header
	// Program is the name and version of what wrote it.
	Program string
	file    io.ReadSeeker
}

// Open reads the first line of a backup. The errors are ErrNewer, sqlstore.ErrBroken
// where the file is no backup, and the file's own. The caller closes the file when the
// file is no longer used.
func Open(file io.ReadSeeker) (*File, error) {
	f := &File{file: file}
	r, first, err := f.start()
	if err != nil {
		return nil, err
	}
	defer r.close()
	f.Program = first.Program
	f.Header = sqlstore.Header{
		Revision: first.Revision, Compacted: first.Compacted, Epoch: first.Epoch, Time: first.Time, ObjectCount: first.Objects,
	}
	return f, nil
}

// Snapshot is the backup's. Its sequences may be read any number of times. Reading
// Changes to the end reads the whole file and compares its checksum.
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

// Verify reads all of the backup, from which follow makes a snapshot (to count what is
// read). It fails with sqlstore.ErrBroken unless the file is complete, its checksum is
// right and its rows can be loaded.
func (f *File) Verify(follow func(sqlstore.Snapshot) sqlstore.Snapshot) (snapshot.Digest, error) {
	return snapshot.DigestOf(follow(f.Snapshot()))
}

// objects yields the rows of objects; nil when yield has ended it.
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
		row, err := l.Object.row()
		if err != nil || !yield(row, nil) {
			return err
		}
	}
}

// changes yields the rows of changes and checks the end; nil when yield has ended it.
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
			row, err := l.Change.row()
			if err != nil || !yield(row, nil) {
				return err
			}
		case l.End == nil || l.End.Objects != r.skipped || l.End.Changes != changes:
			return fmt.Errorf("%w: it has %d objects and %d changes, and not what its end says", sqlstore.ErrBroken, r.skipped, changes)
		default:
			return r.end()
		}
	}
}

// start begins to read at the beginning of the file.
func (f *File) start() (*reader, *header, error) {
	if _, err := f.file.Seek(0, io.SeekStart); err != nil {
		return nil, nil, fmt.Errorf("read backup: %w", err)
	}
	decompressor, err := zstd.NewReader(f.file, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, nil, fmt.Errorf("read backup: %w", err)
	}
	r := &reader{decompressor: decompressor, lines: bufio.NewReaderSize(decompressor, 1<<20), sum: sha256.New()}
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
