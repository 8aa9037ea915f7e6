package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"byre/e2e/document"
)

// The ratio is the median of the rounds' ratios: in a round in which the machine is slow,
// both servers are slow.
func TestRatio_IsTheMedianOfRounds(t *testing.T) {
	m := &measurement{Lower: true, Values: map[string][]float64{onSQLite: {1, 10, 2}, stock: {3, 30, 8}}}
	if got := m.ratio(onSQLite, stock); got != 3 {
		t.Errorf("ratio of the rounds is %v, want 3", got)
	}
	m = &measurement{Values: map[string][]float64{onSQLite: {4, 6}, stock: {2}}}
	if got := m.ratio(onSQLite, stock); got != 2.5 {
		t.Errorf("ratio of the medians is %v, want 2.5", got)
	}
}

func TestGoalTable_IsWritten(t *testing.T) {
	r := newResults("byre")
	r.suite = "standard"
	for target, value := range map[string]float64{onSQLite: 5, onPostgres: 15, stock: 20} {
		r.addDuration("list Pods by label", target, time.Duration(value)*time.Millisecond)
	}
	r.add("memory, idle", "MB", true, onSQLite, 81)
	got := goalTable(r)
	for _, want := range []string{
		"| list Pods by label | 4× | 5.00 ms | 4.00× |  | 15.0 ms | **1.33×, missed** |  | 20.0 ms |",
		"| memory, idle | ≤ 80 MB | 81.0 MB | **81.0 MB, missed** |  | not measured | | |  |",
		"| memory, with the Pods | ≤ 200 MB | not measured |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestTables_AreUpdated(t *testing.T) {
	r := newResults("byre")
	r.suite = "standard"
	r.add("figure", "s", true, onSQLite, 2)
	path := filepath.Join(t.TempDir(), "performance.md")
	text := "a\n<!-- bench: standard -->\nold\n<!-- bench end -->\nb\n<!-- bench: large -->\nkept\n<!-- bench end -->\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := document.Update(path, "bench", tables(r)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a\n<!-- bench: standard -->\n| | byre on SQLite |\n",
		"| figure | 2.00 s |\n<!-- bench end -->\nb\n", "\nkept\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// The table of costs has what package model reads: byre on PostgreSQL, and its store, in the fourth column.
func TestCosts_HaveTheStoresShare(t *testing.T) {
	r := newResults("byre")
	for _, suite := range []string{"standard", "large"} {
		r.suite = suite
		for target, value := range map[string]float64{onSQLite: 600, onPostgres: 700, stock: 1000} {
			r.add(costs[0], "µs", true, target, value)
			if target != onSQLite {
				r.add(costs[0]+" of the store", "µs", true, target, value/5)
			}
		}
	}
	_, rows, _ := strings.Cut(tables(r)["costs"], "|\n|---|---:|---:|---:|---:|---:|\n")
	want := "| " + costs[0] + " | 600 µs | 1.67 | 700 µs | 1.43 | 1000 µs |\n| " + costs[0] +
		" of the store |  | | 140 µs | 1.43 | 200 µs |\n"
	if rows != want {
		t.Errorf("the rows are\n%s, not\n%s", rows, want)
	}
}

func TestReadEvent_FindsItsSendTime(t *testing.T) {
	const mark = "sent-at-1700000000000000001"
	for name, body := range map[string]string{"line": "{" + mark + "}\n", "frame": "\x00\x00\x00\x1d{" + mark + "}"} {
		read := readLine
		if name == "frame" {
			read = readFrame
		}
		event, err := read(bufio.NewReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		if sent, ok := sentAt(event); !ok || sent.UnixNano() != 1700000000000000001 {
			t.Errorf("%s: sent at %v, %v", name, sent, ok)
		}
	}
	if _, ok := sentAt([]byte("nothing")); ok {
		t.Error("found a time where there is none")
	}
}

func TestContinueToken_IsFound(t *testing.T) {
	for list, want := range map[string]string{
		`{"metadata":{"resourceVersion":"7","continue":"abc"},"items":[]}`:       "abc",
		`{"metadata":{"resourceVersion":"7"},"items":[{"x":{"continue":"no"}}]}`: "",
	} {
		if got := continueToken([]byte(list)); got != want {
			t.Errorf("token of %s is %q, want %q", list, got, want)
		}
	}
}
