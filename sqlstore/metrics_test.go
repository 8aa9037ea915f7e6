package sqlstore_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
)

// Nothing is said of work that ends in time; of other work it is said first after two seconds,
// and then every ten.
func TestReport_OfWorkThatTakesLong(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		after, takes time.Duration
		want         []time.Duration
	}{
		{sqlstore.ReportAfter, 0, nil},
		{sqlstore.ReportAfter, sqlstore.ReportAfter - time.Nanosecond, nil},
		{sqlstore.ReportAfter, 25 * time.Second, []time.Duration{2 * time.Second, 12 * time.Second, 22 * time.Second}},
		{0, time.Second, []time.Duration{0}},
		{-time.Minute, 15 * time.Second, []time.Duration{0, 10 * time.Second}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got []time.Duration
			stop := sqlstore.ReportElapsed(test.after, sqlstore.ReportInLog, func(d time.Duration) { got = append(got, d) })
			time.Sleep(test.takes)
			stop()
			time.Sleep(time.Hour)
			if !slices.Equal(got, test.want) {
				t.Errorf("after %v, of work that takes %v: %v, want %v", test.after, test.takes, got, test.want)
			}
		})
	}
}
