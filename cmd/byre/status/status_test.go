package status

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"byre/apiserver/process/pki"
	"byre/sqlstore"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// metrics are those of a server that keeps copies and has a backup.
const metrics = `# TYPE byre_store_revision gauge
byre_store_revision 4711
# TYPE byre_store_compacted_revision gauge
byre_store_compacted_revision 11
# TYPE byre_store_quota_bytes gauge
byre_store_quota_bytes 1.073741824e+09
# TYPE byre_store_used_bytes gauge
byre_store_used_bytes 2048
# TYPE apiserver_storage_size_bytes gauge
apiserver_storage_size_bytes{storage_cluster_id="a"} 4096
# TYPE apiserver_longrunning_requests gauge
apiserver_longrunning_requests{verb="WATCH",resource="pods"} 3
apiserver_longrunning_requests{verb="WATCH",resource="nodes"} 2
apiserver_longrunning_requests{verb="CONNECT",resource="pods"} 7
# TYPE byre_store_last_backup_timestamp_seconds gauge
byre_store_last_backup_timestamp_seconds{location="/backup/a.zst",revision="4700"} 1.7961e+09
# TYPE byre_replication_lag_seconds gauge
byre_replication_lag_seconds{destination="s3://a"} 0
byre_replication_lag_seconds{destination="s3://b"} 61
byre_replication_lag_seconds{destination="s3://c"} 60
# TYPE byre_replication_last_success_timestamp_seconds gauge
byre_replication_last_success_timestamp_seconds{destination="s3://a"} 1.7961e+09
# TYPE byre_lease_acquired_timestamp_seconds gauge
byre_lease_acquired_timestamp_seconds{holder="a"} 1.7961e+09
# TYPE byre_store_info gauge
byre_store_info{kind="postgres",database="byre at db",retention="1h0m0s",retention_changes="100",schema="12"} 1
`

// leases are those of two replicas, of which one was not seen for a minute, and of leaders.
const leases = `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","items":[
{"metadata":{"name":"apiserver-a","labels":{"apiserver.kubernetes.io/identity":"kube-apiserver","kubernetes.io/hostname":"one"}},"spec":{"holderIdentity":"apiserver-a_1","leaseDurationSeconds":3600,"renewTime":"2026-12-01T11:59:01.000000Z"}},
{"metadata":{"name":"apiserver-b","labels":{"apiserver.kubernetes.io/identity":"kube-apiserver","kubernetes.io/hostname":"two"}},"spec":{"holderIdentity":"apiserver-b_1","leaseDurationSeconds":3600,"renewTime":"2026-12-01T11:58:59.000000Z"}},
{"metadata":{"name":"scheduler"},"spec":{"holderIdentity":"elsewhere_1","leaseDurationSeconds":15,"renewTime":"2026-12-01T11:59:44.000000Z"}},
{"metadata":{"name":"controllers"},"spec":{"holderIdentity":"apiserver-b_x","leaseDurationSeconds":15,"renewTime":"2026-12-01T11:59:46.000000Z"}},
{"metadata":{"name":"released"},"spec":{"holderIdentity":""}}]}`

// read reads the status of a server that answers with texts for paths; one that is missing is 500.
func read(t *testing.T, answers map[string]string) (Status, error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, found := answers[r.URL.Path]
		if strings.HasPrefix(text, "{") {
			w.Header().Set("Content-Type", "application/json")
		}
		if code, rest, ok := strings.Cut(text, " "); ok && code == "500" {
			text, found = rest, false
		}
		if !found {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	return Read(t.Context(), &rest.Config{Host: server.URL}, now)
}

func healthy() map[string]string {
	return map[string]string{
		"/version": `{"gitVersion":"v1.37.2"}`, "/metrics": metrics, "/readyz": "ok",
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": leases,
	}
}

// The status has what the metrics and the Leases of a server say.
func TestRead_OfAHealthyServer(t *testing.T) {
	t.Parallel()
	s, err := read(t, healthy())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1796100000, 0).UTC()
	want := Database{
		Kind: "postgres", Address: "byre at db", Schema: 12, SizeBytes: 4096, Revision: 4711, CompactedRevision: 11,
		Retention: "1h0m0s", RetentionChanges: "100",
		QuotaBytes: 1 << 30, UsedBytes: 2048,
		LastBackup: &sqlstore.LastBackup{Time: at, Revision: 4700, Location: "/backup/a.zst"},
		Copies: []Copy{{Destination: "s3://a", LastSuccess: at}, {Destination: "s3://b", LagSeconds: 61},
			{Destination: "s3://c", LagSeconds: 60}},
		LeaseHolder: "a", LeaseSince: at,
	}
	if !reflect.DeepEqual(s.Database, want) {
		t.Errorf("the database is\n%+v, want\n%+v", s.Database, want)
	}
	if s.Server.Version != "v1.37.2" || !s.Server.Ready || s.Server.Watchers != 5 {
		t.Errorf("the server is %+v", s.Server)
	}
	if len(s.Replicas) != 2 || s.Replicas[0].Expired || s.Replicas[0].Host != "one" || !s.Replicas[1].Expired ||
		s.Replicas[1].Host != "two" {
		t.Errorf("the replicas are %+v", s.Replicas)
	}
	if l := s.Leaders; len(l) != 2 || l[0].Name != "controllers" || l[0].Host != "two" || l[0].Expired ||
		l[1].Name != "scheduler" || l[1].Host != "" || !l[1].Expired {
		t.Errorf("the leaders are %+v", s.Leaders)
	}
	if len(s.Alarms) != 1 || !strings.HasPrefix(s.Alarms[0], "the copy at s3://b is 1m1s behind: ") {
		t.Errorf("the alarms are %q", s.Alarms)
	}
}

