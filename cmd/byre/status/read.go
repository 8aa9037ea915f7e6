package status

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"byre/sqlstore"
)

// identityLabel is the label of the identity Leases of servers; KEP-1965.
const identityLabel = "apiserver.kubernetes.io/identity"

// unseenAfter is six times the period with which a server renews its identity Lease. The Lease
// lasts for an hour, as upstream's does, and so does not tell that a server was killed.
const unseenAfter = time.Minute

// requestTimeout bounds each request. While the database is silent, each of the two checks of it that
// /readyz makes takes 2 s.
const requestTimeout = 6 * time.Second

// Read reads the status of the server that config names, in at most twice requestTimeout. now is
// the time by which Leases expire. It fails if the server does not tell its version. What else the
// server does not tell is an alarm, and its fields are empty.
func Read(ctx context.Context, config *rest.Config, now time.Time) (Status, error) {
	config = rest.CopyConfig(config)
	config.Timeout = requestTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Status{}, err
	}
	server := client.Discovery()
	var version apiversion.Info
	response := server.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx) // a standby asks for retries
	if err := response.Error(); err != nil {                                        // which has the message of the server's Status, unlike that of Raw
		return Status{}, err
	}
	body, err := response.Raw()
	if err == nil {
		err = json.Unmarshal(body, &version)
	}
	if err != nil {
		return Status{}, err
	}
	s := Status{Server: &Server{Address: config.Host, Version: version.GitVersion}, Alarms: []string{}}
	var (
		requests                        sync.WaitGroup
		metrics, checks                 []byte
		leases                          *coordinationv1.LeaseList
		metricsErr, readyErr, leasesErr error
	)
	requests.Go(func() { metrics, metricsErr = server.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx) })
	requests.Go(func() {
		checks, readyErr = server.RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(ctx)
	})
	requests.Go(func() {
		// Resource version 0 lets the server answer from its watch cache, also while its
		// database does not answer.
		leases, leasesErr = client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	})
	requests.Wait()
	s.addReadiness(checks, readyErr, func(check string) string {
		body, _ := server.RESTClient().Get().AbsPath("/readyz/" + check).MaxRetries(0).DoRaw(ctx)
		_, cause, _ := strings.Cut(string(body), "internal server error: ") // of k8s.io/apiserver/pkg/server/healthz
		return strings.TrimSpace(cause)
	})
	if metricsErr == nil {
		metricsErr = s.addMetrics(metrics)
	}
	s.addMissing("database and history", "/metrics", metricsErr)
	s.addMissing("replicas and leaders", "the list of Leases", leasesErr)
	if leasesErr == nil {
		for i := range leases.Items {
			s.addLease(&leases.Items[i], now)
		}
		s.addLeaderHosts()
	}
	return s, nil
}

// addMissing adds an alarm for a part that the server did not tell.
func (s *Status) addMissing(part, request string, err error) {
	if err != nil {
		s.Alarms = append(s.Alarms, fmt.Sprintf("%s are not known, because the server did not answer %s (%v): see its log", part, request, err))
	}
}

// failedCheck matches the line of a check of /readyz that fails.
var failedCheck = regexp.MustCompile(`(?m)^\[-\](\S+)`)

// addReadiness adds the answer of /readyz, which is 500 with the list of checks if one
// fails. causeOf asks why a check fails; it returns nothing if that is not known.
func (s *Status) addReadiness(body []byte, err error, causeOf func(check string) string) {
	s.Server.Ready = err == nil
	if err == nil {
		return
	}
	var failed []string
	next := "see its log"
	for _, match := range failedCheck.FindAllSubmatch(body, -1) {
		check := string(match[1])
		cause := causeOf(check)
		if strings.HasPrefix(cause, sqlstore.ErrDiskFull.Error()) {
			next = "delete objects and run \"byre compact --keep 0\", or free space on its file system"
		}
		if cause != "" {
			check += " (" + cause + ")"
		}
		failed = append(failed, check)
	}
	if len(failed) == 0 {
		failed = []string{err.Error()}
	}
	s.Alarms = append(s.Alarms, "the server is not ready: "+strings.Join(failed, ", ")+": "+next)
}

