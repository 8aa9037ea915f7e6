package power

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// plain is a table in SQLite, without byre, with byre's settings.
type plain struct {
	connections
	db *sql.DB
	// rows are the acknowledged rows, and pending the rows with the transaction in progress
	// applied; pending is nil if there is none.
	rows, pending map[int64]string
	hasFailed     bool
}

func (p *plain) open(ctx context.Context, path string) (err error) {
	p.hasFailed = false
	if p.db, err = sql.Open("sqlite",
		dsn(path, "auto_vacuum(2)", "journal_mode(wal)", "synchronous(full)", "wal_autocheckpoint(60)")); err != nil {
		return err
	}
	p.db.SetMaxOpenConns(1)
	if _, err := p.db.ExecContext(ctx,
		`CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY, filler TEXT UNIQUE)`); err != nil {
		return err
	}
	if err := p.connections.open(path); err != nil {
		return err
	}
	var verdict string
	if err := p.db.QueryRowContext(ctx, `PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		return fmt.Errorf("integrity_check: %s, %w", verdict, err)
	}
	rows, err := p.read(ctx)
	switch {
	case err != nil:
		return err
	case !maps.Equal(rows, p.rows) && (p.pending == nil || !maps.Equal(rows, p.pending)):
		return fmt.Errorf("rows %v, acknowledged %v", slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(p.rows)))
	}
	p.rows, p.pending = rows, nil
	return nil
}

func (p *plain) read(ctx context.Context) (map[int64]string, error) {
	found, err := p.db.QueryContext(ctx, `SELECT n, filler FROM numbers`)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	rows := map[int64]string{}
	for found.Next() {
		var n int64
		var filler string
		if err := found.Scan(&n, &filler); err != nil {
			return nil, err
		}
		rows[n] = filler
	}
	return rows, found.Err()
}

func (p *plain) step(ctx context.Context, r *rand.Rand) error {
	if r.IntN(4) == 0 {
		return p.connections.step(ctx, r)
	}
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // unless it was committed
	after := maps.Clone(p.rows)
	for range 1 + r.IntN(5) {
		if err := change(ctx, tx, after, r); err != nil {
			return err
		}
	}
	if !p.hasFailed {
		p.pending = after
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if !p.hasFailed {
		p.rows, p.pending = after, nil
	}
	return nil
}

// change inserts, replaces or deletes rows, or shrinks the file.
func change(ctx context.Context, tx *sql.Tx, rows map[int64]string, r *rand.Rand) (err error) {
	n := r.Int64N(100)
	switch r.IntN(6) {
	case 0:
		_, err = tx.ExecContext(ctx, `DELETE FROM numbers WHERE n BETWEEN ?1 AND ?1 + 20`, n)
		maps.DeleteFunc(rows, func(m int64, _ string) bool { return m >= n && m <= n+20 })
	case 1:
		_, err = tx.ExecContext(ctx, `PRAGMA incremental_vacuum(30)`)
	default:
		rows[n] = strings.Repeat(fmt.Sprintf("%016x", r.Uint64()), r.IntN(500))
		if rows[n] == "" {
			rows[n] = fmt.Sprint(n)
		}
		_, err = tx.ExecContext(ctx, `INSERT OR REPLACE INTO numbers VALUES (?, ?)`, n, rows[n])
	}
	return err
}

func (p *plain) powerFailed() { p.hasFailed = true }

func (p *plain) close() error {
	if err := p.connections.close(); err != nil {
		return err
	}
	return p.db.Close()
}