// What a server does not tell is an alarm that says where to look, and the rest is there.
func TestRead_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for path, test := range map[string]struct {
		answer string
		alarms []string
	}{
		"/metrics": {"500 no", []string{"database and history are not known, because the server did not answer /metrics ("}},
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": {"500 no",
			[]string{"replicas and leaders are not known, because the server did not answer the list of Leases ("}},
		"/readyz": {"500 [+]ping ok\n[-]database-quota failed: reason withheld\n[-]database failed\nreadyz check failed\n",
			[]string{"the server is not ready: database-quota, database: see its log"}},
	} {
		answers := healthy()
		answers[path] = test.answer
		s, err := read(t, answers)
		if err != nil {
			t.Fatal(err)
		}
		s.Alarms = slices.DeleteFunc(s.Alarms, func(alarm string) bool { return strings.HasPrefix(alarm, "the copy at ") })
		if len(s.Alarms) != len(test.alarms) || !strings.HasPrefix(s.Alarms[0], test.alarms[0]) {
			t.Errorf("without %s the alarms are %q", path, s.Alarms)
		}
		if isReady, isKnown, hasLeases := s.Server.Ready, s.Database.Revision > 0,
			len(s.Replicas) > 0; isReady != (path != "/readyz") || isKnown != (path != "/metrics") ||
			hasLeases != !strings.Contains(path, "leases") {
			t.Errorf("without %s the status is %+v", path, s)
		}
	}
	for _, broken := range []string{"byre_store_info{", "byre_store_info{schema=\"x\"} 1\n",
		"# TYPE byre_store_fork_timestamp_seconds gauge\nbyre_store_fork_timestamp_seconds{revision=\"\"} 1\n"} {
		answers := healthy()
		answers["/metrics"] = "# TYPE byre_store_info gauge\n" + broken
		if s, err := read(t, answers); err != nil || len(s.Alarms) == 0 ||
			!strings.Contains(s.Alarms[0], "did not answer /metrics") {
			t.Errorf("metrics that can't be read: %q, %v", s.Alarms, err)
		}
	}
	if _, err := read(t, map[string]string{}); err == nil {
		t.Error("a server without a version has a status")
	}
	if _, err := read(t, map[string]string{"/version": "no JSON"}); err == nil {
		t.Error("what is no server has a status")
	}
}

func TestRead_RaisesAlarms(t *testing.T) {
	t.Parallel()
	answers := healthy()
	answers["/metrics"] =
		"# TYPE byre_store_quota_exceeded gauge\nbyre_store_quota_exceeded 1\n# TYPE byre_store_fork_timestamp_seconds gauge\nbyre_store_fork_timestamp_seconds{revision=\"9\"} 1.7961e+09\n"
	s, err := read(t, answers)
	if err != nil || len(s.Alarms) != 1 ||
		!strings.HasPrefix(s.Alarms[0],
			`the database has reached its quota: delete objects and run "byre compact --keep 0"`) {
		t.Errorf("the alarms are %q, %v", s.Alarms, err)
	}
	if f := s.Database.Fork; f == nil || f.Revision != 9 {
		t.Errorf("the fork is %+v", f)
	}
}

// A certificate that ends within a month is an alarm with what to do about it; one that is not there is none.
func TestAddCertificates_SaysWhatToDo(t *testing.T) {
	t.Parallel()
	certificate := func(name, ca string, days int64) pki.CertificateStatus {
		return pki.CertificateStatus{Name: name, CAName: ca, ResidualTimeSeconds: days * 24 * 3600}
	}
	external, missing := certificate("external", "ca", 29), certificate("missing", "ca", 0)
	external.ExternallyManaged, missing.Missing = true, true
	s := Status{Alarms: []string{}}
	s.AddCertificates(pki.Status{
		Certificates: []pki.CertificateStatus{certificate("apiserver", "ca", 30), certificate("fresh", "ca", 31),
			external, missing},
		CertificateAuthorities: []pki.CertificateStatus{certificate("ca", "", 1)},
	})
	var got []string
	for _, alarm := range s.Alarms {
		_, next, _ := strings.Cut(alarm, ": ")
		got = append(got, strings.Fields(alarm)[2]+": "+next)
	}
	if want := []string{
		`apiserver: run "byre certs renew apiserver"`, "external: renew it where its key is kept",
		"ca: add another CA to --client-ca-file, and issue certificates by it",
	}; !slices.Equal(got, want) || len(s.Certificates) != 5 {
		t.Errorf("%d certificates, the alarms are %q", len(s.Certificates), got)
	}
}

