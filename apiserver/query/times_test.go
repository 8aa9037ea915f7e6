package query

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
)

// timeText is a time as a statement has it, and as Go does.
type timeText struct {
	sql  string
	time time.Time
}

// timeTexts returns a time in each form that SQL takes, as exact as the form is.
func timeTexts(t time.Time) (all []timeText) {
	const date, minute, second, milli, micro = time.DateOnly, "2006-01-02 15:04", time.DateTime,
		"2006-01-02 15:04:05.000", "2006-01-02 15:04:05.000000"
	quoted := func(layout string) string { return "'" + t.Format(layout) + "'" }
	exactly := map[string]time.Duration{date: 24 * time.Hour, minute: time.Minute, second: time.Second,
		milli: time.Millisecond, micro: time.Microsecond}
	for layout, digit := range exactly {
		at := t.Truncate(digit)
		for _, sql := range []string{quoted(layout), quoted(strings.Replace(layout, " ", "T", 1)),
			quoted(layout + "Z"), quoted(layout + " Z"), "'" + t.In(time.FixedZone("", 5400)).Format(layout+"-07:00") + "'",
			"(SELECT " + quoted(layout) + ")"} {
			if layout == date && sql != quoted(date) {
				continue
			}
			all = append(all, timeText{sql, at})
		}
	}
	seconds, whole := strconv.FormatInt(t.Unix(), 10), t.Truncate(time.Second)
	for _, sql := range []string{seconds, "'" + seconds + "'", "'@" + seconds + "'", "datetime(" + seconds + ", 'unixepoch')",
		"unixepoch(" + quoted(second) + ")", "strftime('%s', " + quoted(second) + ")", "julianday(" + quoted(second) + ")",
		"datetime(" + quoted(second) + ")", "strftime('%Y-%m-%dT%H:%M:%SZ', " + quoted(second) + ")",
		"datetime(" + quoted(second) + ", '+1 hour', '-60 minutes')"} {
		all = append(all, timeText{sql, whole})
	}
	return append(all, timeText{"date(" + quoted(second) + ")", t.Truncate(24 * time.Hour)},
		timeText{"datetime(" + quoted(milli) + ", 'subsec')", t.Truncate(time.Millisecond)},
		timeText{"unixepoch(" + quoted(milli) + ", 'subsec')", t.Truncate(time.Millisecond)},
		timeText{fmt.Sprintf("'%d.%06d'", t.Unix(), t.Nanosecond()/1000), t})
}

// operators of SQL, as Go's Compare has them.
var comparisons = map[string]func(int) bool{
	"=": func(c int) bool { return c == 0 }, "<>": func(c int) bool { return c != 0 },
	"<": func(c int) bool { return c < 0 }, "<=": func(c int) bool { return c <= 0 },
	">": func(c int) bool { return c > 0 }, ">=": func(c int) bool { return c >= 0 },
}

// timed is a row with two times, of which both may be equal to another's.
type timed struct {
	name        string
	first, when time.Time
}

// timedEvents stores Events with times, some of which are equal and differ in their texts.
func (f *fixture) timedEvents(random *rand.Rand) (all []timed) {
	f.Helper()
	base := time.Date(2026, 10, 28, 22, 30, 0, 0, time.UTC)
	for i := range 60 {
		e := timed{name: fmt.Sprintf("e%02d", i),
			first: base.Add(time.Duration(random.IntN(8)) * 30 * time.Minute),
			when: base.Add(time.Duration(random.IntN(8))*30*time.Minute +
				[]time.Duration{0, 0, time.Microsecond, 500 * time.Millisecond}[random.IntN(4)]),
		}
		text := e.when.Format([]string{time.RFC3339Nano, "2006-01-02T15:04:05.000000Z07:00"}[random.IntN(2)])
		f.write("events", "shop", e.name, fmt.Sprintf(
			`{"kind":"Event","apiVersion":"v1","metadata":{"name":%q,"namespace":"shop"},"involvedObject":{"kind":"Pod","apiVersion":"v1","namespace":"shop","name":"p"},"firstTimestamp":%q,"eventTime":%q}`,
			e.name, e.first.Format(time.RFC3339), text))
		all = append(all, e)
	}
	f.write("events", "shop", "none",
		`{"kind":"Event","apiVersion":"v1","metadata":{"name":"none","namespace":"shop"},"involvedObject":{}}`)
	return all
}

// rows are the names of what is selected, a line each.
func rows(all []timed, selects func(timed) bool) string {
	var names []string
	for _, e := range all {
		if selects(e) {
			names = append(names, strconv.Quote(e.name))
		}
	}
	return strings.Join(names, "\n")
}

