package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"byre/migrations"
)

// reserveSuffix follows the path of the database in that of its reserve.
const reserveSuffix = "-reserve"

// startSpace is the free space in bytes that a start needs: for the lock, the log and its index.
const startSpace = 1 << 20

// diskReserve is a file of Options.Reserve bytes beside the database. A delete needs space too, for the
// log and for the history: on a full disk no object could be deleted. So the file is truncated to
// nothing when the disk is full, and gets its size again when there is space. Until then each transaction copies
// the log back, so that deletes, however many, need little more of it than the largest one.
//
// Invariant: while the file is empty, because the disk was full, the space that it has left is for
// writes that do not make the database larger. Store.Commit keeps it: it asks InReserve. Otherwise
// other writes would take the space, and deletes would fail again. If there never was space for the
// file, there is none, and no write is refused on its account.
type diskReserve struct {
	path   string
	size   int64
	logger *slog.Logger
	// changing is held while the file is taken or released: each commit may take it.
	changing sync.Mutex
	// isInUse is true from the release of the file until it is taken again.
	isInUse atomic.Bool
}

// ReleaseReserve releases the reserve of the database at path if the disk is too full for a start.
// The caller calls it before anything else opens the file. It fails with a *migrations.InUseError if another process
// has the database: the reserve is for that one's deletes then.
func ReleaseReserve(path string) error {
	path, err := migrations.ResolveFile(path)
	if err != nil {
		return nil //nolint:nilerr // the database does not exist yet
	}
	if free, err := freeSpace(path); err != nil || free >= startSpace {
		return nil //nolint:nilerr // the database does not exist yet
	}
	if err := migrations.WithFileLock(path, func() error { return empty(path + reserveSuffix) }); err != nil {
		return fmt.Errorf("release the reserve of a full disk: %w", err)
	}
	return nil
}

// open takes the reserve if it is not taken yet. Without space for it, it is in use if an earlier process
// has released it. Otherwise the disk is too small, or was so when the first process with a reserve
// started, which is no reason to refuse writes.
func (r *diskReserve) open() error {
	if r.size == 0 {
		return empty(r.path)
	}
	info, err := os.Stat(r.path)
	if err == nil && info.Size() == r.size {
		return nil
	}
	isReleased := err == nil && info.Size() == 0
	if !isReleased { // it has another size
		if err := remove(r.path); err != nil {
			return err
		}
	}
	switch {
	case r.take():
		return nil
	case isReleased:
		r.isInUse.Store(true)
		r.logger.Error("store: the disk has no space for --disk-reserve: "+nextWhenFull, "path", r.path, "needed", r.needed())
		return nil
	}
	r.logger.Warn("store: the disk has no space for --disk-reserve: when it is full, deletes fail too: "+
		"free space on it and start again", "path", r.path, "needed", r.needed())
	return remove(r.path)
}

// empty releases the space of the file at path, if there is one.
func empty(path string) error {
	if err := os.Truncate(path, 0); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// release empties the file, after an error that says that the disk is full.
func (r *diskReserve) release() {
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.size == 0 || r.isInUse.Load() {
		return
	}
	err := os.Truncate(r.path, 0)
	if errors.Is(err, os.ErrNotExist) {
		return // it was never taken
	}
	r.isInUse.Store(true)
	r.logger.Error("store: the disk is full: the reserve is released for deletes: "+nextWhenFull,
		"path", r.path, "needed", r.needed(), "err", err)
}

// run runs a transaction. If it does not make the database larger, the disk was too full for it and the
// reserve has been released, run runs it once more.
func (r *diskReserve) run(grows bool, transaction func() error) error {
	wasInUse := r.isInUse.Load()
	err := transaction()
	if err != nil && !grows && !wasInUse && r.isInUse.Load() {
		err = transaction()
	}
	return err
}

// inUse reports whether the reserve is in use. If there is space again, it first takes it back.
func (r *diskReserve) inUse() bool {
	if !r.isInUse.Load() {
		return false
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	switch {
	case !r.isInUse.Load(): // another caller has taken it
		return false
	case !r.take():
		return true
	}
	r.isInUse.Store(false)
	r.logger.Info("store: the disk has space again, and the reserve is taken back", "path", r.path)
	return false
}

// needed is the free space with which the file is given its size: an eighth more, because otherwise the disk would
// be full again at once.
func (r *diskReserve) needed() int64 { return r.size + r.size/8 }

// measure returns the space that must be free before the file is taken back; 0 if it is not in use. isMissing is true
// if there should be a file and is none.
func (r *diskReserve) measure() (needed int64, isMissing bool) {
	if r.isInUse.Load() {
		return r.needed(), false
	}
	info, err := os.Stat(r.path)
	return 0, r.size > 0 && (err != nil || info.Size() < r.size)
}

// take gives the file its size, if the disk has the space. It reports whether the file has its size. If not, the
// file is empty or missing.
func (r *diskReserve) take() bool {
	if free, err := freeSpace(r.path); err != nil || free < r.needed() {
		return false
	}
	file, err := migrations.OpenOwned(r.path, os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return false
	}
	if err := errors.Join(allocate(file, r.size), file.Close()); err != nil {
		_ = empty(r.path)
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

// InReserve implements sqlstore.Exclusive.
func (d *Driver) InReserve() bool { return d.reserve.inUse() }
