package migrations

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// Each address of an endpoint is asked once, with each way to connect to it.
func TestPrimaries_AsksEachAddress(t *testing.T) {
	t.Parallel()
	pool, err := ParseDSN("host=a,b,/run port=1,2,3 user=u dbname=d sslmode=prefer")
	if err != nil {
		t.Fatal(err)
	}
	pool.ConnConfig.LookupFunc = func(_ context.Context, host string) ([]string, error) {
		return map[string][]string{"a": {"10.0.0.1", "10.0.0.2"}, "b": {"10.0.0.3"}}[host], nil
	}
	var addresses []string
	for _, host := range hostsOf(t.Context(), pool.ConnConfig) {
		if host.Host != "/run" &&
			(len(host.Fallbacks) != 1 || host.Fallbacks[0].Host != host.Host ||
				(host.TLSConfig == nil) == (host.Fallbacks[0].TLSConfig == nil)) {
			t.Errorf("%s is not asked with TLS and without: %+v", host.Host, host.Fallbacks)
		}
		resolved, _ := host.LookupFunc(t.Context(), host.Host)
		addresses = append(addresses, resolved...)
	}
	if want := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "/run"}; len(addresses) != 4 || addresses[1] != want[1] ||
		addresses[3] != want[3] {
		t.Errorf("asked %v, want %v", addresses, want)
	}
}

func TestPrimaries_RefuseALowerTimelineOfTheSameSystem(t *testing.T) {
	t.Parallel()
	p := &Primaries{log: slog.New(slog.DiscardHandler), highest: map[string]int64{}, refused: map[string]time.Time{}}
	for i, test := range []struct {
		address  string
		timeline Timeline
		ok       bool
		refused  int
	}{
		{"a", Timeline{"x", 1}, true, 0},
		{"b", Timeline{"x", 2}, true, 0},
		{"a", Timeline{"x", 1}, false, 1},
		{"c", Timeline{"y", 1}, true, 1}, // another system, such as one that was restored
		{"d", Timeline{}, true, 1},       // the server does not tell
		{"b", Timeline{"x", 2}, true, 1},
		{"a", Timeline{"x", 3}, true, 0},
	} {
		if err := p.Check(test.address, test.timeline); (err == nil) != test.ok || p.Refused() != test.refused {
			t.Errorf("step %d: %v, %d refused", i, err, p.Refused())
		}
	}
}
