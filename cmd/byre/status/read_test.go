package status

import (
	"strings"
	"testing"
)

func TestRead_SaysTwoPrimaries(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"0": 0, "1": 1} {
		s := Status{Server: &Server{}}
		if err := s.addMetrics([]byte("# TYPE byre_store_refused_primaries gauge\nbyre_store_refused_primaries " + value + "\n")); err != nil {
			t.Fatal(err)
		}
		if len(s.Alarms) != want || want > 0 && !strings.Contains(s.Alarms[0], "two primaries") {
			t.Errorf("%s: %q", value, s.Alarms)
		}
	}
}
