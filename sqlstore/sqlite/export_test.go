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

// Pragmas reads a pragma on the connection that writes, on that of the upkeep, and
// on each that reads.
func (d *Driver) Pragmas(ctx context.Context, name string) (values []string, err error) {
	upkeep, err := d.upkeep.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer upkeep.Close()
	conns := []*sql.Conn{d.writer.conn, upkeep}
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
