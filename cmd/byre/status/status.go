package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	"byre/apiserver/process/pki"
	"byre/sqlstore"
)

// Status is what an operator looks at first. A field that could not be read is empty.
type Status struct {
	// Server is the server that was read; nil if no server answered and the database
	// was read instead.
	Server   *Server  `json:"server,omitempty"`
	Database Database `json:"database"`
	// Replicas are the servers that serve the database, by their identity Leases. Leaders are the holders of the other
	// Leases in kube-system.
	Replicas     []Lease                 `json:"replicas,omitempty"`
	Leaders      []Lease                 `json:"leaders,omitempty"`
	Certificates []pki.CertificateStatus `json:"certificates"`
	// Alarms say what is wrong and what to do, one line each.
	Alarms []string `json:"alarms"`
}

// Server is a running server.
type Server struct {
	Address string `json:"address"`
	// Version is the version of the Kubernetes API.
	Version string `json:"version"`
	Ready   bool   `json:"ready"`
	// Watchers is the number of open watches.
	Watchers int64 `json:"watchers"`
}

// Database is the store.
type Database struct {
	// Kind is sqlite or postgres. Address is the file, or the database and its hosts.
	Kind      string `json:"kind"`
	Address   string `json:"address"`
	Schema    int    `json:"schema"`
	SizeBytes int64  `json:"sizeBytes"`
	// Revision is the last revision. CompactedRevision is the last one whose history is
	// gone.
	Revision          int64 `json:"revision"`
	CompactedRevision int64 `json:"compactedRevision"`
	// Retention and RetentionChanges are the server's flags: a duration and a number,
	// where "0" means no limit.
	Retention        string `json:"retention,omitempty"`
	RetentionChanges string `json:"retentionChanges,omitempty"`
	// QuotaBytes is 0 without a quota. UsedBytes is the size that is compared with it.
	QuotaBytes int64 `json:"quotaBytes,omitempty"`
	UsedBytes  int64 `json:"usedBytes,omitempty"`
	// Disk is that of a SQLite database, if it is served.
	Disk *Disk `json:"disk,omitempty"`
	// Fork is set if the database is a fork that is not adopted.
	Fork *sqlstore.Fork `json:"fork,omitempty"`
	// LastBackup is the last one that "byre backup" has made; nil if none is recorded.
	LastBackup *sqlstore.LastBackup `json:"lastBackup,omitempty"`
	// Copies are the destinations of --replicate-to, in the order of their URLs.
	Copies []Copy `json:"copies,omitempty"`
	// LeaseHolder is the name of the server in the lease of --standby, and LeaseSince when it took it.
	LeaseHolder string    `json:"leaseHolder,omitempty"`
	LeaseSince  time.Time `json:"leaseSince,omitzero"`
	// Standby is what the other server has told of its copy; nil if it has told nothing since this one serves.
	Standby *Standby `json:"standby,omitempty"`
}

// Standby is the copy of a server that follows.
type Standby struct {
	Name string `json:"name"`
	// Revision is what the copy had, AgeSeconds ago.
	Revision   int64 `json:"revision"`
	AgeSeconds int64 `json:"ageSeconds"`
}

// Disk is the file system of a SQLite database.
type Disk struct {
	// FreeBytes is its free space, and LogBytes the size of the write-ahead log.
	FreeBytes int64 `json:"freeBytes"`
	LogBytes  int64 `json:"logBytes"`
}

// Copy is a destination of --replicate-to.
type Copy struct {
	Destination string `json:"destination"`
	// LagSeconds is the age of the oldest commit that is not there; 0 if all are.
	LagSeconds int64 `json:"lagSeconds"`
	// LastSuccess is when it last had all commits; empty if not since the start of the server.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
}

// copyLag is how far a copy may be behind.
const copyLag = time.Minute

// addCopy adds a destination, and an alarm if it is behind.
func (s *Status) addCopy(c Copy) {
	s.Database.Copies = append(s.Database.Copies, c)
	if lag := time.Duration(c.LagSeconds) * time.Second; lag > copyLag {
		s.Alarms = append(s.Alarms,
			fmt.Sprintf("the copy at %s is %s behind: see whether it can be reached and written, and the server's log",
				c.Destination, lag))
	}
}

// AddBackup adds the result of sqlstore.Driver.LastBackup. ErrNotFound is not
// an error: there is no backup.
func (d *Database) AddBackup(last sqlstore.LastBackup, err error) error {
	if errors.Is(err, sqlstore.ErrNotFound) {
		return nil
	}
	if err == nil {
		d.LastBackup = &last
	}
	return err
}

// Lease describes a Lease and its holder.
type Lease struct {
	Name   string `json:"name"`
	Holder string `json:"holder"`
	// Host is the host name of a replica, and of a leader that is one; empty for others.
	Host      string    `json:"host,omitempty"`
	RenewTime time.Time `json:"renewTime,omitzero"`
	// Expired is true if a replica has not renewed its Lease for a minute, or another
	// holder for longer than the Lease lasts.
	Expired bool `json:"expired,omitempty"`
}

// renewSoon is the residual time below which a certificate is an alarm. With so little
// time left, a start of the server renews the certificate.
const renewSoon = 30 * 24 * time.Hour

// AddCertificates adds the certificates, and an alarm for each that expires soon.
func (s *Status) AddCertificates(certificates pki.Status) {
	s.Certificates = append(append(s.Certificates, certificates.Certificates...), certificates.CertificateAuthorities...)
	for _, c := range s.Certificates {
		if c.Missing || time.Duration(c.ResidualTimeSeconds)*time.Second > renewSoon {
			continue
		}
		next := fmt.Sprintf("run \"byre certs renew %s\"", c.Name)
		switch {
		case c.CAName == "":
			next = "add another CA to --client-ca-file, and issue certificates by it"
		case c.ExternallyManaged:
			next = "renew it where its key is kept"
		}
		s.Alarms = append(s.Alarms,
			fmt.Sprintf("the certificate %s ends on %s: %s", c.Name, c.ExpirationDate.Format(time.DateOnly), next))
	}
}

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
	// which has the message of the server's Status, unlike that of Raw
	if err := response.Error(); err != nil {
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
		leases, leasesErr = client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx,
			metav1.ListOptions{ResourceVersion: "0"})
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
		s.Alarms = append(s.Alarms,
			fmt.Sprintf("%s are not known, because the server did not answer %s (%v): see its log", part, request, err))
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
		s.Alarms = append(s.Alarms,
			"two primaries: a PostgreSQL server in whose place a standby was promoted takes writes again, and this "+
				"server does not follow it: stop it and make it a standby (pg_rewind); the server's log names it")
	}
	for _, backup := range families["byre_store_last_backup_timestamp_seconds"].GetMetric() {
		revision, err := strconv.ParseInt(label(backup, "revision"), 10, 64)
		if err != nil {
			return err
		}
		d.LastBackup = &sqlstore.LastBackup{
			Time: time.Unix(int64(backup.GetGauge().GetValue()), 0).UTC(), Revision: revision,
			Location: label(backup, "location"),
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
			Name: label(copied, "standby"), Revision: int64(copied.GetGauge().GetValue()),
			AgeSeconds: sum(families["byre_lease_standby_age_seconds"], "", ""),
		}
		if age := time.Duration(d.Standby.AgeSeconds) * time.Second; age > copyLag {
			s.Alarms = append(s.Alarms,
				fmt.Sprintf("the standby %s has not told of its copy for %s: see its log", d.Standby.Name, age))
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
