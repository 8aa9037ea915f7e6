package status

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A server on a full disk says by its checks why it is not ready, and by its metrics what its disk has.
func TestRead_TellsOfTheDisk(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/version": `{"gitVersion": "v1.37.2"}`,
		"/metrics": gauges("byre_store_disk_free_bytes 31457280", "byre_store_wal_bytes 222298112", "byre_store_wal_limit_bytes 67108864",
			"byre_store_wal_reader_seconds 32.5", "byre_store_disk_reserve_missing 1", `byre_store_info{kind="sqlite",database="/data/byre.db",schema="9"} 1`),
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": `{"items": []}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			http.Error(w, "[+]ping ok\n[-]etcd-readiness failed: reason withheld\nreadyz check failed", http.StatusInternalServerError)
		case "/readyz/etcd-readiness":
			http.Error(w, "internal server error: the disk is full: 30 MiB are free, and 36 MiB must be", http.StatusInternalServerError)
		default:
			if !strings.HasPrefix(r.URL.Path, "/metrics") {
				w.Header().Set("Content-Type", "application/json")
			}
			_, _ = w.Write([]byte(answers[r.URL.Path]))
		}
	}))
	defer server.Close()
	s, err := Read(t.Context(), &rest.Config{Host: server.URL}, time.Now())
	if err != nil || s.Database.Disk == nil || *s.Database.Disk != (Disk{FreeBytes: 30 << 20, LogBytes: 212 << 20}) {
		t.Fatalf("%+v, %v", s.Database.Disk, err)
	}
	want := []string{
		`the server is not ready: etcd-readiness (the disk is full: 30 MiB are free, and 36 MiB must be): delete objects and run "byre compact --keep 0", or free space on its file system`,
		`the write-ahead log has 212 MiB, because a reader has been in a transaction for 32 s: end that program; "fuser -v" and the path of the database name those that have the file open`,
		`there is no --disk-reserve: deletes fail too when the disk is full: free space on the file system, and start byre again`,
	}
	if !slices.Equal(s.Alarms, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(s.Alarms, "\n"), strings.Join(want, "\n"))
	}
}

// gauges returns metrics in the format of /metrics.
func gauges(lines ...string) string {
	var text strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&text, "# TYPE %s gauge\n%s\n", strings.FieldsFunc(line, func(r rune) bool { return r == '{' || r == ' ' })[0], line)
	}
	return text.String()
}

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
