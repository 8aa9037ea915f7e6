package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/sqlstore"
)

// State implements sqlstore.Driver.
func (d *Driver) State(ctx context.Context) (s sqlstore.State, err error) {
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog) error {
		return conn.QueryRow(ctx, selectState).Scan(&s.Revision, &s.Compacted, &s.Epoch, &s.Time)
	})
	return s, err
}

// Get implements sqlstore.Driver.
func (d *Driver) Get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	if !key.Storable() {
		state, err := d.State(ctx)
		if err == nil {
			err = sqlstore.ErrNotFound
		}
		return sqlstore.Record{}, state.Revision, err
	}
	var (
		snapshot          int64
		uid, form, value  *string
		created, revision *int64
		expires           *time.Time
	)
	err := d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog) error {
		return conn.QueryRow(ctx, selectObject, key.Group, key.Resource, key.Owner.String(), key.Namespace, key.Name).
			Scan(&snapshot, &uid, &created, &revision, &form, &expires, &value)
	})
	if err != nil {
		return sqlstore.Record{}, 0, err
	}
	if revision == nil {
		return sqlstore.Record{}, snapshot, sqlstore.ErrNotFound
	}
	return sqlstore.Record{
		Key: key, UID: *uid, Created: *created, Revision: *revision,
		Form: *form, Expires: expiry(expires), Value: bytes(*value),
	}, snapshot, nil
}

func expiry(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// Expired implements sqlstore.Driver.
func (d *Driver) Expired(ctx context.Context, now time.Time, limit int) (expired []sqlstore.Record, err error) {
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog) error {
		rows, err := conn.Query(ctx, selectExpired, formatTime(now), limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r sqlstore.Record
			var expires *time.Time
			if err := rows.Scan(&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &r.UID, &r.Created, &r.Revision, &expires); err != nil {
				return err
			}
			r.Expires = expiry(expires)
			expired = append(expired, r)
		}
		return rows.Err()
	})
	return expired, err
}

// Changes implements sqlstore.Driver.
func (d *Driver) Changes(ctx context.Context, after int64, limit, size int) ([]sqlstore.Change, error) {
	if size <= 0 {
		size = math.MaxInt
	}
	var changes []sqlstore.Change
	err := d.snapshot(ctx, func(b *pgx.Batch) { b.Queue(selectChanges, after, limit, size) },
		func(results pgx.BatchResults, state sqlstore.State, w *watchdog) error {
			if after < state.Compacted {
				return sqlstore.ErrCompacted
			}
			rows, err := results.Query()
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				w.expect()
				c, err := scanChange(rows)
				if err != nil {
					return err
				}
				changes = append(changes, c)
			}
			return rows.Err()
		})
	if err != nil {
		return nil, err
	}
	return changes, nil
}

func scanChange(rows pgx.Rows) (c sqlstore.Change, err error) {
	var (
		op, uid                   string
		replaces, created         int64
		form, value               *string
		newUID, newForm, newValue *string
		expires, newExpires       *time.Time
	)
	k := &c.New.Key
	if err := rows.Scan(&c.Revision, &c.Time, &op, &c.Author.Verb, &c.Author.User, &c.Author.AuditID,
		&k.Group, &k.Resource, &k.Owner, &k.Namespace, &k.Name, &uid, &replaces, &created, &form, &expires, &value,
		&newUID, &newForm, &newExpires, &newValue); err != nil {
		return c, err
	}
	c.Op, c.Time = sqlstore.Op(op), c.Time.UTC()
	c.New.Revision, c.New.Created, c.New.UID = c.Revision, created, uid
	if c.Op != sqlstore.Delete {
		if newValue == nil {
			return c, fmt.Errorf("revision %d of %v is missing its value", c.Revision, *k)
		}
		c.New.UID, c.New.Form, c.New.Expires, c.New.Value = *newUID, *newForm, expiry(newExpires), bytes(*newValue)
	}
	if c.Op != sqlstore.Create {
		c.Old = &sqlstore.Record{
			Key: *k, UID: uid, Created: created, Revision: replaces,
			Form: *form, Expires: expiry(expires), Value: bytes(*value),
		}
		c.OldBytes = int64(len(c.Old.Value))
	}
	return c, nil
}

// snapshot sends a read-only transaction as one pipeline: the counters, then
// what queue adds. read reads the latter's results.
func (d *Driver) snapshot(ctx context.Context, queue func(*pgx.Batch), read func(pgx.BatchResults, sqlstore.State, *watchdog) error) error {
	var b pgx.Batch
	b.Queue(beginRead)
	b.Queue(selectState)
	queue(&b)
	b.Queue(commit)
	return d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, w *watchdog) error {
		results := conn.SendBatch(ctx, &b)
		var s sqlstore.State
		_, err := results.Exec()
		if err == nil {
			err = results.QueryRow().Scan(&s.Revision, &s.Compacted, &s.Epoch, &s.Time)
		}
		if err == nil {
			err = read(results, s, w)
		}
		// Close reads what read left and ends the transaction. When it fails,
		// Release drops the connection.
		w.expect()
		if closeErr := results.Close(); err == nil {
			err = closeErr
		}
		return err
	})
}
