package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Disk is a small file system in a file. A test can fill it, or make it fail, as a real disk
// does.
type Disk struct {
	// Dir is the folder where it is mounted.
	Dir   string
	image string
}

// NewDisk makes and mounts an ext4 file system, which is removed when the test ends. It skips
// the test if it can't mount a file system, which takes root and a loop device.
func NewDisk(t testing.TB, megabytes int64) *Disk {
	t.Helper()
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("mounts a file system, which takes root on Linux")
	}
	dir, err := os.MkdirTemp("", "byre-disk")
	if err != nil {
		t.Fatal(err)
	}
	d := &Disk{Dir: filepath.Join(dir, "mounted"), image: filepath.Join(dir, "image")}
	t.Cleanup(func() {
		_ = run("umount", "--lazy", d.Dir) // it fails if the disk was never mounted
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	image, err := os.Create(d.image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(image.Truncate(megabytes<<20), image.Close(), os.Chmod(dir, 0o755), os.Mkdir(d.Dir, 0o755)); err != nil { //nolint:gosec // another user goes through it
		t.Fatal(err)
	}
	// -m 0: no blocks are reserved for root, so that a full disk is full for every user.
	if err := run("mkfs.ext4", "-q", "-m", "0", d.image); err != nil {
		t.Fatal(err)
	}
	if err := d.mount(); err != nil {
		t.Skip(err)
	}
	return d
}

func (d *Disk) mount() error { return run("mount", "-o", "loop", d.image, d.Dir) }

// Mkdir makes a folder that the server's user owns.
func (d *Disk) Mkdir(name string) (string, error) {
	path := filepath.Join(d.Dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	credential, err := Unprivileged()
	if err != nil {
		return "", err
	}
	return path, folder{d.Dir, credential}.give(path)
}

// Fill writes a file that takes all free space.
func (d *Disk) Fill() error {
	ballast, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	for _, size := range []int{1 << 20, 4 << 10} {
		for block := make([]byte, size); err == nil; {
			_, err = ballast.Write(block)
		}
		err = nil
	}
	return errors.Join(ballast.Sync(), ballast.Close())
}

// Free removes the file of Fill.
func (d *Disk) Free() error { return os.Remove(d.ballast()) }

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Fail makes the file system read-only at once, also for open files: ext4 aborts its journal,
// as it does after an I/O error of the device.
func (d *Disk) Fail() error { return run("mount", "-o", "remount,abort", d.Dir) }

// Repair checks the file system and mounts it again, writable. No process may use it.
func (d *Disk) Repair() error {
	if err := run("umount", d.Dir); err != nil {
		return err
	}
	// Status 1 of fsck means that it has found errors and repaired them.
	var exit *exec.ExitError
	if err := run("fsck.ext4", "-p", d.image); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return err
	}
	return d.mount()
}

func run(program string, arguments ...string) error {
	out, err := exec.Command(program, arguments...).CombinedOutput() //nolint:noctx,gosec // it ends by itself
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}