// A column of the type time compares as Go's times do, in each position of a statement, with each form of a constant.
func TestTimes_CompareAsInGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	random := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // a test
	all := f.timedEvents(random)
	revision := f.change("ann", sqlstore.Create, "pods", "shop", "web", podText("shop", "web", "n1"))
	const order = " ORDER BY name"
	positions := []string{
		"SELECT name FROM events WHERE event_time %[1]s %[2]s" + order,
		"SELECT name FROM events WHERE NOT (NOT event_time %[1]s %[2]s) AND namespace = 'shop'" + order,
		"WITH e AS (SELECT name, event_time AS t FROM events) SELECT name FROM e WHERE t %[1]s %[2]s" + order,
		"SELECT name FROM (SELECT name, event_time %[1]s %[2]s AS found FROM events) WHERE found" + order,
		"SELECT name FROM events WHERE CASE WHEN event_time %[1]s %[2]s THEN 1 END" + order,
		"SELECT e.name FROM (SELECT %[2]s AS t) c JOIN events e ON e.event_time %[1]s c.t ORDER BY 1",
		"SELECT name FROM events GROUP BY name, event_time HAVING event_time %[1]s %[2]s" + order,
		"SELECT name FROM events WHERE (event_time, 1) %[1]s (%[2]s, 1)" + order,
		fmt.Sprintf("SELECT name FROM events(%d)", revision) + " WHERE event_time %[1]s %[2]s" + order,
		"SELECT name FROM events_history WHERE event_time %[1]s %[2]s" + order,
	}
	for n := range 5 {
		at := all[n].when
		for _, c := range timeTexts(at) {
			for operator, holds := range comparisons {
				sql := fmt.Sprintf(positions[random.IntN(len(positions))], operator, c.sql)
				f.expect("admin", sql, rows(all, func(e timed) bool { return holds(e.when.Compare(c.time)) }))
			}
			mirrored := map[string]string{"<": ">", ">=": "<="}
			for operator, other := range mirrored {
				f.expect("admin", fmt.Sprintf("SELECT name FROM events WHERE %s %s event_time", c.sql, operator)+order,
					rows(all, func(e timed) bool { return comparisons[other](e.when.Compare(c.time)) }))
			}
		}
		low, high := timeTexts(at), timeTexts(all[n+12].when)
		from, to := low[random.IntN(len(low))], high[random.IntN(len(high))]
		f.expect("admin", fmt.Sprintf("SELECT name FROM events WHERE event_time BETWEEN %s AND %s", from.sql, to.sql)+order,
			rows(all, func(e timed) bool { return !e.when.Before(from.time) && !e.when.After(to.time) }))
		f.expect("admin", fmt.Sprintf("SELECT name FROM events WHERE event_time IN (%s, %s)", from.sql, to.sql)+order,
			rows(all, func(e timed) bool { return e.when.Equal(from.time) || e.when.Equal(to.time) }))
		f.expect("admin", fmt.Sprintf("SELECT name FROM events WHERE event_time NOT IN (%s, %s)", from.sql, to.sql)+order,
			rows(all, func(e timed) bool { return !e.when.Equal(from.time) && !e.when.Equal(to.time) }))
		got, err := f.ask("admin", "SELECT name FROM events WHERE event_time >= ?1 AND event_time < ?2"+order,
			strconv.Quote(at.Format("2006-01-02 15:04")), strconv.FormatInt(to.time.Unix(), 10))
		if want := rows(all, func(e timed) bool {
			return !e.when.Before(at.Truncate(time.Minute)) && e.when.Before(to.time.Truncate(time.Second))
		}); got != want || err != nil {
			t.Errorf("from %s to %s: %s, %v; want %s", at, to.time, got, err, want)
		}
	}
}

