package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"byre/migrations/dbfile"
	"byre/migrations/fileowner"
)

// reserveSuffix follows the path of the database in that of its reserve.
const reserveSuffix = "-reserve"

// startSpace is the free space in bytes that a start needs: for the lock, the log and its index.
const startSpace = 1 << 20

// diskReserve is a file of Options.Reserve bytes beside the database. A delete needs space too, for the
// log and for the history: on a full disk no object could be deleted. So the file is removed when
// the disk is full, and made again when there is space.
//
// Invariant: while the file is gone because the disk was full, the space that it has left is for
// writes that do not make the database larger. Store.Commit keeps it: it asks InReserve. Otherwise
// other writes would take the space, and deletes would fail again.
type diskReserve struct {
	path   string
	size   int64
	logger *slog.Logger
	// isInUse is true from the removal of the file until it is made again.
	isInUse atomic.Bool
}

// ReleaseReserve removes the reserve of the database at path if the disk is too full for a start.
// The caller calls it before anything else opens the file.
func ReleaseReserve(path string) error {
	path, err := dbfile.Resolve(path)
	if err != nil {
		return nil //nolint:nilerr // the database does not exist yet
	}
	if free, err := freeSpace(path); err != nil || free >= startSpace {
		return nil //nolint:nilerr // the database does not exist yet
	}
	if err := remove(path + reserveSuffix); err != nil {
		return fmt.Errorf("release the reserve of a full disk: %w", err)
	}
	return nil
}

// open takes the reserve if there is none yet. If there is no space for it, it counts as in use,
// except while the database is new: a small disk is no reason to refuse the first objects.
func (r *diskReserve) open(isNew bool) error {
	info, err := os.Stat(r.path)
	if err == nil && info.Size() == r.size {
		return nil
	}
	if err := remove(r.path); err != nil { // it has another size
		return err
	}
	if r.size > 0 && !r.take() {
		r.isInUse.Store(!isNew)
		r.logger.Error("store: the disk has no space for --disk-reserve: free space on it", "path", r.path, "bytes", r.size)
	}
	return nil
}

// release removes the file, after an error that says that the disk is full.
func (r *diskReserve) release() {
	if r.size == 0 || r.isInUse.Swap(true) {
		return
	}
	err := remove(r.path)
	r.logger.Error("store: the disk is full: the reserve is released for deletes: delete objects and run \"byre compact\", or free space on the disk",
		"path", r.path, "err", err)
}

// inUse reports whether the reserve is in use. If there is space again, it first takes it back.
func (r *diskReserve) inUse() bool {
	if !r.isInUse.Load() {
		return false
	}
	if !r.take() {
		return true
	}
	r.isInUse.Store(false)
	r.logger.Info("store: the disk has space again, and the reserve is taken back", "path", r.path)
	return false
}

// take makes the file, if the disk has an eighth of its size more: otherwise the disk would be full
// again at once. It reports whether the file exists.
func (r *diskReserve) take() bool {
	if free, err := freeSpace(r.path); err != nil || free < r.size+r.size/8 {
		return false
	}
	file, err := fileowner.Open(r.path, os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return false
	}
	if err := errors.Join(allocate(file, r.size), file.Close()); err != nil {
		_ = remove(r.path)
		return false
	}
	return true
}

// freeSpace returns the bytes that this process may still write to the file system of a path, whose
// file need not exist.
func freeSpace(path string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:unconvert // the types differ between systems
}

// writeZeros allocates by writing, where the file system has no call for it.
func writeZeros(file *os.File, size int64) error {
	zeros := make([]byte, 1<<20)
	for written := int64(0); written < size; {
		n, err := file.Write(zeros[:min(size-written, int64(len(zeros)))])
		if err != nil {
			return err
		}
		written += int64(n)
	}
	return file.Sync()
}

// InReserve implements sqlstore.Reserver.
func (d *Driver) InReserve() bool { return d.reserve.inUse() }
