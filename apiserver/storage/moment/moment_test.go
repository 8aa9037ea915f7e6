package moment_test

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"byre/apiserver/storage/moment"
)

func location(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// In Berlin clocks are set forward at 2026-03-29T02:00:00+01:00, and back at 2026-10-25T03:00:00+02:00.
func TestParse_TakesEachForm(t *testing.T) {
	t.Parallel()
	berlin := location(t, "Europe/Berlin")
	var now time.Time // that of the last row which has one
	for _, test := range []struct{ now, text, want string }{
		{"2026-11-30T15:30:00+01:00", "4711", "revision 4711"},
		{"", "0", "revision 0"},
		{"", "1699999999", "revision 1699999999"},
		{"", "Revision 1764500000", "revision 1764500000"},
		{"", "1764500000", "2025-11-30T11:53:20+01:00"},
		{"", "1764500000.25", "2025-11-30T11:53:20.25+01:00"},
		{"", "@1764500000.25", "2025-11-30T11:53:20.25+01:00"},
		{"", "@946684800", "2000-01-01T01:00:00+01:00"},
		{"", "now", "2026-11-30T15:30:00+01:00"},
		{"", "2h", "2026-11-30T13:30:00+01:00"},
		{"", " -2h ", "2026-11-30T13:30:00+01:00"},
		{"", "-1h30m", "2026-11-30T14:00:00+01:00"},
		{"", "1d12h", "2026-11-29T03:30:00+01:00"},
		{"", "0s", "2026-11-30T15:30:00+01:00"},
		{"", "14:00", "2026-11-30T14:00:00+01:00"},
		{"", "9:05:07", "2026-11-30T09:05:07+01:00"},
		{"", "9:05:07.125", "2026-11-30T09:05:07.125+01:00"},
		{"", "14:00:05.1", "2026-11-30T14:00:05.1+01:00"},
		{"", "9:05 +0100", "2026-11-30T09:05:00+01:00"},
		{"", "9:05-02:30", "2026-11-30T09:05:00-02:30"},
		{"", "14:00Z", "2026-11-30T14:00:00Z"},
		{"", "14:00 +0530", "2026-11-30T14:00:00+05:30"},
		{"", "today", "2026-11-30T00:00:00+01:00"},
		{"", "Yesterday", "2026-11-29T00:00:00+01:00"},
		{"", "yesterday 14:00", "2026-11-29T14:00:00+01:00"},
		{"", "today 16:00", "2026-11-30T16:00:00+01:00"},
		{"", "2026-11-01", "2026-11-01T00:00:00+01:00"},
		{"", "2026-11-01 14:00", "2026-11-01T14:00:00+01:00"},
		{"", "2026-07-01T14:00:01.5", "2026-07-01T14:00:01.5+02:00"},
		{"", "2026-07-01 14:00:01 +01:00", "2026-07-01T14:00:01+01:00"},
		{"", "2026-07-01t14:00z", "2026-07-01T14:00:00Z"},
		{"", "2026-07-01T14:00:01.000001-02:30", "2026-07-01T14:00:01.000001-02:30"},
		// The day after the clocks were set: durations are exact, and days are those of the calendar.
		{"2026-03-30T02:30:00+02:00", "1d", "2026-03-29T01:30:00+01:00"},
		{"", "yesterday 03:00", "2026-03-29T03:00:00+02:00"},
		{"", "yesterday 01:59:59", "2026-03-29T01:59:59+01:00"},
		{"", "yesterday", "2026-03-29T00:00:00+01:00"},
		{"", "2026-03-29 02:30+01:00", "2026-03-29T02:30:00+01:00"},
		{"", "2026-10-25 01:59:59", "2026-10-25T01:59:59+02:00"},
		{"", "2026-10-25 03:00", "2026-10-25T03:00:00+01:00"},
		{"", "2026-10-25 02:30 +02:00", "2026-10-25T02:30:00+02:00"},
		{"", "2026-10-25 02:30:00Z", "2026-10-25T02:30:00Z"},
		// Refused.
		{"", "2026-03-29 02:30",
			"never show this time, as they are set forward: write 2026-03-29T01:30:00+01:00 or 2026-03-29T03:30:00+02:00"},
		{"", "yesterday 02:00", "write 2026-03-29T01:00:00+01:00 or 2026-03-29T03:00:00+02:00"},
		{"", "2026-10-25 02:00",
			"show this time twice, as they are set back: write 2026-10-25T02:00:00+02:00 or 2026-10-25T02:00:00+01:00"},
		{"2026-10-26T12:00:00+01:00", "yesterday 02:59:59.5",
			"write 2026-10-25T02:59:59.5+02:00 or 2026-10-25T02:59:59.5+01:00"},
		{"2026-11-30T15:30:00+01:00", "15:31", `15:31 is still to come: write "yesterday 15:31", or a date`},
		{"", "15:00Z", "is still to come"},
		{"", "", `"" is neither a revision nor a time: write a revision, a time such as 14:00, "yesterday`},
		{"", "soon", "neither a revision nor a time"},
		{"", "-1", "neither"},
		{"", "-0", "neither"},
		{"", "+2h", "neither"},
		{"", "--2h", "neither"},
		{"", "2.5", "neither"},
		{"", "99999999999", "neither"},
		{"", "@12", "neither"},
		{"", "z", "neither"},
		{"", "yesterdays", "neither"},
		{"", "yesterday z", "neither"},
		{"", "tomorrow", "neither"},
		{"", "2026", "revision 2026"},
		{"", "2026-11", "neither"},
		{"", "2026-02-30", "neither"},
		{"", "2026-11-29Z", "neither"},
		{"", "2026-11-29 25:00", "neither"},
		{"", "2026-11-29 14", "neither"},
		{"", "24:00", "neither"},
		{"", "14:00 Berlin", "neither"},
		{"", "revision -1", "neither"},
		{"", strings.Repeat("x", 1<<20), "neither"},
	} {
		if test.now != "" {
			now = at(t, test.now)
		}
		m, err := moment.Parse(test.text, now.In(berlin))
		got := m.Time.Format(time.RFC3339Nano)
		switch {
		case err != nil:
			got = err.Error()
		case m.Time.IsZero():
			got = m.String()
		}
		if got != test.want && (err == nil || !strings.Contains(got, test.want) || len(got) > 500) {
			t.Errorf("%.50q at %s is %s, want %s", test.text, now, got, test.want)
		}
	}
}

// Each time as clocks show it is that time, or is refused, and that time is one of the two that the error names. A day
// begins at its first moment.
func TestParse_KnowsEachChangeOfTheClocks(t *testing.T) {
	t.Parallel()
	for name, begins := range map[string][2]string{
		"Europe/Berlin":       {"2026-03-28T00:00:00Z", "2026-10-24T00:00:00Z"},
		"America/St_Johns":    {"2026-03-07T12:00:00Z", "2026-10-31T12:00:00Z"},
		"Australia/Lord_Howe": {"2026-04-03T12:00:00Z", "2026-10-02T12:00:00Z"}, // by half an hour
		"America/Sao_Paulo":   {"2018-02-17T00:00:00Z", "2018-11-03T12:00:00Z"}, // at midnight
		"America/Havana":      {"2026-03-07T12:00:00Z", "2026-10-31T12:00:00Z"}, // at midnight, and back to midnight
		"Pacific/Apia":        {"2011-12-29T00:00:00Z", "2011-12-30T00:00:00Z"}, // without 2011-12-30
	} {
		in := location(t, name)
		for _, begin := range begins {
			refused, day := 0, ""
			for n := range 3 * 24 * 4 {
				want := at(t, begin).Add(time.Duration(n) * 15 * time.Minute).In(in)
				m, err := moment.Parse(want.Format("2006-01-02 15:04"), want.AddDate(0, 1, 0))
				if err != nil && strings.Contains(err.Error(), want.Format(time.RFC3339)) {
					refused++
				} else if !m.Time.Equal(want) || err != nil {
					t.Errorf("%s: %s is %s, %v", name, want, m, err)
				}
				if date := want.Format(time.DateOnly); date != day {
					if m, err := moment.Parse(date, want); day != "" && (!m.Time.Equal(want) || err != nil) {
						t.Errorf("%s: the day %s begins at %s, not %s: %v", name, date, want, m, err)
					}
					day = date
				}
			}
			if refused > 8 {
				t.Errorf("%s: %d times were refused after %s", name, refused, begin)
			}
		}
	}
}

func TestParseTime_TakesWhatTimesAreComparedWith(t *testing.T) {
	t.Parallel()
	now := at(t, "2026-11-30T09:30:00Z")
	for text, want := range map[string]string{
		"2026-11-29 07:50": "2026-11-29T07:50:00Z", "2026-11-29 07:50:01": "2026-11-29T07:50:01Z",
		"2026-11-29T07:50:01.000002Z": "2026-11-29T07:50:01.000002Z", "2026-11-29": "2026-11-29T00:00:00Z",
		"2026-11-29 07:50:01.125+01:00": "2026-11-29T06:50:01.125Z",
		"14:00":                         "2026-11-30T14:00:00Z", "now": "2026-11-30T09:30:00Z", "-2h": "2026-11-30T07:30:00Z",
		"1764500000": "2025-11-30T10:53:20Z", "1764500000.0": "2025-11-30T10:53:20Z",
		"1764500000.123456": "2025-11-30T10:53:20.123456Z", "1.7645e9": "2025-11-30T10:53:20Z",
		"2461009.89583333": "2025-11-30T09:29:59.999712Z", "2440587.5": "1970-01-01T00:00:00Z",
	} {
		got, err := moment.ParseTime(text, now)
		wanted := at(t, want)
		if strings.HasPrefix(text, "24") { // Julian days are in milliseconds
			wanted = wanted.Round(time.Millisecond)
		}
		if !got.Equal(wanted) || err != nil {
			t.Errorf("%s is %s, %v; want %s", text, got.Format(time.RFC3339Nano), err, want)
		}
	}
	for _, text := range []string{"", "0", "1", "2026", "20261129", "202611290750", "-1764500000", "1e300", "inf", "nan",
		"revision 5", "2026-13-01", "2026-02-30T00:00:00Z", "noon"} {
		if got, err := moment.ParseTime(text, now); err == nil || !strings.Contains(err.Error(), "this is no time") {
			t.Errorf("%q is %s, %v", text, got, err)
		}
	}
}

// What prints a moment is what Parse reads, whatever its number.
func TestMoment_IsReadAsItIsPrinted(t *testing.T) {
	t.Parallel()
	now := at(t, "2026-11-30T09:30:00.123456+05:30")
	for _, m := range []moment.Moment{{}, {Revision: 7}, {Revision: 1_800_000_000}, {Revision: 1<<63 - 1}, {Time: now}} {
		if got, err := moment.Parse(m.Selector(), now.UTC()); got.Revision != m.Revision || !got.Time.Equal(m.Time) ||
			err != nil {
			t.Errorf("%s is read as %s, %v", m.Selector(), got, err)
		}
		if got, err := moment.Parse(m.String(), now.UTC()); got.Revision != m.Revision ||
			!got.Time.Equal(m.Time.Truncate(time.Second)) || err != nil {
			t.Errorf("%s is read as %s, %v", m, got, err)
		}
	}
	if got := (moment.Moment{Time: now}).String(); got != "2026-11-30T09:30:00+05:30" {
		t.Error(got)
	}
}

func TestParseDuration_TakesGosFormAndDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"2d": 48 * time.Hour, "1d12h": 36 * time.Hour,
		"1.5h": 90 * time.Minute, "0": 0, "1y": 365 * 24 * time.Hour} {
		if got, err := moment.ParseDuration(text); got != want || err != nil {
			t.Errorf("%s is %v, %v; want %v", text, got, err, want)
		}
	}
}
