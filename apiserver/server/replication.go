package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/component-base/metrics/legacyregistry"

	"byre/apiserver/process"
	"byre/migrations"
	"byre/sqlstore/replication"
)

// ReplicationOptions say where a SQLite database is copied to while it is written, and with whom the server
// shares that place. The database is opened with them. The usage of each flag says what its field means.
type ReplicationOptions struct {
	ReplicateTo            []string
	ReplicateSync, Standby bool
	LeaseDuration          time.Duration
}

// shortestLease leaves time for three requests to the bucket.
const shortestLease = 3 * time.Second

// replicationLag is how far a copy of the database may be behind.
const replicationLag = time.Minute

// newReplicationFeature makes the feature of continuous copies and of the lease of two machines.
func newReplicationFeature(o *StoreOptions) Feature {
	return Feature{
		AddFlags: func(section func(string) *pflag.FlagSet) { o.ReplicationOptions.addFlags(section("store")) },
		Validate: func(*Options) []error {
			var errs invalid
			errs.add(o.checkReplication())
			return errs
		},
		New: func(b *Base) (part Part, _ error) {
			if copies := b.Database.Replication; copies != nil {
				legacyregistry.Registerer().MustRegister(copies)
				part.Checks = []process.HealthChecker{replicationCheck(copies)}
			}
			if fence := b.Database.Fence; fence != nil {
				part.Wrap = func(next http.Handler) (http.Handler, error) { return withFence(fence, next), nil }
			}
			return part, nil
		},
	}
}

func (o *ReplicationOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringArrayVar(&o.ReplicateTo, "replicate-to", o.ReplicateTo,
		"Copy the SQLite database to this place while it is written, each change within about a second: file:///PATH, a directory that exists, or s3://BUCKET/PATH. Given twice, to both. \"byre restore --from\" restores it. A place that does not answer holds up nothing; what waits for it takes up to 256 MiB of the disk, or as much as the database.")
	fs.BoolVar(&o.ReplicateSync, "replicate-sync", o.ReplicateSync,
		"Acknowledge a write only when the place of --replicate-to has it, so that the loss of the machine loses none. A write takes as long as an upload, with those that come meanwhile in one; none succeeds while the place is away.")
	fs.BoolVar(&o.Standby, "standby", o.Standby,
		"Share the place of --replicate-to, in S3, with a second server: the one that has the lease there serves; the other one follows with a copy, answers /readyz with 503, and takes over.")
	fs.DurationVar(&o.LeaseDuration, "lease-duration", o.LeaseDuration,
		"How long after a crash of a server with --standby the other one takes over. A server that can't renew the lease for three fifths of it ends.")
}

// checkReplication fails unless ReplicateTo names at most two places, for a SQLite database.
func (o *StoreOptions) checkReplication() error {
	if o.Standby && (len(o.ReplicateTo) != 1 || !strings.HasPrefix(o.ReplicateTo[0], "s3:")) {
		return errors.New("--standby needs one --replicate-to, s3://BUCKET/PATH, which has the lease")
	}
	if o.Standby && o.LeaseDuration < shortestLease {
		return fmt.Errorf("--lease-duration must be at least %s", shortestLease)
	}
	if o.ReplicateSync && (len(o.ReplicateTo) != 1 || len(o.Volatile) > 0) {
		return errors.New(
			"--replicate-sync needs one --replicate-to, and no --volatile, which acknowledges what is on no disk")
	}
	if len(o.ReplicateTo) == 0 {
		return nil
	}
	if name, err := o.NameDatabase(); err != nil || name.Kind != string(migrations.SQLite) {
		return errors.New("--replicate-to copies SQLite alone: PostgreSQL has standbys and WAL archiving of its own")
	}
	if len(o.ReplicateTo) > 2 {
		return errors.New("--replicate-to may be given twice at most")
	}
	for _, destination := range o.ReplicateTo {
		if err := replication.Check(destination, o.S3); err != nil {
			return fmt.Errorf("--replicate-to %w", err)
		}
	}
	return nil
}

// replicationCheck fails while a destination of --replicate-to misses commits that are a minute old.
func replicationCheck(copies *replication.Replicator) process.HealthChecker {
	return healthz.NamedCheck("replication", func(*http.Request) error {
		for _, copied := range copies.Status() {
			if copied.Lag > replicationLag {
				return fmt.Errorf("a copy is %s behind: see \"byre status\"", copied.Lag.Round(time.Second))
			}
		}
		return nil
	})
}
