package status

import (
	"errors"
	"fmt"
	"time"

	"byre/apiserver/process/pki"
	"byre/sqlstore"
)

// Status is what an operator looks at first. A field that could not be read is empty.
type Status struct {
	// Server is the server that was read; nil if no server answered and the database
	// was read instead.
	Server   *Server  `json:"server,omitempty"`
	Database Database `json:"database"`
	// Replicas are the servers that serve the database, by their identity Leases. Leaders are the holders of the other Leases in
	// kube-system.
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
		s.Alarms = append(s.Alarms, fmt.Sprintf("the copy at %s is %s behind: see whether it can be reached and written, and the server's log", c.Destination, lag))
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
		s.Alarms = append(s.Alarms, fmt.Sprintf("the certificate %s ends on %s: %s", c.Name, c.ExpirationDate.Format(time.DateOnly), next))
	}
}
