// Package moment parses moments as people write them: the one grammar of flags, of field selectors of the resource
// changes, of SQL, of the console and of the tools for models.
//
// A form without a date or a zone depends on the clock and the zone of who has written it. So each function takes the
// present time, whose location is the zone of a time that names none: a command has that of its user, and a server UTC.
// What a change of the clocks makes ambiguous is refused with both readings.
package moment

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// Moment is a revision or a time. The zero Moment is before all changes.
type Moment struct {
	// Revision is 0 if the moment is a time.
	Revision int64
	Time     time.Time
}

// Help says how flags take moments.
const Help = `a revision, a time such as 14:00, "yesterday 14:00", 2026-12-01 or 2026-12-01T15:04:05Z, ` +
	"or how long ago it was, such as 2h or 3d"

// Integers from leastUnix to mostUnix are Unix seconds in Parse; smaller ones are revisions.
const (
	leastUnix = 1_700_000_000
	mostUnix  = 9_999_999_999
)

// revisionPrefix makes a revision of any number.
const revisionPrefix = "revision "

// Parse parses a moment. It is one of:
//   - a revision, 4711, or "revision 4711" of any size;
//   - Unix seconds, 1764500000 from 2023 on, or @946684800 from 1973 on, each also with a fraction;
//   - a duration before now, 2h or -2h, also in days, weeks and years;
//   - now, a date, today or yesterday, which is when the day begins, each also with a time of day;
//   - a time of day, which is today's, and must not be still to come.
//
// A time of day is 15:04, 15:04:05 or 15:04:05.999, followed by Z, an offset such as +01:00, or no zone. The time is in
// the zone that the text names, or else in that of now.
func Parse(text string, now time.Time) (Moment, error) {
	form := strings.ToLower(strings.TrimSpace(text))
	number, isRevision := strings.CutPrefix(form, revisionPrefix)
	if n, err := strconv.ParseUint(number, 10, 63); err == nil && (isRevision || n < leastUnix) {
		return Moment{Revision: int64(n)}, nil //nolint:gosec // of 63 bits
	}
	if seconds, err := strconv.ParseFloat(form, 64); err == nil && seconds >= leastUnix && seconds < mostUnix+1 {
		return Moment{Time: unix(seconds).In(now.Location())}, nil
	}
	t, isOfToday, err := parse(form, now)
	switch {
	case errors.Is(err, errForm):
		return Moment{}, fmt.Errorf("%.80q is neither a revision nor a time: write %s", text, Help)
	case err != nil:
		return Moment{}, fmt.Errorf("%q: %w", text, err)
	case isOfToday && t.After(now):
		return Moment{}, fmt.Errorf("%s is still to come: write \"yesterday %[1]s\", or a date", form)
	}
	return Moment{Time: t}, nil
}

// The numbers that ParseTime takes for Julian days and for Unix seconds: those of 1970 and of 1973 on. What is meant
// as a year or as a date without hyphens is neither.
const (
	leastJulian = 2440587.5 // 1970-01-01
	mostJulian  = 5373484.5
	leastSecond = 1e8
	mostSecond  = 1e11
)

// ParseTime parses a time that others are compared with: in the forms of Parse, but for revisions, and in those of
// SQLite's date functions. A number is one of Unix seconds, or one of Julian days, which julianday returns in
// milliseconds. A time of day may be still to come.
func ParseTime(text string, now time.Time) (time.Time, error) {
	form := strings.ToLower(strings.TrimSpace(text))
	if n, err := strconv.ParseFloat(form, 64); err == nil {
		switch {
		case n >= leastJulian && n < mostJulian:
			const milliseconds = 24 * 60 * 60 * 1000
			return time.UnixMilli(int64(math.Round((n - leastJulian) * milliseconds))).In(now.Location()), nil
		case n >= leastSecond && n < mostSecond:
			return unix(n).In(now.Location()), nil
		}
	}
	t, _, err := parse(form, now)
	if err != nil {
		return t, fmt.Errorf("%.80q: %w", text, err)
	}
	return t, nil
}

// ParseDuration parses a duration as Go writes it, such as 1h30m, or with days, weeks and years,
// such as 90d or 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a time such as 90d, 12h, 5m or 1h30m", text)
	}
	return time.Duration(d), nil
}

// unix returns the time of Unix seconds, in microseconds: a float64 has no more digits.
func unix(seconds float64) time.Time { return time.UnixMicro(int64(math.Round(seconds * 1e6))) }

// errForm is the error for a text that has none of the forms.
var errForm = errors.New("this is no time")

