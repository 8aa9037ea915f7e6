package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"

	"byre/sqlstore"
)

// errNotOurs means that the path does not lead to the file that the driver has open.
var errNotOurs = errors.New("the database file was removed or replaced while it is in use")

// Probe implements sqlstore.Exclusive. It opens the file at path again and reads the state. The
// open connections would not notice that the file was deleted: they keep reading their caches
// and the deleted file.
func (d *Driver) Probe(ctx context.Context) error {
	file, err := os.Stat(d.file.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errNotOurs)
	case err != nil:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, err)
	case !os.SameFile(file, d.info):
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errNotOurs)
	}
	db := d.file.connect(1, d.file.reading())
	defer db.Close()
	known := d.committer.buffer.durable()
	var stored sqlstore.State
	if err := db.QueryRowContext(ctx, selectState).Scan(&stored.Revision, &stored.Compacted, &stored.Epoch); err != nil {
		return d.file.translate(err)
	}
	if stored.Revision < known {
		return fmt.Errorf("%w: the database file is at revision %d, and was at %d", sqlstore.ErrUnavailable, stored.Revision, known)
	}
	return nil
}