func (s *Status) addMetrics(text []byte) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return err
	}
	d := &s.Database
	for name, to := range map[string]*int64{
		"byre_store_revision":           &d.Revision,
		"byre_store_compacted_revision": &d.CompactedRevision,
		"byre_store_quota_bytes":        &d.QuotaBytes,
		"byre_store_used_bytes":         &d.UsedBytes,
		"apiserver_storage_size_bytes":  &d.SizeBytes,
	} {
		*to = sum(families[name], "", "")
	}
	s.Server.Watchers = sum(families["apiserver_longrunning_requests"], "verb", "WATCH")
	if sum(families["byre_store_quota_exceeded"], "", "") > 0 {
		s.Alarms = append(s.Alarms, "the database has reached its quota: "+
			"delete objects and run \"byre compact --keep 0\", or raise --database-quota")
	}
	if free := families["byre_store_disk_free_bytes"]; free != nil {
		d.Disk = &Disk{FreeBytes: sum(free, "", ""), LogBytes: sum(families["byre_store_wal_bytes"], "", "")}
	}
	limit := sum(families["byre_store_wal_limit_bytes"], "", "")
	if d.Disk != nil && limit > 0 && d.Disk.LogBytes >= 2*limit {
		s.Alarms = append(s.Alarms, fmt.Sprintf("the write-ahead log has %d MiB, "+
			"because a reader has been in a transaction for %d s: end that program; "+
			"\"fuser -v\" and the path of the database name those that have the file open",
			d.Disk.LogBytes>>20, sum(families["byre_store_wal_reader_seconds"], "", "")))
	}
	if sum(families["byre_store_disk_reserve_missing"], "", "") > 0 {
		s.Alarms = append(s.Alarms, "there is no --disk-reserve: "+
			"deletes fail too when the disk is full: free space on the file system, and start byre again")
	}
	if sum(families["byre_store_refused_primaries"], "", "") > 0 {
		s.Alarms = append(s.Alarms, "two primaries: a PostgreSQL server in whose place a standby was promoted takes writes again, and this "+
			"server does not follow it: stop it and make it a standby (pg_rewind); the server's log names it")
	}
	for _, backup := range families["byre_store_last_backup_timestamp_seconds"].GetMetric() {
		revision, err := strconv.ParseInt(label(backup, "revision"), 10, 64)
		if err != nil {
			return err
		}
		d.LastBackup = &sqlstore.LastBackup{
			Time: time.Unix(int64(backup.GetGauge().GetValue()), 0).UTC(), Revision: revision, Location: label(backup, "location"),
		}
	}
	for _, fork := range families["byre_store_fork_timestamp_seconds"].GetMetric() {
		d.Fork = &sqlstore.Fork{Time: time.Unix(int64(fork.GetGauge().GetValue()), 0).UTC()}
		if d.Fork.Revision, err = strconv.ParseInt(label(fork, "revision"), 10, 64); err != nil {
			return err
		}
	}
	succeeded := families["byre_replication_last_success_timestamp_seconds"]
	for _, lag := range families["byre_replication_lag_seconds"].GetMetric() {
		c := Copy{Destination: label(lag, "destination"), LagSeconds: int64(lag.GetGauge().GetValue())}
		if last := sum(succeeded, "destination", c.Destination); last > 0 {
			c.LastSuccess = time.Unix(last, 0).UTC()
		}
		s.addCopy(c)
	}
	for _, lease := range families["byre_lease_acquired_timestamp_seconds"].GetMetric() {
		d.LeaseHolder, d.LeaseSince = label(lease, "holder"), time.Unix(int64(lease.GetGauge().GetValue()), 0).UTC()
	}
	for _, copied := range families["byre_lease_standby_revision"].GetMetric() {
		d.Standby = &Standby{
			Name: label(copied, "standby"), Revision: int64(copied.GetGauge().GetValue()), AgeSeconds: sum(families["byre_lease_standby_age_seconds"], "", ""),
		}
		if age := time.Duration(d.Standby.AgeSeconds) * time.Second; age > copyLag {
			s.Alarms = append(s.Alarms, fmt.Sprintf("the standby %s has not told of its copy for %s: see its log", d.Standby.Name, age))
		}
	}
	for _, info := range families["byre_store_info"].GetMetric() {
		d.Kind, d.Address = label(info, "kind"), label(info, "database")
		d.Retention, d.RetentionChanges = label(info, "retention"), label(info, "retention_changes")
		if d.Schema, err = strconv.Atoi(label(info, "schema")); err != nil {
			return err
		}
	}
	return nil
}

// sum adds the values of a family of gauges. If name is not empty, it adds only those
// with the label name=value.
func sum(family *dto.MetricFamily, name, value string) int64 {
	var total float64
	for _, metric := range family.GetMetric() {
		if name == "" || label(metric, name) == value {
			total += metric.GetGauge().GetValue()
		}
	}
	return int64(total)
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

func (s *Status) addLease(lease *coordinationv1.Lease, now time.Time) {
	l := Lease{Name: lease.Name, Holder: ptr.Deref(lease.Spec.HolderIdentity, "")}
	if l.Holder == "" {
		return // it was released
	}
	if lease.Spec.RenewTime != nil {
		l.RenewTime = lease.Spec.RenewTime.UTC()
		if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil {
			l.Expired = l.RenewTime.Add(time.Duration(*seconds) * time.Second).Before(now)
		}
	}
	if _, isIdentity := lease.Labels[identityLabel]; isIdentity {
		l.Host = lease.Labels[corev1.LabelHostname]
		l.Expired = l.RenewTime.Add(unseenAfter).Before(now)
		s.Replicas = append(s.Replicas, l)
		return
	}
	s.Leaders = append(s.Leaders, l)
	slices.SortFunc(s.Leaders, func(a, b Lease) int { return strings.Compare(a.Name, b.Name) })
}

// addLeaderHosts sets the hosts of those leaders that are replicas. Such a holder is the name of
// the replica's identity Lease, an underscore, and a UUID.
func (s *Status) addLeaderHosts() {
	for i := range s.Leaders {
		l := &s.Leaders[i]
		replica, _, _ := strings.Cut(l.Holder, "_")
		for _, r := range s.Replicas {
			if r.Name == replica {
				l.Host = r.Host
			}
		}
	}
}
