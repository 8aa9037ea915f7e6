package robustness

import (
	"strings"
	"testing"
	"time"
)

// The page has a row for each group of faults: sums of what they counted, and the longest times.
func TestReport_GroupsFaults(t *testing.T) {
	t.Parallel()
	var r Report
	day := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	for _, result := range []Result{
		{Fault: "pg_dump three times", Acknowledged: 5, Unavailable: 2 * time.Second},
		{Fault: "VACUUM FULL three times", Acknowledged: 7, Unavailable: time.Second},
		{Fault: "a fault that no longer exists", Acknowledged: 100},
	} {
		result.Database = Postgres
		r.Add(&result, day)
	}
	tables := r.Tables()
	if want := "| VACUUM FULL, pg_dump, PostgreSQL's clock | postgres | 2 | 2 | 12 | all | 2.0 | 0.0 | 0 |\n"; !strings.HasSuffix(tables["faults"], "|\n"+want) {
		t.Errorf("no %q at the end of\n%s", want, tables["faults"])
	}
	if want := "2026-12-01: 2 runs of 2 kinds, "; !strings.HasPrefix(tables["summary"], want) {
		t.Errorf("the summary is %q, not %q…", tables["summary"], want)
	}
	for _, f := range Faults() {
		if f.Group == "" {
			t.Errorf("%q is in no group", f.Name)
		}
	}
}
