package pgtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// archive returns the folder to which a server with Config.Archive copies its write-ahead log.
func (c *Cluster) archive() string { return filepath.Join(c.dir, "archive") }

// BaseBackup copies the server's data, and does not start the copy; see Recover.
func (c *Cluster) BaseBackup(ctx context.Context) (*Cluster, error) {
	return Config{}.prepare(ctx, "pg_basebackup", "--no-sync", "--checkpoint=fast", "--host="+c.dir, "--username=byre")
}

// SetRestorePoint makes a named restore point, and waits until the write-ahead log up to it is
// archived.
func (c *Cluster) SetRestorePoint(ctx context.Context, name string) error {
	var segment string
	if err := c.connected(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `SELECT pg_create_restore_point($1)`, name); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT pg_walfile_name(pg_switch_wal())`).Scan(&segment)
	}); err != nil {
		return err
	}
	if err := c.await(ctx, `SELECT coalesce(last_archived_wal >= $1, false) FROM pg_stat_archiver`, segment); err != nil {
		return fmt.Errorf("segment %s is not archived: %w", segment, err)
	}
	return nil
}

// Recover starts a base backup of the server from, which was halted, and recovers it to a
// restore point of that server. The server begins a new timeline.
func (c *Cluster) Recover(ctx context.Context, from *Cluster, point string) error {
	if err := c.configure([]string{
		"archive_mode=off",
		fmt.Sprintf("restore_command='cp %s/%%f %%p'", from.archive()),
		"recovery_target_name=" + point,
		"recovery_target_action=promote",
	}); err != nil {
		return err
	}
	if err := c.WriteFile("recovery.signal", nil); err != nil {
		return err
	}
	if err := c.Resume(ctx); err != nil {
		return err
	}
	return c.await(ctx, `SELECT NOT pg_is_in_recovery()`)
}

// Remove stops the server, if it runs, and removes what is left of it.
func (c *Cluster) Remove() {
	if c.guard != nil {
		_ = c.Stop() // it fails if the server was halted
	}
	_ = os.RemoveAll(c.dir)
}
