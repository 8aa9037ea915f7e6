package sqlite

import (
	"database/sql"
	"fmt"
	"time"
	"unsafe"
)

// timeLayout has a fixed width, so that times order as texts, and is what
// SQLite's date functions read.
const timeLayout = "2006-01-02T15:04:05.000000Z"

func formatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(timeLayout, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("time in the database: %w", err)
	}
	return t, nil
}

// formatExpiry is NULL for never.
func formatExpiry(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return formatTime(t)
}

// expiryText is formatExpiry with an empty text for NULL.
func expiryText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return formatTime(t)
}

func parseExpiry(text sql.NullString) (time.Time, error) {
	if !text.Valid {
		return time.Time{}, nil
	}
	return parseTime(text.String)
}

// text and bytes share the memory of a value: the engine copies what it binds
// and what it returns, and nobody writes to a value (sqlstore.Record).
func text(value []byte) string { return unsafe.String(unsafe.SliceData(value), len(value)) }

func bytes(value string) []byte { return unsafe.Slice(unsafe.StringData(value), len(value)) }
