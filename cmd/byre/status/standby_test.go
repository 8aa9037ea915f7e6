package status

import (
	"strings"
	"testing"
)

// TestStatus_Standby reads the metrics of a server with --standby.
func TestStatus_Standby(t *testing.T) {
	t.Parallel()
	const info = `byre_store_info{kind="SQLite",database="byre.db",schema="1",retention="",retention_changes=""} 1
byre_lease_acquired_timestamp_seconds{holder="one-A",generation="3"} 1.7e+09
`
	const gauges = info + "# TYPE byre_lease_standby_revision gauge\n# TYPE byre_lease_standby_age_seconds gauge\n"
	alone, followed, lost := Status{Server: &Server{}}, Status{Server: &Server{}}, Status{Server: &Server{}}
	for s, text := range map[*Status]string{
		&alone:    info,
		&followed: gauges + "byre_lease_standby_revision{standby=\"two-B\"} 231\nbyre_lease_standby_age_seconds{standby=\"two-B\"} 3.2\n",
		&lost:     gauges + "byre_lease_standby_revision{standby=\"two-B\"} 231\nbyre_lease_standby_age_seconds{standby=\"two-B\"} 95\n",
	} {
		if err := s.addMetrics([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if alone.Database.Standby != nil || alone.Database.LeaseHolder != "one-A" {
		t.Errorf("without a standby: %+v", alone.Database)
	}
	if got := followed.Database.Standby; got == nil || *got != (Standby{Name: "two-B", Revision: 231, AgeSeconds: 3}) || len(followed.Alarms) > 0 {
		t.Errorf("with a standby: %+v, %q", got, followed.Alarms)
	}
	if len(lost.Alarms) != 1 || !strings.Contains(lost.Alarms[0], "the standby two-B has not told of its copy for 1m35s") {
		t.Errorf("with a standby that is gone: %q", lost.Alarms)
	}
}
