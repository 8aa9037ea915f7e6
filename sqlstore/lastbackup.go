package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// LastBackup is what a store knows of the last backup that was made of it.
type LastBackup struct {
	// Time is when the backup was complete, by the clock of the process that made it.
	Time time.Time `json:"time"`
	// Revision is that of the moment that the backup holds.
	Revision int64 `json:"revision"`
	// Location is where it was written to, as it was named. It has no secrets.
	Location string `json:"location"`
}

// BackupRecorder is a Driver that knows of the last backup of its database.
type BackupRecorder interface {
	// LastBackup fails with ErrNotFound where no backup was recorded.
	LastBackup(ctx context.Context) (LastBackup, error)
}

// lastBackupRecord is a LastBackup as it is stored: JSON with a kind, like an object.
type lastBackupRecord struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	LastBackup
}

// Encode returns the form in which drivers store it.
func (b LastBackup) Encode() ([]byte, error) {
	record := lastBackupRecord{"byre/1", "LastBackup", b}
	record.Time = b.Time.UTC().Truncate(time.Second)
	text, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("last backup: %w", err)
	}
	return text, nil
}

// DecodeLastBackup decodes what Encode has returned.
func DecodeLastBackup(text []byte) (LastBackup, error) {
	var record lastBackupRecord
	if err := json.Unmarshal(text, &record); err != nil {
		return LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	return record.LastBackup, nil
}
