package vfs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// handle is an open file in SQLite's memory. The handle of SQLite's own VFS follows it.
type handle struct {
	methods uintptr
	id      uintptr
}

const (
	vfsName    = "byre-faults"
	handleSize = unsafe.Sizeof(handle{})
)

// files are the open files by handle.id.
var files = struct {
	sync.Mutex
	last   uintptr
	byID   map[uintptr]*file
	byPath map[string]*file
}{byID: map[uintptr]*file{}, byPath: map[string]*file{}}

var (
	// shim is what SQLite calls, own is SQLite's VFS behind it.
	shim    sqlite3.Tsqlite3_vfs
	own     uintptr
	methods sqlite3.Tsqlite3_io_methods
)

// register makes the shim the default VFS of SQLite, once in a process. Each method of the shim
// calls that of SQLite's own VFS, and has the power fail or the operation fail where a test says so.
var register = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	if rc := sqlite3.Xsqlite3_initialize(tls); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("initialize SQLite: %d", rc)
	}
	if own = sqlite3.Xsqlite3_vfs_find(tls, 0); own == 0 {
		return errors.New("SQLite has no VFS")
	}
	name, err := libc.CString(vfsName) // it stays as long as the process
	if err != nil {
		return err
	}
	shim = *at[sqlite3.Tsqlite3_vfs](own)
	shim.FszOsFile += int32(handleSize)
	shim.FpNext, shim.FzName = 0, name
	shim.FxOpen, shim.FxDelete = pointer(open), pointer(remove)
	methods = sqlite3.Tsqlite3_io_methods{
		FiVersion: 2, // without xFetch: nothing is read by mmap
		FxClose:   pointer(closeFile), FxRead: pointer(read), FxWrite: pointer(write), FxTruncate: pointer(truncate),
		FxSync: pointer(syncFile), FxFileSize: pointer(fileSize), FxLock: pointer(lock), FxUnlock: pointer(unlock),
		FxCheckReservedLock: pointer(checkReservedLock), FxFileControl: pointer(fileControl),
		FxSectorSize: pointer(sectorSize), FxDeviceCharacteristics: pointer(deviceCharacteristics),
		FxShmMap: pointer(shmMap), FxShmLock: pointer(shmLock), FxShmBarrier: pointer(shmBarrier),
		FxShmUnmap: pointer(shmUnmap),
	}
	if rc := sqlite3.Xsqlite3_vfs_register(tls, uintptr(unsafe.Pointer(&shim)), 1); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("register a VFS: %d", rc)
	}
	return nil
})

// at is what a C pointer points to.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// pointer is the C pointer of a function of the package.
func pointer(function any) uintptr { return (*[2]uintptr)(unsafe.Pointer(&function))[1] }

// function is the function of a C pointer.
func function[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&p)) }

// ownHandle is the handle of SQLite's own VFS, with its methods.
func ownHandle(h uintptr) (uintptr, *sqlite3.Tsqlite3_io_methods) {
	h += handleSize
	return h, at[sqlite3.Tsqlite3_io_methods](*at[uintptr](h))
}

// fileOf is the file of a handle.
func fileOf(h uintptr) *file {
	files.Lock()
	defer files.Unlock()
	return files.byID[at[handle](h).id]
}

// open implements xOpen of sqlite3_vfs.
func open(tls *libc.TLS, _, name, h uintptr, flags int32, outFlags uintptr) int32 {
	*at[handle](h) = handle{}
	o := function[func(*libc.TLS, uintptr, uintptr, uintptr, int32, uintptr) int32](at[sqlite3.Tsqlite3_vfs](own).FxOpen)
	if rc := o(tls, own, name, h+handleSize, flags, outFlags); rc != sqlite3.SQLITE_OK {
		return rc
	}
	path := ""
	if name != 0 {
		path = libc.GoString(name)
	}
	files.Lock()
	defer files.Unlock()
	f := files.byPath[path]
	if f == nil || path == "" {
		f = newFile(path)
		files.byPath[path] = f
	}
	f.handles++
	files.last++
	files.byID[files.last] = f
	*at[handle](h) = handle{methods: uintptr(unsafe.Pointer(&methods)), id: files.last}
	return sqlite3.SQLITE_OK
}

// remove implements xDelete of sqlite3_vfs.
func remove(tls *libc.TLS, _, name uintptr, syncDir int32) int32 {
	path := libc.GoString(name)
	passChange(path)
	files.Lock()
	delete(files.byPath, path)
	files.Unlock()
	d := function[func(*libc.TLS, uintptr, uintptr, int32) int32](at[sqlite3.Tsqlite3_vfs](own).FxDelete)
	return d(tls, own, name, syncDir)
}

