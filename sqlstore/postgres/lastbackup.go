package postgres

import (
	"context"
	"errors"
	"fmt"

	"byre/sqlstore"
)

// RecordBackup stores the record of a backup in its database, which may be in use.
func RecordBackup(ctx context.Context, dsn string, b sqlstore.LastBackup) (err error) {
	value, err := b.Encode()
	if err != nil {
		return err
	}
	d, err := OpenWithoutServing(ctx, dsn, Options{AllowLoss: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	const attempts = 5 // other processes may record a backup at the same time
	for range attempts {
		w := sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.LastBackupKey, Encoding: "byre/1", Value: value,
			Author: sqlstore.Author{User: "byre", Verb: "backup"},
		}
		switch record, _, err := d.Get(ctx, sqlstore.LastBackupKey); {
		case err == nil:
			w.Op, w.Replaces = sqlstore.Update, record.Revision
		case !errors.Is(err, sqlstore.ErrNotFound):
			return fmt.Errorf("last backup: %w", err)
		}
		outcomes, err := d.Commit(ctx, []sqlstore.Write{w})
		if err != nil {
			return fmt.Errorf("last backup: %w", err)
		}
		var conflict *sqlstore.ConflictError
		if err = outcomes[0].Err; !errors.Is(err, sqlstore.ErrExists) && !errors.As(err, &conflict) {
			return err
		}
	}
	return errors.New("last backup: other processes record backups at the same time")
}

// LastBackup implements sqlstore.Driver.
func (d *Driver) LastBackup(ctx context.Context) (sqlstore.LastBackup, error) {
	record, _, err := d.Get(ctx, sqlstore.LastBackupKey)
	if err != nil {
		return sqlstore.LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	return sqlstore.DecodeLastBackup(record.Value)
}