// parse parses the forms that Parse and ParseTime have in common. isOfToday says that it is a time of day without a
// date.
func parse(text string, now time.Time) (t time.Time, isOfToday bool, err error) {
	if text == "now" {
		return now, false, nil
	}
	if seconds, found := strings.CutPrefix(text, "@"); found {
		if n, err := strconv.ParseFloat(seconds, 64); err == nil && n >= leastSecond && n < mostSecond {
			return unix(n).In(now.Location()), false, nil
		}
		return t, false, errForm
	}
	if age, err := ParseDuration(strings.TrimPrefix(text, "-")); err == nil && age >= 0 && isDuration(text) {
		return now.Add(-age), false, nil
	}
	day, rest, isOfToday := cutDay(text)
	clock, location, ok := cutZone(rest, now.Location())
	if !ok || isOfToday && clock == "" {
		return t, false, errForm
	}
	switch at := now.In(location); day {
	case "today":
		day = at.Format(time.DateOnly)
	case "yesterday":
		y, m, d := at.Date()
		day = time.Date(y, m, d-1, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
	}
	layout := time.DateOnly
	switch strings.Count(clock, ":") {
	case 1:
		layout += " 15:04"
	case 2:
		layout += " 15:04:05" // and a fraction, if there is one
	}
	shown, err := time.Parse(layout, strings.TrimSpace(day+" "+clock))
	if err != nil {
		return t, false, errForm
	}
	t, err = resolve(shown, location, clock == "")
	return t, isOfToday, err
}

// isDuration reports whether a duration has a unit, as 0 has none, and no sign but that of what is before now.
func isDuration(text string) bool { return text[0] != '+' && text[len(text)-1] > '9' }

// cutDay returns the day that a text begins with: a date, today or yesterday, or today for a time of day. rest is the
// time of day, with its zone.
func cutDay(text string) (day, rest string, isOfToday bool) {
	for _, word := range []string{"today", "yesterday"} {
		if rest, found := strings.CutPrefix(text, word); found && (rest == "" || rest[0] == ' ') {
			return word, strings.TrimSpace(rest), false
		}
	}
	const date = len(time.DateOnly)
	switch {
	case len(text) < date || text[4] != '-' || text[7] != '-':
		return "today", text, true
	case len(text) == date:
		return text, "", false
	case text[date] == 't' || text[date] == ' ':
		return text[:date], strings.TrimSpace(text[date+1:]), false
	}
	return text, "", false
}

// cutZone returns a time of day without its zone, and the zone, which is the given one if it has none.
func cutZone(text string, of *time.Location) (clock string, location *time.Location, ok bool) {
	at := strings.IndexAny(text, "+-z")
	if at < 0 {
		return text, of, true
	}
	layout := "Z07:00"
	if !strings.Contains(text[at:], ":") {
		layout = "Z0700"
	}
	zone, err := time.Parse(layout, strings.ToUpper(text[at:]))
	_, offset := zone.Zone()
	// The location of zone may be the local one, which has another offset at another time.
	return strings.TrimSpace(text[:at]), time.FixedZone("", offset), err == nil && at > 0
}

// resolve returns when the clocks of a location show a time, which is given in UTC. A time that they show twice or
// never is an error, unless it is the first of a day: a day begins once.
func resolve(shown time.Time, in *time.Location, isDay bool) (time.Time, error) {
	// No location has changed its offset twice in two days.
	reading := func(days int) (t time.Time, isShown bool) {
		_, offset := shown.AddDate(0, 0, days).In(in).Zone()
		t = shown.Add(-time.Duration(offset) * time.Second).In(in)
		_, is := t.Zone()
		return t, is == offset
	}
	before, isBefore := reading(-1)
	after, isAfter := reading(1)
	switch {
	case before.Equal(after), isBefore && !isAfter, isDay && isBefore == isAfter:
		return before, nil
	case isAfter && !isBefore:
		return after, nil
	}
	why := "clocks show this time twice, as they are set back"
	if !isBefore {
		why = "clocks never show this time, as they are set forward"
		before, after = after, before
	}
	return time.Time{}, fmt.Errorf("%s: write %s or %s", why, before.Format(time.RFC3339Nano),
		after.Format(time.RFC3339Nano))
}

// IsZero reports whether the moment is before all changes, as one is that nobody has set.
func (m Moment) IsZero() bool { return m == Moment{} }

// Covers reports whether a change of a revision and a time was made until the moment: a time means the last revision
// whose time is not after it.
func (m Moment) Covers(revision int64, made time.Time) bool {
	if m.Time.IsZero() {
		return revision <= m.Revision
	}
	return !made.After(m.Time)
}

// String returns the moment for people: a time in its zone, in seconds. Parse reads it.
func (m Moment) String() string {
	if m.Time.IsZero() {
		return revisionPrefix + strconv.FormatInt(m.Revision, 10)
	}
	return m.Time.Format(time.RFC3339)
}

// Selector returns the moment as requests have it, such as field selectors: a time in UTC, in microseconds.
func (m Moment) Selector() string {
	switch {
	case !m.Time.IsZero():
		return m.Time.UTC().Format("2006-01-02T15:04:05.999999Z07:00")
	case m.Revision < leastUnix:
		return strconv.FormatInt(m.Revision, 10)
	}
	return m.String()
}
