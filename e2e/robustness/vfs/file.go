package vfs

import (
	"math/rand/v2"
	"sync"

	sqlite3 "modernc.org/sqlite/lib"
)

// A sector is written whole or not at all when the power fails.
const sectorBytes = 512

// file is what the disk has of a file, where that differs from what the kernel has. All
// handles of the process share it.
type file struct {
	path string
	// handles is how many are open; files.Mutex guards it.
	handles int

	mu sync.Mutex
	// synced are the sectors that were changed since the last sync, by number, as they
	// were then: sectorBytes long, shorter where the file ended, and empty beyond its end.
	synced map[int64][]byte
	// syncedSize was the size of the file then. It means nothing while synced is empty.
	syncedSize int64
}

func newFile(path string) *file { return &file{path: path, synced: map[int64][]byte{}} }

// isSynced says whether the disk has all.
func (f *file) isSynced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.synced) == 0
}

func (f *file) read(r *realFile, p []byte, offset int64) int32 {
	if fails(Read) {
		return sqlite3.SQLITE_IOERR_READ
	}
	rc := r.read(p, offset)
	if len(p) > 1 && fails(ShortRead) {
		clear(p[len(p)/2:])
		if rc == sqlite3.SQLITE_OK {
			rc = sqlite3.SQLITE_IOERR_SHORT_READ
		}
	}
	return rc
}

func (f *file) write(r *realFile, p []byte, offset int64) int32 {
	if fails(Write) {
		// A part of it may be there.
		if half := len(p) / 2; half > 0 {
			f.store(r, p[:half], offset)
		}
		return sqlite3.SQLITE_IOERR_WRITE
	}
	return f.store(r, p, offset)
}

func (f *file) store(r *realFile, p []byte, offset int64) int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rc := f.keep(r, offset, offset+int64(len(p))); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return r.write(p, offset)
}

func (f *file) truncate(r *realFile, size int64) int32 {
	if fails(Write) {
		return sqlite3.SQLITE_IOERR_TRUNCATE
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now, rc := r.size()
	if rc == sqlite3.SQLITE_OK {
		rc = f.keep(r, min(size, now), max(size, now))
	}
	if rc != sqlite3.SQLITE_OK {
		return rc
	}
	return r.truncate(size)
}

// keep remembers the sectors of a range as the disk has them, before they are changed for
// the first time since a sync. The caller holds mu.
func (f *file) keep(r *realFile, from, to int64) (rc int32) {
	if !losesUnsynced() {
		return sqlite3.SQLITE_OK
	}
	if len(f.synced) == 0 {
		if f.syncedSize, rc = r.size(); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	for n := from / sectorBytes; n*sectorBytes < to; n++ {
		if _, known := f.synced[n]; known {
			continue
		}
		old := make([]byte, max(0, min(sectorBytes, f.syncedSize-n*sectorBytes)))
		if len(old) > 0 {
			if rc := r.read(old, n*sectorBytes); rc != sqlite3.SQLITE_OK {
				return rc
			}
		}
		f.synced[n] = old
	}
	return sqlite3.SQLITE_OK
}

func (f *file) sync(r *realFile, flags int32) int32 {
	if fails(Sync) {
		return sqlite3.SQLITE_IOERR_FSYNC
	}
	if ignoresSync() {
		return sqlite3.SQLITE_OK
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.synced)
	if losesUnsynced() {
		return sqlite3.SQLITE_OK // the machine's own power is not what is tested
	}
	return r.sync(flags)
}

// tear returns what the disk may have of the file when the power fails, where now is what
// the kernel has: each sector that was changed since the last sync is as it was then, or
// as it is now; the size is the one of then, or the one of now. The caller holds mu.
func (f *file) tear(now []byte, r *rand.Rand) []byte {
	if len(f.synced) == 0 {
		return now
	}
	size := int64(len(now))
	if r.IntN(2) == 0 {
		size = f.syncedSize
	}
	// Most sectors are lost, or some, or few.
	share := r.Float64()
	torn := make([]byte, max(int64(len(now)), f.syncedSize))
	copy(torn, now)
	for n := range (int64(len(torn)) + sectorBytes - 1) / sectorBytes {
		begin := n * sectorBytes
		old, changed := f.synced[n]
		switch {
		case !changed:
		case begin >= int64(len(now)) || r.Float64() < share:
			sector := torn[begin:min(begin+sectorBytes, int64(len(torn)))]
			clear(sector[copy(sector, old):])
		default:
			// The sector is on the disk, so the file has it.
			size = max(size, min(begin+sectorBytes, int64(len(now))))
		}
	}
	return torn[:size]
}
