package sqlite

import (
	"context"
	"database/sql"
)

// ExecWriter runs a statement on the connection that writes.
func (d *Driver) ExecWriter(ctx context.Context, statement string) error {
	_, err := d.committer.writer.conn.ExecContext(ctx, statement)
	return err
}

// Pragmas returns the values of a pragma on all connections: the writer's, that of Maintain,
// and those that read.
func (d *Driver) Pragmas(ctx context.Context, name string) (values []string, err error) {
	maintenance, err := d.checkpointer.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer maintenance.Close()
	conns := []*sql.Conn{d.committer.writer.conn, maintenance}
	for range readers {
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

// Log returns the number of pages in the log, and how many of them are copied back; -1 if it
// can't be measured.
func (d *Driver) Log(ctx context.Context) (pages, copied int) {
	var busy int
	if err := d.checkpointer.db.QueryRowContext(ctx, measureLog).Scan(&busy, &pages, &copied); err != nil {
		return -1, -1
	}
	return pages, copied
}

// MaintainOnce does once what Maintain does when the log has grown.
func (d *Driver) MaintainOnce(ctx context.Context) error { return d.checkpointer.run(ctx, measureLog) }

// Flush writes the volatile changes in memory to the database.
func (d *Driver) Flush() error { return d.committer.flushAll() }

// DuringTransaction calls f in a transaction that flushes the volatile changes in memory.
func (d *Driver) DuringTransaction(f func() error) error {
	c := &d.committer
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.transaction(c.state.Load(), f)
}
