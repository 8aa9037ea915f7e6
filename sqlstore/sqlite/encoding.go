package sqlite

import (
	"database/sql"
	"fmt"
	"time"
)

// timeLayout has a fixed width, so that the order of the texts is that of the times. SQLite's
// date functions can read it.
const timeLayout = "2006-01-02T15:04:05.000000Z"

func formatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(timeLayout, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("time in the database: %w", err)
	}
	return t, nil
}

// formatExpiry returns the value of the column expires: NULL for the zero time, which means
// never.
func formatExpiry(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return formatTime(t)
}

// expiryText is formatExpiry for checksums: it returns an empty text for NULL.
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