// Two columns of the type time compare as times, in sorts, sets and joins too. What takes the text of a time has it.
func TestTimes_OfColumnsCompareAsInGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	all := f.timedEvents(rand.New(rand.NewPCG(9, 10))) //nolint:gosec // a test
	for operator, holds := range comparisons {
		f.expect("admin", "SELECT name FROM events WHERE first_timestamp "+operator+" event_time ORDER BY name",
			rows(all, func(e timed) bool { return holds(e.first.Compare(e.when)) }))
		pairs := 0
		for _, a := range all {
			for _, b := range all {
				if holds(a.when.Compare(b.first)) {
					pairs++
				}
			}
		}
		f.expect("admin",
			"SELECT count(*) FROM events a JOIN events b ON a.event_time "+operator+" b.first_timestamp", fmt.Sprint(pairs))
	}
	distinct := map[time.Time]bool{}
	both := map[time.Time]bool{}
	for _, e := range all {
		distinct[e.when], both[e.when], both[e.first] = true, true, true
	}
	f.expect("admin", "SELECT count(DISTINCT event_time), (SELECT count(*) FROM (SELECT 1 FROM events WHERE event_time IS NOT NULL GROUP BY event_time)) FROM events",
		fmt.Sprint(len(distinct), len(distinct)))
	f.expect("admin", "SELECT count(*) FROM (SELECT event_time FROM events WHERE name <> 'none' UNION SELECT first_timestamp FROM events WHERE name <> 'none')",
		fmt.Sprint(len(both)))
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b timed) int { return a.when.Compare(b.when) })
	every := func(timed) bool { return true }
	f.expect("admin", "SELECT name FROM events WHERE name <> 'none' ORDER BY event_time, name", rows(sorted, every))
	f.expect("admin", "SELECT name FROM events WHERE event_time IN (SELECT first_timestamp FROM events) ORDER BY name",
		rows(all, func(e timed) bool {
			return slices.ContainsFunc(all, func(other timed) bool { return other.first.Equal(e.when) })
		}))
	last := sorted[len(sorted)-1].when
	f.expect("admin", "SELECT count(*) > 0 FROM events WHERE event_time = (SELECT max(event_time) FROM events) AND unixepoch(event_time) = "+
		fmt.Sprint(last.Unix()), "1")
	// An expression has the collation that it is given.
	f.expect("admin", "SELECT max(event_time) COLLATE time > '2026-10-28 22:31', max(event_time) COLLATE time < '2026-10-31' FROM events", "1 1")
	day := rows(all, func(e timed) bool { return e.when.Day() == 28 })
	for _, text := range []string{"event_time LIKE '2026-10-28T%'", "substr(event_time, 1, 10) = '2026-10-28'",
		"date(event_time) = '2026-10-28'", "event_time < '2026-10-28U' COLLATE BINARY"} {
		f.expect("admin", "SELECT name FROM events WHERE "+text+" ORDER BY name", day)
	}
	// What is relative is relative to the beginning of the query, in UTC.
	for _, equal := range [][2]string{{"'14:00'", "date() || ' 14:00'"}, {"'yesterday 14:00'", "date('now', '-1 day') || ' 14:00'"},
		{"time('14:00')", "date() || ' 14:00'"}, {"'today'", "date()"}, {"ago('2h')", "'-2h'"}, {"ago('1d')", "ago('24h')"}} {
		f.expect("admin", fmt.Sprintf("SELECT (SELECT count(*) FROM changes WHERE time > %s) = (SELECT count(*) FROM changes WHERE time > %s)",
			equal[0], equal[1]), "1")
	}
}

// The plan of a comparison with the time of a change changes no row, on each database.
func TestTimes_OfChangesCompareAsInGo(t *testing.T) {
	t.Parallel()
	drivers := map[string]func(*testing.T) sqlstore.Driver{"model": func(*testing.T) sqlstore.Driver {
		// Each change is 47 minutes after the one before.
		m, start := storetest.NewModel(), time.Now().Add(-20*time.Hour)
		var calls atomic.Int64
		m.Clock = func() time.Time { return start.Add(time.Duration(calls.Add(1)) * 47 * time.Minute) }
		return m
	}}
	for _, kind := range dbtest.Kinds() {
		drivers[kind.Name] = func(t *testing.T) sqlstore.Driver { return kind.Open(t) }
	}
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := open(t)
			t.Cleanup(func() { _ = driver.Close() })
			f := newFixtureOf(t, driver)
			f.namespace("shop")
			for i := range 20 {
				f.change("ann", sqlstore.Create, "pods", "shop", fmt.Sprint("p", i), podText("shop", fmt.Sprint("p", i), "n"))
			}
			recorded, err := f.ask("admin", "SELECT time, revision FROM changes ORDER BY revision")
			if err != nil {
				t.Fatal(err)
			}
			var all []timed
			for line := range strings.Lines(recorded) {
				quoted, revision, _ := strings.Cut(strings.TrimSpace(line), " ")
				at, err := time.Parse(`"`+time.RFC3339Nano+`"`, quoted)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, timed{name: revision, when: at})
			}
			revisions := func(selects func(timed) bool) string { return strings.ReplaceAll(rows(all, selects), `"`, "") }
			for _, e := range []timed{all[7], all[len(all)-1]} {
				for _, c := range timeTexts(e.when.UTC()) {
					for operator, holds := range comparisons {
						want := revisions(func(e timed) bool { return holds(e.when.Compare(c.time)) })
						f.expect("admin", fmt.Sprintf("SELECT revision FROM changes WHERE time %s %s ORDER BY revision", operator, c.sql),
							want)
					}
					f.expect("admin", fmt.Sprintf(
						"SELECT count(*) FROM pods_history WHERE valid_from >= %s AND valid_to IS NULL", c.sql),
						fmt.Sprint(len(strings.Fields(revisions(func(e timed) bool {
							return !e.when.Before(c.time) && e.name != all[0].name
						})))))
				}
			}
		})
	}
}

