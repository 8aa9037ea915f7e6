package standby

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"byre/migrations/dbfile"
	"byre/migrations/fileowner"
)

// holders is the file that names the holders of the lease whose commits the database has.
type holders struct {
	path  string
	names []string
	// here names the boot of the system and the file of the database's lock, and is in the file beside the names.
	// It is empty where the system does not tell.
	here string
}

// holdersSuffix is the suffix of the file, beside the database.
const holdersSuffix = ".holder"

// readHolders reads the file. The caller has the lock of the database.
func readHolders(database string) (*holders, error) {
	h := &holders{path: database + holdersSuffix}
	text, err := os.ReadFile(h.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	h.names = strings.Fields(string(text))
	boot, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	lock, lockErr := os.Stat(database + dbfile.LockSuffix)
	if bootErr == nil && lockErr == nil {
		if stat, ok := lock.Sys().(*syscall.Stat_t); ok {
			h.here = fmt.Sprintf("boot:%s/%d", strings.TrimSpace(string(boot)), stat.Ino)
		}
	}
	return h, nil
}

func (h *holders) has(name string) bool { return slices.Contains(h.names, name) }

// hasEnded reports whether a holder was a process that had the lock which this process has. On another boot of the
// system it is not known: a clone of the machine has the names too, and a copy of the directory another lock.
func (h *holders) hasEnded(name string) bool { return h.here != "" && h.has(name) && h.has(h.here) }

// include has the file have a name, or not.
func (h *holders) include(name string, included bool) error {
	if h.has(name) == included {
		return nil
	}
	names := slices.DeleteFunc(slices.Clone(h.names), func(other string) bool { return other == name })
	if included {
		names = append(names, name)
	}
	return h.set(names...)
}

// set replaces the names. They are on the disk when it returns.
func (h *holders) set(names ...string) error {
	names = append(slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "boot:") }), h.here)
	if err := fileowner.WriteFile(h.path, []byte(strings.Join(names, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	h.names = names
	return fileowner.SyncDir(filepath.Dir(h.path))
}
