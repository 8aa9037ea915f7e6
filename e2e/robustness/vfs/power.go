package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// PowerFails ends the process, as kill -9 does. If LoseUnsynced was called, it first reverts
// a random part of what was not synced.
//
// Invariant: no other process has the database open when the power fails, because a power
// failure ends all processes. PowerFails waits for that; after 10 seconds it gives up and
// ends the process with exit status 1. Otherwise the other process would keep SQLite's index
// of the write-ahead log, which SQLite rebuilds only when no process has it open. The index
// would refer to a checkpoint that the disk has lost, and the file would be malformed.
func PowerFails() {
	// The locks are never released: until the process ends, no goroutine opens, closes or
	// changes a file.
	files.Lock()
	for _, f := range files.byPath {
		f.mu.Lock()
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	delete(files.byPath, "") // temporary files
	for path := range files.byPath {
		if err := excludeOthers(path); err != nil {
			fail(err)
		}
	}
	for _, f := range files.byPath {
		if err := f.tearInPlace(r); err != nil {
			fail(err)
		}
	}
	// A process can always send itself a signal.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// fail ends the process where a power failure cannot be simulated.
func fail(err error) {
	fmt.Fprintln(os.Stderr, "vfs: the power can't fail:", err)
	os.Exit(1) //nolint:revive // the process ends without its deferred calls, as by a power failure
}

// connectionByte is the byte of a -shm file on which each process that has the database
// open holds a shared lock: UNIX_SHM_DMS of SQLite's os_unix.c.
const connectionByte = 128

// excludeOthers waits until no other process has a database open, and keeps others away
// as long as the process lives.
func excludeOthers(path string) error {
	// The file stays open: to close it would release the lock.
	shm, err := syscall.Open(path+"-shm", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not a database in WAL mode
	}
	if err != nil {
		return err
	}
	// The process's own shared lock becomes an exclusive one.
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: connectionByte, Len: 1}
	for range 10_000 {
		if err = syscall.FcntlFlock(uintptr(shm), syscall.F_SETLK, &lock); err == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("another process has %s open: %w", path, err)
}

// tearInPlace gives the file contents that the disk may have. The caller holds mu.
func (f *file) tearInPlace(r *rand.Rand) error {
	now, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	disk, err := os.OpenFile(f.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	torn := f.tear(now, r)
	// A kill -9 at any time leaves contents that the disk may have.
	if _, err := disk.WriteAt(torn, 0); err != nil {
		return err
	}
	return errors.Join(disk.Truncate(int64(len(torn))), disk.Close())
}

// CopyTorn copies a database to a folder as the disk might have it if the power failed
// now. The same r and the same changes give the same copy. Other processes may not have
// the database open: to read its files ends the locks that SQLite has on them.
func CopyTorn(database, dir string, r *rand.Rand) error {
	files.Lock()
	defer files.Unlock()
	suffixes := []string{"", "-journal", "-wal"}
	// The files are of one moment.
	for _, suffix := range suffixes {
		if f := files.byPath[database+suffix]; f != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
		}
	}
	for _, suffix := range suffixes {
		now, err := os.ReadFile(database + suffix)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		}
		if f := files.byPath[database+suffix]; f != nil {
			now = f.tear(now, r)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(database)+suffix), now, 0o600); err != nil {
			return err
		}
	}
	return nil
}
