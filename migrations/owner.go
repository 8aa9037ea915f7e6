package migrations

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// OpenOwned is os.OpenFile with os.O_CREATE. Only a file that it makes changes its owner: at path there may
// be a link of the directory's owner to another's file.
func OpenOwned(path string, flag int, mode fs.FileMode) (*os.File, error) {
	flag |= os.O_CREATE
	file, err := os.OpenFile(path, flag|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return os.OpenFile(path, flag, mode)
	}
	if err != nil {
		return nil, err
	}
	if err := InheritOwner(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// WriteFileOwned replaces the content of the file at path. After a crash the file has the old or the new
// content.
func WriteFileOwned(path string, data []byte, mode fs.FileMode) error {
	return WriteFilesOwned(OwnedFile{path, data, mode})
}

// OwnedFile is a file and its new content.
type OwnedFile struct {
	Path string
	Data []byte
	Mode fs.FileMode
}

// WriteFilesOwned is WriteFile for several files. It replaces none before the new contents of all are on the disk.
func WriteFilesOwned(files ...OwnedFile) error {
	temporary := make([]string, len(files))
	for i, f := range files {
		// Two processes that write at the same time have temporary files of different names.
		file, err := os.CreateTemp(filepath.Dir(f.Path), ".new-*")
		if err != nil {
			return err
		}
		temporary[i] = file.Name()
		defer func() { _ = os.Remove(temporary[i]) }() // it exists unless it was renamed
		_, err = file.Write(f.Data)
		if err = errors.Join(err, file.Chmod(f.Mode), InheritOwner(file), file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	for i, f := range files {
		if err := os.Rename(temporary[i], f.Path); err != nil {
			return err
		}
	}
	return nil
}

// SyncDir syncs a directory, so that it has the files that were made or renamed in it after a crash
// too.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// InheritOwner gives a file that this process has made to the owner of its directory.
func InheritOwner(file *os.File) error {
	dir, err := os.Stat(filepath.Dir(file.Name()))
	if err != nil {
		return err
	}
	return give(dir, file.Chown)
}

// MkdirAllOwned is os.MkdirAll. It gives each directory that it makes to the owner of its parent.
func MkdirAllOwned(path string, mode fs.FileMode) error {
	path = filepath.Clean(path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent, name := filepath.Dir(path), filepath.Base(path)
	if parent != path {
		if err := MkdirAllOwned(parent, mode); err != nil {
			return err
		}
	}
	// The parent's owner may replace it by a link meanwhile: a Root does not follow that.
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer root.Close()
	err = root.Mkdir(name, mode)
	if errors.Is(err, fs.ErrExist) {
		return os.MkdirAll(path, mode) // another process was faster, or it is no directory
	}
	if err != nil {
		return err
	}
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	return give(info, func(uid, gid int) error { return root.Lchown(name, uid, gid) })
}

// give changes the owner of what is in dir. A file system or a container may forbid that to
// root too; the file stays root's then.
func give(dir fs.FileInfo, chown func(uid, gid int) error) error {
	owner, ok := dir.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || owner.Uid == 0 {
		return nil
	}
	err := chown(int(owner.Uid), int(owner.Gid))
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}
