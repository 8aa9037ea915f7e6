package robustness

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"byre/e2e/programs"
	"byre/e2e/robustness/vfs"
)

// vfsFaults have the file system below SQLite fail: byre runs with a VFS that does so
// (e2e/robustness/faulty).
func vfsFaults() []Fault {
	return []Fault{
		vfsFault("writing to SQLite's files fails for 2 s (EIO)", vfs.Write, 2*outage, true),
		vfsFault("reading from SQLite's files fails for 2 s (EIO)", vfs.Read, 2*outage, true),
		vfsFault("fsync of SQLite's files fails for 1 s (EIO)", vfs.Sync, outage, false),
		vfsFault("SQLite's files are locked by others for 2 s (SQLITE_BUSY)", vfs.Busy, 2*outage, true),
		vfsFault("SQLite's files are locked by others for 12 s (SQLITE_BUSY)", vfs.Busy, 12*outage, true),
		vfsFault("reads from SQLite's files come back short for 2 s", vfs.ShortRead, 2*outage, true),
	}
}

// vfsFault has an operation of the VFS fail for a while.
func vfsFault(name string, fault vfs.Fault, during time.Duration, isLong bool) Fault {
	return Fault{
		Name: name, Databases: []string{SQLite}, IsLong: isLong,
		Prepare: func(_ context.Context, e *Env) error {
			for _, r := range e.Replicas {
				r.Config.Program, r.Config.Env = programs.Faulty.Path(), []string{"VFS_FAULT=" + string(fault)}
			}
			return nil
		},
		Inject: func(ctx context.Context, e *Env) error {
			server := e.Replicas[0].Server
			if err := errors.Join(server.Signal(syscall.SIGUSR1), e.Pause(ctx, during),
				server.Signal(syscall.SIGUSR2)); err != nil {
				return err
			}
			return e.awaitMended(ctx)
		},
	}
}

var failures = regexp.MustCompile(`vfs: (\d+) failed`)

// awaitMended waits until the process has said how many operations failed: at least one.
func (e *Env) awaitMended(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if found := failures.FindStringSubmatch(e.Replicas[0].Server.LogTail()); found != nil {
			n, err := strconv.Atoi(found[1])
			if err == nil && n == 0 {
				err = errors.New("no operation failed")
			}
			return err
		}
		if err := e.Pause(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for the end of a VFS's fault: %w", err)
		}
	}
}
