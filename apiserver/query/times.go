package query

import (
	"bytes"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/storage/moment"
)

// timeCollation is the collation of the columns of the type Time. SQLite compares by it where an operand is such a
// column, unless the left one is a column without it. An expression, such as max(time), has none.
const timeCollation = "time"

// times compares texts as times for one statement. One goroutine uses it.
type times struct {
	// began is when the query began, in UTC: a time of day is of this day, and a duration is before it.
	began time.Time
	// refuse ends the statement with an error.
	refuse func(error)
	// known has the times of texts other than those of the columns: constants, which all rows are compared with.
	known map[string]time.Time
}

const (
	// mostTimeText is more than the length of any time.
	mostTimeText = 100
	// mostKnown bounds known, as a statement may compare with other tables' texts.
	mostKnown = 1000
)

// compare implements timeCollation. It is an order of all texts: what is no time comes last, and ends the statement.
func (t *times) compare(a, b []byte) int {
	first, firstErr := t.parse(a)
	second, secondErr := t.parse(b)
	switch {
	case firstErr == nil && secondErr == nil:
		return first.Compare(second)
	case firstErr != nil:
		t.refuse(firstErr)
	default:
		t.refuse(secondErr)
	}
	switch {
	case firstErr == nil:
		return -1
	case secondErr == nil:
		return 1
	}
	return bytes.Compare(a, b)
}

// parse returns the time of a text. Its error is one of the API.
func (t *times) parse(text []byte) (parsed time.Time, err error) {
	const date = len(time.DateOnly)
	if len(text) > date && text[date] == 'T' && parsed.UnmarshalText(text) == nil {
		return parsed, nil // a value of a column, without a copy
	}
	if known, ok := t.known[string(text)]; ok {
		return known, nil
	}
	form := string(text[:min(len(text), mostTimeText)])
	if len(text) > mostTimeText {
		form += "…"
	}
	if parsed, err = moment.ParseTime(form, t.began); err != nil {
		return parsed, badTime(err)
	}
	if len(t.known) == mostKnown {
		clear(t.known)
	}
	t.known[form] = parsed
	return parsed, nil
}

// badTime returns the error for what a time is compared with and is none.
func badTime(err error) error {
	return badStatement(fmt.Sprintf("%s: a column of the type time is compared with a time such as "+
		"2026-12-01T15:04:05.999Z, '2026-12-01 15:04' (in UTC, or with an offset such as +01:00), 2026-12-01, 14:00, "+
		"'yesterday 14:00', -2h, Unix seconds, or what SQLite's date functions return; COLLATE BINARY compares texts",
		err), "", "")
}

// timeComparisons are the operators of constraints that compare two values.
var timeComparisons = map[sqlite3.IndexConstraintOp]bool{
	sqlite3.INDEX_CONSTRAINT_EQ: true, sqlite3.INDEX_CONSTRAINT_NE: true, sqlite3.INDEX_CONSTRAINT_LT: true,
	sqlite3.INDEX_CONSTRAINT_LE: true, sqlite3.INDEX_CONSTRAINT_GT: true, sqlite3.INDEX_CONSTRAINT_GE: true,
	sqlite3.INDEX_CONSTRAINT_IS: true, sqlite3.INDEX_CONSTRAINT_ISNOT: true,
}

// check fails if a statement compares a time with a constant that is none: it is refused even if there is no row. Where
// the value is not known yet, compare refuses it.
func (t *times) check(info *sqlite3.IndexInfo, columns []Column) error {
	for i, c := range info.Constraint {
		if !timeComparisons[c.Op] || c.Column < 0 || columns[c.Column].Type != Time || info.Collation(i) != timeCollation {
			continue
		}
		value, err := info.RHSValue(i)
		if err != nil || value.Type() == sqlite3.NULL || value.Type() == sqlite3.BLOB {
			continue //nolint:nilerr // it is no constant
		}
		if _, err = t.parse(value.RawText()); err != nil {
			return err
		}
	}
	return nil
}