// closeFile implements xClose of sqlite3_io_methods. It forgets a file that the disk has whole.
// What is not synced when the last handle is closed can still be lost.
func closeFile(tls *libc.TLS, h uintptr) int32 {
	files.Lock()
	id := at[handle](h).id
	f := files.byID[id]
	delete(files.byID, id)
	f.handles--
	if f.handles == 0 && files.byPath[f.path] == f && (f.path == "" || f.isSynced()) {
		delete(files.byPath, f.path)
	}
	files.Unlock()
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr) int32](m.FxClose)(tls, r)
}

func read(tls *libc.TLS, h, buf uintptr, n int32, offset int64) int32 {
	return fileOf(h).read(&realFile{tls, h}, unsafe.Slice(at[byte](buf), n), offset)
}

func write(tls *libc.TLS, h, buf uintptr, n int32, offset int64) int32 {
	f := fileOf(h)
	passChange(f.path)
	return f.write(&realFile{tls, h}, unsafe.Slice(at[byte](buf), n), offset)
}

func truncate(tls *libc.TLS, h uintptr, size int64) int32 {
	f := fileOf(h)
	passChange(f.path)
	return f.truncate(&realFile{tls, h}, size)
}

func syncFile(tls *libc.TLS, h uintptr, flags int32) int32 {
	f := fileOf(h)
	passChange(f.path)
	return f.sync(&realFile{tls, h}, flags)
}

func fileSize(tls *libc.TLS, h, size uintptr) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, uintptr) int32](m.FxFileSize)(tls, r, size)
}

func lock(tls *libc.TLS, h uintptr, level int32) int32 {
	if fails(Busy) {
		return sqlite3.SQLITE_BUSY
	}
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, int32) int32](m.FxLock)(tls, r, level)
}

func unlock(tls *libc.TLS, h uintptr, level int32) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, int32) int32](m.FxUnlock)(tls, r, level)
}

func checkReservedLock(tls *libc.TLS, h, result uintptr) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, uintptr) int32](m.FxCheckReservedLock)(tls, r, result)
}

func fileControl(tls *libc.TLS, h uintptr, op int32, arg uintptr) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, int32, uintptr) int32](m.FxFileControl)(tls, r, op, arg)
}

func sectorSize(tls *libc.TLS, h uintptr) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr) int32](m.FxSectorSize)(tls, r)
}

func deviceCharacteristics(tls *libc.TLS, h uintptr) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr) int32](m.FxDeviceCharacteristics)(tls, r)
}

func shmMap(tls *libc.TLS, h uintptr, region, size, extend int32, p uintptr) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, int32, int32, int32, uintptr) int32](m.FxShmMap)(tls, r, region, size, extend,
		p)
}

func shmLock(tls *libc.TLS, h uintptr, offset, n, flags int32) int32 {
	const takes = sqlite3.SQLITE_SHM_LOCK | sqlite3.SQLITE_SHM_EXCLUSIVE
	if flags == takes && fails(Busy) {
		return sqlite3.SQLITE_BUSY
	}
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, int32, int32, int32) int32](m.FxShmLock)(tls, r, offset, n, flags)
}

func shmBarrier(tls *libc.TLS, h uintptr) {
	r, m := ownHandle(h)
	function[func(*libc.TLS, uintptr)](m.FxShmBarrier)(tls, r)
}

func shmUnmap(tls *libc.TLS, h uintptr, remove int32) int32 {
	r, m := ownHandle(h)
	return function[func(*libc.TLS, uintptr, int32) int32](m.FxShmUnmap)(tls, r, remove)
}

// realFile is a file in SQLite's own VFS. Results are SQLite's result codes.
type realFile struct {
	tls *libc.TLS
	h   uintptr
}

func (r *realFile) read(p []byte, offset int64) int32 {
	h, m := ownHandle(r.h)
	return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](m.FxRead)(r.tls, h,
		uintptr(unsafe.Pointer(&p[0])), int32(len(p)), offset)
}

func (r *realFile) write(p []byte, offset int64) int32 {
	h, m := ownHandle(r.h)
	return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](m.FxWrite)(r.tls, h,
		uintptr(unsafe.Pointer(&p[0])), int32(len(p)), offset)
}

func (r *realFile) truncate(size int64) int32 {
	h, m := ownHandle(r.h)
	return function[func(*libc.TLS, uintptr, int64) int32](m.FxTruncate)(r.tls, h, size)
}

func (r *realFile) sync(flags int32) int32 {
	h, m := ownHandle(r.h)
	return function[func(*libc.TLS, uintptr, int32) int32](m.FxSync)(r.tls, h, flags)
}

func (r *realFile) size() (int64, int32) {
	h, m := ownHandle(r.h)
	n := r.tls.Alloc(8) // Go's own stack moves
	defer r.tls.Free(8)
	rc := function[func(*libc.TLS, uintptr, uintptr) int32](m.FxFileSize)(r.tls, h, n)
	return *at[int64](n), rc
}
