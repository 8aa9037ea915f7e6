package sqlite

import "context"

// ExecWriter runs a statement on the connection that writes.
func (d *Driver) ExecWriter(ctx context.Context, statement string) error {
	_, err := d.writer.conn.ExecContext(ctx, statement)
	return err
}