// What is no time is refused wherever a statement compares a time with it.
func TestTimes_RefuseWhatIsNone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.timedEvents(rand.New(rand.NewPCG(1, 2))) //nolint:gosec // a test
	for _, none := range []string{"'yesterdy'", "'2026-13-01'", "'2026'", "''", "5", "20261028", "1764500000000", "'T'",
		"'e01'", "2.5", "'2026-10-28T25:00:00Z'", "'2026-02-30T00:00:00Z'", "printf('%.200c', ' ') || '2026-10-28'"} {
		for _, sql := range []string{
			"SELECT name FROM events WHERE event_time > %s", "SELECT name FROM events WHERE %s < event_time",
			"SELECT name FROM events WHERE event_time BETWEEN '2026-10-28' AND %s",
			"SELECT name FROM events WHERE event_time IN ('2026-10-28', %s)", "SELECT event_time = %s FROM events",
			"SELECT CASE event_time WHEN %s THEN 1 END FROM events", "SELECT max(event_time) COLLATE time > CAST(%s AS TEXT) FROM events",
			"SELECT name FROM events WHERE event_time > (SELECT %s)", "SELECT event_time FROM events UNION SELECT %s || ''",
			"SELECT who FROM changes WHERE time >= %s", "SELECT name FROM events_history WHERE valid_from < %s",
			"SELECT message FROM events_about WHERE first > %s", "SELECT count(*) FROM events WHERE event_time <> %s",
		} {
			_, err := f.ask("admin", fmt.Sprintf(sql, none))
			if got, message := code(err); got != 400 || !strings.Contains(message, "this is no time") ||
				!strings.Contains(message, "Unix seconds") || len(message) > 600 {
				t.Errorf("%s is answered with %d %s", fmt.Sprintf(sql, none), got, message)
			}
		}
	}
	for _, sql := range []string{"SELECT * FROM nodes WHERE created > 'soon'", "SELECT * FROM nodes WHERE 7 = created"} {
		_, err := f.ask("admin", sql) // there is no row
		if got, message := code(err); got != 400 {
			t.Errorf("%s is answered with %d %s", sql, got, message)
		}
	}
	_, err := f.ask("admin", "SELECT name FROM events WHERE event_time > ?1", `"soon"`)
	if got, message := code(err); got != 400 || !strings.Contains(message, `"soon"`) {
		t.Errorf("a parameter that is no time: %d %s", got, message)
	}
	f.expect("admin", "SELECT count(*) FROM events WHERE event_time > NULL", "0")
	f.expect("admin", "SELECT count(*) FROM events WHERE event_time > 'z' COLLATE BINARY", "0")
	f.expect("admin", "SELECT count(*) FROM events WHERE event_time IS NULL", "1")
}

// A moment of SQL has each form of a moment, in UTC.
func TestPast_TakesEachFormOfAMoment(t *testing.T) {
	t.Parallel()
	m, start := storetest.NewModel(), time.Now()
	var later atomic.Int64
	m.Clock = func() time.Time { return start.Add(time.Duration(later.Load())) }
	f := newFixtureOf(t, m)
	f.change("ann", sqlstore.Create, "nodes", "", "n1", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)
	later.Store(int64(3 * time.Hour))
	f.change("ann", sqlstore.Create, "nodes", "", "n2", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n2"}}`)
	utc := start.Add(time.Hour).UTC()
	for _, at := range []string{"'2h'", "'-2h'", "unixepoch('now', '+1 hour')", "datetime('now', '+1 hour')",
		"'" + utc.Format("2006-01-02 15:04") + "'", "'" + utc.Format(time.RFC3339) + "'", "'@" + strconv.FormatInt(utc.Unix(), 10) + "'"} {
		f.expect("admin", "SELECT name FROM nodes("+at+")", `"n1"`)
	}
	for _, sql := range []string{"SELECT * FROM nodes('soon')", "SELECT * FROM nodes('2026-13-01')", "SELECT * FROM nodes(2.5)"} {
		_, err := f.ask("admin", sql)
		if got, message := code(err); got != 400 || !strings.Contains(message, "neither a revision nor a time") {
			t.Errorf("%s: %d %s", sql, got, message)
		}
	}
}