// No backup is no error.
func TestAddBackup_OfNone(t *testing.T) {
	t.Parallel()
	var d Database
	if err := d.AddBackup(sqlstore.LastBackup{}, fmt.Errorf("it: %w", sqlstore.ErrNotFound)); err != nil ||
		d.LastBackup != nil {
		t.Errorf("%+v, %v", d.LastBackup, err)
	}
	if err := d.AddBackup(sqlstore.LastBackup{}, sqlstore.ErrUnavailable); err == nil || d.LastBackup != nil {
		t.Errorf("%+v, %v", d.LastBackup, err)
	}
	if err := d.AddBackup(sqlstore.LastBackup{Revision: 3}, nil); err != nil || d.LastBackup.Revision != 3 {
		t.Errorf("%+v, %v", d.LastBackup, err)
	}
}

// A server on a full disk says by its checks why it is not ready, and by its metrics what its disk has.
func TestRead_TellsOfTheDisk(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/version": `{"gitVersion": "v1.37.2"}`,
		"/metrics": gauges("byre_store_disk_free_bytes 31457280", "byre_store_wal_bytes 222298112",
			"byre_store_wal_limit_bytes 67108864",
			"byre_store_wal_reader_seconds 32.5", "byre_store_disk_reserve_missing 1",
			`byre_store_info{kind="sqlite",database="/data/byre.db",schema="9"} 1`),
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": `{"items": []}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			http.Error(w, "[+]ping ok\n[-]etcd-readiness failed: reason withheld\nreadyz check failed",
				http.StatusInternalServerError)
		case "/readyz/etcd-readiness":
			http.Error(w, "internal server error: the disk is full: 30 MiB are free, and 36 MiB must be",
				http.StatusInternalServerError)
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
		fmt.Fprintf(&text, "# TYPE %s gauge\n%s\n", strings.FieldsFunc(line, func(r rune) bool {
			return r == '{' || r == ' '
		})[0], line)
	}
	return text.String()
}

func TestRead_SaysTwoPrimaries(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"0": 0, "1": 1} {
		s := Status{Server: &Server{}}
		if err := s.addMetrics([]byte("# TYPE byre_store_refused_primaries gauge\nbyre_store_refused_primaries " + value +
			"\n")); err != nil {
			t.Fatal(err)
		}
		if len(s.Alarms) != want || want > 0 && !strings.Contains(s.Alarms[0], "two primaries") {
			t.Errorf("%s: %q", value, s.Alarms)
		}
	}
}

// TestStatus_Standby reads the metrics of a server with --standby.
func TestStatus_Standby(t *testing.T) {
	t.Parallel()
	const info = `byre_store_info{kind="SQLite",database="byre.db",schema="1",retention="",retention_changes=""} 1
byre_lease_acquired_timestamp_seconds{holder="one-A",generation="3"} 1.7e+09
`
	const gauges = info + "# TYPE byre_lease_standby_revision gauge\n# TYPE byre_lease_standby_age_seconds gauge\n"
	alone, followed, lost := Status{Server: &Server{}}, Status{Server: &Server{}}, Status{Server: &Server{}}
	for s, text := range map[*Status]string{
		&alone: info,
		&followed: gauges +
			"byre_lease_standby_revision{standby=\"two-B\"} 231\nbyre_lease_standby_age_seconds{standby=\"two-B\"} 3.2\n",
		&lost: gauges +
			"byre_lease_standby_revision{standby=\"two-B\"} 231\nbyre_lease_standby_age_seconds{standby=\"two-B\"} 95\n",
	} {
		if err := s.addMetrics([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if alone.Database.Standby != nil || alone.Database.LeaseHolder != "one-A" {
		t.Errorf("without a standby: %+v", alone.Database)
	}
	if got := followed.Database.Standby; got == nil || *got != (Standby{Name: "two-B", Revision: 231, AgeSeconds: 3}) ||
		len(followed.Alarms) > 0 {
		t.Errorf("with a standby: %+v, %q", got, followed.Alarms)
	}
	if len(lost.Alarms) != 1 || !strings.Contains(lost.Alarms[0], "the standby two-B has not told of its copy for 1m35s") {
		t.Errorf("with a standby that is gone: %q", lost.Alarms)
	}
}
