package sqlstore

import (
	"encoding/json"
	"fmt"
	"time"
)

// LastBackup is the record, in a database, of the last backup that was made of it.
type LastBackup struct {
	// Time is when the backup was complete, by the clock of the process that made it.
	Time time.Time `json:"time"`
	// Revision is the revision of the snapshot in the backup.
	Revision int64 `json:"revision"`
	// Location is the name that the operator gave the backup's file. It has no secrets.
	Location string `json:"location"`
}

// LastBackupKey is the key of the record of the last backup, which no API serves, in a database
// that has it as a row. Its resource is one that the migrations take for a built-in one, in all
// versions of the schema. The record is of the database in which it was made: a restore replaces
// its value by NoBackup.
var LastBackupKey = Key{Group: "byre", Resource: "foundations", Owner: BuiltIn, Name: "last-backup"}

// lastBackupRecord is the stored form of a LastBackup: JSON with apiVersion and kind.
type lastBackupRecord struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	LastBackup
}

// Encode returns the text that drivers store.
func (b LastBackup) Encode() ([]byte, error) {
	record := lastBackupRecord{"byre/1", "LastBackup", b}
	record.Time = b.Time.UTC().Truncate(time.Second)
	text, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("last backup: %w", err)
	}
	return text, nil
}

// NoBackup returns the text of a record that says that there was no backup: one without a time.
func NoBackup() []byte { return []byte(`{"apiVersion":"byre/1","kind":"LastBackup"}`) }

// DecodeLastBackup decodes a text of Encode. It fails with ErrNotFound if the text is NoBackup.
func DecodeLastBackup(text []byte) (LastBackup, error) {
	var record lastBackupRecord
	if err := json.Unmarshal(text, &record); err != nil {
		return LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	if record.Time.IsZero() {
		return LastBackup{}, fmt.Errorf("last backup: %w", ErrNotFound)
	}
	return record.LastBackup, nil
}
