package vfs

import (
	"math"
	"math/rand/v2"
	"os"
	"sync"

	sqlite3 "modernc.org/sqlite/lib"
)

// A sector is written whole or not at all when the power fails.
const sectorBytes = 512

type sector = [sectorBytes]byte

// whole is the end of a file that was not truncated since the last sync.
const whole = math.MaxInt64

// file is what this process knows of a file that the disk does not: all handles share it.
type file struct {
	path string
	// handles is how many are open; files.Mutex guards it.
	handles int

	mu sync.Mutex
	// unsynced are the sectors that were written since the last sync, by number, and size
	// is the size of the file with them.
	unsynced map[int64]*sector
	size     int64
	// end is where the file was truncated since the last sync: what the disk has from
	// there on is no longer part of the file.
	end int64
}

// isSynced says whether the disk has all. The caller holds mu.
func (f *file) isSynced() bool { return len(f.unsynced) == 0 && f.end == whole }

func (f *file) currentSize(r *realFile) (int64, int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isSynced() {
		return f.size, sqlite3.SQLITE_OK
	}
	return r.size()
}

func (f *file) read(r *realFile, p []byte, offset int64) int32 {
	if fails(Read) {
		return sqlite3.SQLITE_IOERR_READ
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(p) > 1 && fails(ShortRead) {
		rc := f.readAll(r, p, offset)
		clear(p[len(p)/2:])
		if rc == sqlite3.SQLITE_OK {
			rc = sqlite3.SQLITE_IOERR_SHORT_READ
		}
		return rc
	}
	return f.readAll(r, p, offset)
}

// readAll reads what was written, synced or not. What is beyond the end is 0.
func (f *file) readAll(r *realFile, p []byte, offset int64) int32 {
	if f.isSynced() {
		return r.read(p, offset)
	}
	rc := r.read(p, offset)
	if rc != sqlite3.SQLITE_OK && rc != sqlite3.SQLITE_IOERR_SHORT_READ {
		return rc
	}
	if gone := max(f.end-offset, 0); gone < int64(len(p)) {
		clear(p[gone:])
	}
	for n := offset / sectorBytes; n*sectorBytes < offset+int64(len(p)); n++ {
		if s := f.unsynced[n]; s != nil {
			overlap(p, offset, s, n, func(of, in []byte) { copy(of, in) })
		}
	}
	if offset+int64(len(p)) > f.size {
		return sqlite3.SQLITE_IOERR_SHORT_READ
	}
	return sqlite3.SQLITE_OK
}

// overlap calls do with the bytes of p, which is at offset, and of sector n that are the
// same bytes of the file.
func overlap(p []byte, offset int64, s *sector, n int64, do func(of, in []byte)) {
	begin := n * sectorBytes
	from, to := max(begin, offset), min(begin+sectorBytes, offset+int64(len(p)))
	do(p[from-offset:to-offset], s[from-begin:to-begin])
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
	if !losesUnsynced() {
		return r.write(p, offset)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if rc := f.begin(r); rc != sqlite3.SQLITE_OK {
		return rc
	}
	for n := offset / sectorBytes; n*sectorBytes < offset+int64(len(p)); n++ {
		s := f.unsynced[n]
		if s == nil {
			s = new(sector)
			if rc := f.readAll(r, s[:], n*sectorBytes); rc != sqlite3.SQLITE_OK && rc != sqlite3.SQLITE_IOERR_SHORT_READ {
				return rc
			}
		}
		overlap(p, offset, s, n, func(of, in []byte) { copy(in, of) })
		f.unsynced[n] = s
	}
	f.size = max(f.size, offset+int64(len(p)))
	return sqlite3.SQLITE_OK
}

// begin learns the size before the first change since a sync. The caller holds mu.
func (f *file) begin(r *realFile) (rc int32) {
	if f.isSynced() {
		f.size, rc = r.size()
	}
	return rc
}

func (f *file) truncate(r *realFile, size int64) int32 {
	if fails(Write) {
		return sqlite3.SQLITE_IOERR_TRUNCATE
	}
	if !losesUnsynced() {
		return r.truncate(size)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if rc := f.begin(r); rc != sqlite3.SQLITE_OK {
		return rc
	}
	for n, s := range f.unsynced {
		switch {
		case n*sectorBytes >= size:
			delete(f.unsynced, n)
		case (n+1)*sectorBytes > size:
			clear(s[size-n*sectorBytes:])
		}
	}
	f.size, f.end = size, min(f.end, size)
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
	rc := f.flush(r)
	f.mu.Unlock()
	if rc != sqlite3.SQLITE_OK {
		return rc
	}
	return r.sync(flags)
}

// flush gives the disk all that was written. The caller holds mu, or the last handle.
func (f *file) flush(r *realFile) int32 {
	if f.isSynced() {
		return sqlite3.SQLITE_OK
	}
	if f.end != whole {
		if rc := r.truncate(f.end); rc != sqlite3.SQLITE_OK {
			return rc
		}
		f.end = whole
	}
	for n, s := range f.unsynced {
		begin := n * sectorBytes
		if rc := r.write(s[:min(sectorBytes, f.size-begin)], begin); rc != sqlite3.SQLITE_OK {
			return rc
		}
		delete(f.unsynced, n)
	}
	return sqlite3.SQLITE_OK
}

// tear gives the disk what it may have when the power fails: each of the sectors that
// were not synced, or not, and the truncation, or not. Nobody uses the file afterwards.
func (f *file) tear() error {
	f.mu.Lock()
	if f.isSynced() {
		return nil
	}
	disk, err := os.OpenFile(f.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if f.end != whole && rand.IntN(2) == 0 {
		if err := disk.Truncate(f.end); err != nil {
			return err
		}
	}
	// Most of them, some of them, or few.
	share := rand.Float64()
	for n, s := range f.unsynced {
		begin := n * sectorBytes
		if rand.Float64() > share {
			continue
		}
		if _, err := disk.WriteAt(s[:min(sectorBytes, f.size-begin)], begin); err != nil {
			return err
		}
	}
	return nil
}
