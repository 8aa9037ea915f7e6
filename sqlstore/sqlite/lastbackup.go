package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"byre/migrations"

	"byre/sqlstore"
)

// lastBackupSuffix is the suffix of the file, beside the database, that has the record of the
// last backup. The record is no row of the database, because only the process that serves the
// database writes to it.
//
// Invariant: the record is of the database that it lies beside, and not of one that was there
// before. Load deletes it, and Open if the store has never held anything.
const lastBackupSuffix = ".last-backup"

// RecordBackup stores the record of a backup of the database in the file at path, which may be
// in use.
func RecordBackup(path string, b sqlstore.LastBackup) error {
	text, err := b.Encode()
	if err != nil {
		return err
	}
	if path, err = migrations.ResolveFile(path); err == nil {
		err = migrations.WriteFileOwned(path+lastBackupSuffix, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("last backup: %w", err)
	}
	return nil
}

// ReadLastBackup returns the record that RecordBackup has stored for the database in the file
// at path. It fails with sqlstore.ErrNotFound if there is none.
func ReadLastBackup(path string) (sqlstore.LastBackup, error) {
	path, err := migrations.ResolveFile(path)
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path + lastBackupSuffix)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = sqlstore.ErrNotFound
	}
	if err != nil {
		return sqlstore.LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	return sqlstore.DecodeLastBackup(text)
}

// LastBackup implements sqlstore.Driver.
func (d *Driver) LastBackup(context.Context) (sqlstore.LastBackup, error) {
	return ReadLastBackup(d.file.path)
}
