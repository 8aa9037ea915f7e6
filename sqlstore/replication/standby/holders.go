package standby

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"byre/migrations/fileowner"
)

// holders is the file that names the holders of the lease whose commits the database has.
type holders struct {
	path  string
	names []string
}

// holdersSuffix is the suffix of the file, beside the database.
const holdersSuffix = ".holder"

func readHolders(database string) (*holders, error) {
	h := &holders{path: database + holdersSuffix}
	text, err := os.ReadFile(h.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	h.names = strings.Fields(string(text))
	return h, nil
}

func (h *holders) has(name string) bool { return slices.Contains(h.names, name) }

// set replaces the names. They are on the disk when it returns.
func (h *holders) set(names ...string) error {
	if err := fileowner.WriteFile(h.path, []byte(strings.Join(names, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	h.names = names
	return fileowner.SyncDir(filepath.Dir(h.path))
}
