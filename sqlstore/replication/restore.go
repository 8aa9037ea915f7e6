package replication

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/benbjohnson/litestream"

	"byre/sqlstore/backup/location"
)

// ErrEmpty means that there is nothing to restore.
var ErrEmpty = errors.New("there is no copy of a database")

// Location is the copy in the destination of the given URL, as if it were one file. The certificates and
// keys of the server lie beside it, at location.KeysSuffix.
func Location(destination string, s3 location.S3) location.Location {
	l := location.Location{Name: strings.TrimSuffix(destination, "/") + "/byre", Force: true, S3: s3}
	if u, err := url.Parse(l.Name); err == nil && u.Scheme == "file" {
		l.Name = u.Path
	}
	return l
}

// Restore makes a database file at path, which must not exist, of the latest copy in the destination
// of the given URL. It fails with ErrEmpty if there is none.
func Restore(ctx context.Context, destination string, s3 location.S3, path string) error {
	b, err := openBucket(destination, s3)
	if err != nil {
		return err
	}
	folders, err := b.folders(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", destination, err)
	}
	// The last folder has no snapshot if its process ended before.
	for _, folder := range slices.Backward(folders) {
		replica := litestream.NewReplicaWithClient(nil, b.client(folder))
		options := litestream.NewRestoreOptions()
		options.OutputPath = path
		err := replica.Restore(ctx, options)
		if errors.Is(err, litestream.ErrTxNotAvailable) || errors.Is(err, litestream.ErrNoSnapshots) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s/%s: %w", destination, folder, err)
		}
		return nil
	}
	return fmt.Errorf("%s: %w", destination, ErrEmpty)
}
