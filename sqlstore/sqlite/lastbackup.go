package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"byre/sqlstore"
)

// lastBackupSuffix makes the name of the file beside the database that knows of the last
// backup. It is no row of the database, to which the process that serves it writes alone.
const lastBackupSuffix = ".last-backup"

// lastBackupFile returns the name of that file, which stands beside the database and not
// beside a symbolic link to it.
func lastBackupFile(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("last backup: %w", err)
	}
	return path + lastBackupSuffix, nil
}

// RecordBackup notes a backup of the database in the file at path, which may be in use.
func RecordBackup(path string, b sqlstore.LastBackup) error {
	text, err := b.Encode()
	if err != nil {
		return err
	}
	if path, err = lastBackupFile(path); err != nil {
		return err
	}
	// The name of the other process's file, if two record at once, is another one.
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("last backup: %w", err)
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("last backup: %w", errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

// ReadLastBackup reads what RecordBackup has noted of the database in the file at path. It
// fails with sqlstore.ErrNotFound where there is nothing.
func ReadLastBackup(path string) (sqlstore.LastBackup, error) {
	path, err := lastBackupFile(path)
	if err != nil {
		return sqlstore.LastBackup{}, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return sqlstore.LastBackup{}, fmt.Errorf("last backup: %w", sqlstore.ErrNotFound)
	}
	if err != nil {
		return sqlstore.LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	return sqlstore.DecodeLastBackup(text)
}

// LastBackup implements sqlstore.BackupRecorder.
func (d *Driver) LastBackup(context.Context) (sqlstore.LastBackup, error) {
	return ReadLastBackup(d.path)
}
