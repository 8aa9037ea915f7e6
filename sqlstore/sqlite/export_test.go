package sqlite

import (
	"context"
	"database/sql"
)

// ExecWriter runs a statement on the connection that writes.
func (d *Driver) ExecWriter(ctx context.Context, statement string) error {
	_, err := d.writer.conn.ExecContext(ctx, statement)
	return err
}

// Pragmas reads a pragma on the connection that writes, on that of the maintenance, and
// on each that reads.
func (d *Driver) Pragmas(ctx context.Context, name string) (values []string, err error) {
	maintenance, err := d.maintenance.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer maintenance.Close()
	conns := []*sql.Conn{d.writer.conn, maintenance}
	for range d.options.Readers {
		conn, err := d.readers.db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	values = make([]string, len(conns))
	for i, conn := range conns {
		if err := conn.QueryRowContext(ctx, "PRAGMA "+name).Scan(&values[i]); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// Log is the number of pages in the log, and of those that are copied back; -1 where it
// can't be read.
func (d *Driver) Log(ctx context.Context) (pages, copied int) {
	var busy int
	if err := d.maintenance.QueryRowContext(ctx, measureLog).Scan(&busy, &pages, &copied); err != nil {
		return -1, -1
	}
	return pages, copied
}

// MaintainOnce does what Maintain does after the log has grown.
func (d *Driver) MaintainOnce(ctx context.Context) error { return d.maintain(ctx, measureLog) }

// Flush commits what is in memory only.
func (d *Driver) Flush() error { return d.flush() }
