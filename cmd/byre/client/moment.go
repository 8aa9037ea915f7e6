package client

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"byre/apiserver/history"
	"byre/apiserver/server"
)

// Moment is a revision or a time.
type Moment struct {
	// Revision is 0 if the moment is a time.
	Revision int64
	Time     time.Time
}

// MomentHelp says how flags take moments.
const MomentHelp = "a revision, a time of RFC 3339, or one before now such as -2h"

// ParseMoment parses a moment in the forms that MomentHelp names.
func ParseMoment(text string) (Moment, error) {
	if revision, err := strconv.ParseInt(text, 10, 64); err == nil && revision > 0 {
		return Moment{Revision: revision}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return Moment{Time: at}, nil
	}
	if age, found := strings.CutPrefix(text, "-"); found {
		if age, err := server.ParseDuration(age); err == nil && age > 0 {
			return Moment{Time: time.Now().Add(-age)}, nil
		}
	}
	return Moment{}, fmt.Errorf("%q is neither a revision, nor a time such as 2026-12-01T15:04:05Z, nor one before now such as -2h", text)
}

// covers reports whether a change was made until the moment: a time means the last revision whose
// time is not after it.
func (m Moment) covers(c *history.Change) bool {
	if m.Revision > 0 {
		return c.Revision <= m.Revision
	}
	return !c.Time.After(m.Time)
}

// String returns the moment as a person writes it.
func (m Moment) String() string {
	if m.Revision > 0 {
		return "revision " + strconv.FormatInt(m.Revision, 10)
	}
	return m.Time.UTC().Format(time.RFC3339)
}
