package server

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage/moment"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/bucket"
)

// StoreOptions say where objects are stored, and for how long their history is kept. The usage of
// each flag says what its field means.
type StoreOptions struct {
	DataDir, Endpoint, DatabaseSchema string
	Retention, CompactionInterval     time.Duration
	RetentionChanges                  int64
	RetentionFor                      map[string]string
	DatabaseQuota, DiskReserve        resource.QuantityValue
	ReplicationOptions
	// S3 says how to reach places of copies and backups that are in S3.
	S3                                          bucket.S3
	Volatile                                    []string
	RepresentationCacheBytes                    int64
	AllowUnsafeDurability, AcceptNewKeys, Adopt bool
	GarbageCollection                           bool
	DeleteCollectionWorkers                     int
	EncryptionConfig                            string
	EncryptionReload                            bool
	// IsForTest has no flag: the database is for one test. It has no reserve, and nothing is synced.
	IsForTest bool
}

// smallestReserve is 24Mi. When the disk is full, the part of the write-ahead log that is not in the
// file yet, up to 16 MiB, is copied back first; then the log needs no more space.
const smallestReserve = 24 << 20

// NewStoreOptions returns the defaults.
func NewStoreOptions() StoreOptions {
	return StoreOptions{
		DataDir: "./byre-data", Retention: 7 * 24 * time.Hour, RetentionChanges: 1_000_000,
		CompactionInterval: time.Minute, DiskReserve: resource.QuantityValue{Quantity: resource.MustParse("32Mi")},
		ReplicationOptions: ReplicationOptions{LeaseDuration: 15 * time.Second},
		GarbageCollection:  true, DeleteCollectionWorkers: 1,
	}
}

// AddDatabaseFlags adds the flags that name the database.
func (o *StoreOptions) AddDatabaseFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "Directory of the SQLite database if there is no --endpoint.")
	fs.StringVar(&o.Endpoint, "endpoint", o.Endpoint,
		"Database: sqlite:///PATH, or postgres://... in any form that libpq takes; passwordfile=FILE in it names a file with the password, which is read for every connection. If not set, SQLite in byre.db below --data-dir.")
	// The endpoint may contain a password. /flagz shows only that the flag is set.
	_ = fs.SetAnnotation("endpoint", "classified", []string{"true"})
	fs.StringVar(&o.DatabaseSchema, "database-schema", o.DatabaseSchema,
		"Schema of the PostgreSQL database that holds the objects, so that one database can hold those of many servers. It is made if there is none. If not set, the first schema of the endpoint's search_path, or of the role's.")
}

// AddFlags adds the flags.
func (o *StoreOptions) AddFlags(fs *pflag.FlagSet) {
	o.AddDatabaseFlags(fs)
	fs.Lookup("data-dir").Usage = "Directory for the database, the certificates (pki/) and admin.kubeconfig."
	fs.DurationVar(&o.Retention, "retention", o.Retention,
		"How long history is kept: a watch resumes, and a list reads, from any revision younger than this. 0 keeps it for ever. That of pods, nodes, leases, events, endpoints and endpointslices is kept for 24h at most.")
	fs.Int64Var(&o.RetentionChanges, "retention-changes", o.RetentionChanges,
		"How many changes of each resource are kept at most, give or take a tenth; 0 is no limit.")
	fs.StringToStringVar(&o.RetentionFor, "retention-for", o.RetentionFor,
		"How long the history of single resources is kept, in place of --retention: a list such as 'deployments.apps=90d,pods=7d,*=36h'. A resource without a group means every group, * every resource that is not named; 0 keeps it for ever.")
	fs.Var(&o.DatabaseQuota, "database-quota",
		"How large the database may become, such as 8Gi; 0 is no limit. At that size writes that make it larger are refused, as kube-apiserver refuses them when its store is full, and /readyz fails. Deletes, renewals of Leases and compaction go on, and the rest does when 5% are free again. Counted are the pages of a SQLite file that are in use, or the tables and indexes of the PostgreSQL schema.")
	fs.Var(&o.DiskReserve, "disk-reserve",
		"Size of a file beside the SQLite database that takes up space until the disk is full. It is emptied then, so that objects can be deleted and history compacted, and filled again when the disk has an eighth more; at least 24Mi, and 0 makes none. PostgreSQL has none.")
	o.S3.AddFlags(fs)
	fs.DurationVar(&o.CompactionInterval, "compaction-interval", o.CompactionInterval,
		"How often history is looked at for what --retention and --retention-changes no longer keep.")
	fs.StringSliceVar(&o.Volatile, "volatile", o.Volatile,
		"Resources, such as leases,events, that are kept in memory and written to the SQLite file together, every 15 seconds or with the next write of another resource, so that a heartbeat does not wear out the disk. A resource without a group means every group. Given up for them: a crash (not a stop) loses their changes of up to the last 15 seconds, although they were acknowledged and watched: an Event may be missing, and two holders may believe for some seconds that a Lease is theirs. Everything else is as durable as without. After a crash revisions skip ahead, and every client lists again.")
	fs.Int64Var(&o.RepresentationCacheBytes, "representation-cache-bytes", o.RepresentationCacheBytes,
		"How many bytes the encodings of objects may take in memory that are made for readers: protobuf, another version, rows of tables. 0 is a 32nd of what the process may use (the lowest of GOMEMLIMIT, its control group's limit and the machine's memory), and at least 64 MiB.")
	fs.BoolVar(&o.AllowUnsafeDurability, "allow-unsafe-durability", o.AllowUnsafeDurability,
		"Use a PostgreSQL whose fsync or synchronous_commit is off, which may lose acknowledged writes.")
	fs.BoolVar(&o.AcceptNewKeys, "accept-new-keys", o.AcceptNewKeys,
		"Serve with a CA or service account keys other than those that the database was served with. Clients' certificates and tokens of the old ones are refused then.")
	fs.BoolVar(&o.Adopt, "adopt", o.Adopt,
		"Make a database of byre fork a cluster of its own, from this start on: controllers run, and webhooks and aggregated API servers are called. It changes nothing for any other database.")
	fs.BoolVar(&o.GarbageCollection, "enable-garbage-collector", o.GarbageCollection,
		"Keep an owner until its dependents are deleted or orphaned, as its deletion asks for. If false, the garbage collector does not run either.")
	fs.IntVar(&o.DeleteCollectionWorkers, "delete-collection-workers", o.DeleteCollectionWorkers,
		"How many objects of a collection are deleted at a time.")
	fs.StringVar(&o.EncryptionConfig, "encryption-provider-config", o.EncryptionConfig,
		"File with an EncryptionConfiguration: which resources are encrypted in the database, and by which providers.")
	fs.BoolVar(&o.EncryptionReload, "encryption-provider-config-automatic-reload", o.EncryptionReload,
		"Follow changes of --encryption-provider-config.")
}

// DSN returns the endpoint, or its default, with DatabaseSchema as its search_path.
func (o *StoreOptions) DSN() (string, error) {
	endpoint := o.Endpoint
	if endpoint == "" {
		path := url.URL{Path: filepath.Join(o.DataDir, "byre.db")}
		endpoint = "sqlite:" + path.EscapedPath()
	}
	dialect, dsn, err := migrations.ParseEndpoint(endpoint)
	switch {
	case err != nil:
		return "", fmt.Errorf("--%w", err)
	case o.DatabaseSchema == "":
		return endpoint, nil
	case dialect != migrations.Postgres:
		return "", errors.New("--database-schema needs PostgreSQL: name a database with --endpoint")
	}
	if endpoint, err = migrations.WithSchema(dsn, o.DatabaseSchema); err != nil {
		return "", fmt.Errorf("--database-schema: %w", err)
	}
	return endpoint, nil
}

// DatabaseName tells a person, and a metric, which database is meant. It has no password.
type DatabaseName struct {
	// Kind is sqlite or postgres.
	Kind string
	// Name is the file without symbolic links, or the database and its hosts.
	Name string
}

// String implements fmt.Stringer.
func (n DatabaseName) String() string { return n.Kind + " " + n.Name }

// NameDatabase returns the name of the database of DSN.
func (o *StoreOptions) NameDatabase() (DatabaseName, error) {
	endpoint, err := o.DSN()
	if err != nil {
		return DatabaseName{}, err
	}
	dialect, dsn, err := migrations.ParseEndpoint(endpoint)
	if err != nil {
		return DatabaseName{}, err
	}
	name := DatabaseName{Kind: string(dialect), Name: dsn}
	if dialect == migrations.SQLite {
		if path, err := migrations.ResolveFile(dsn); err == nil {
			name.Name = path
		}
		return name, nil
	}
	config, err := migrations.ParseDSN(dsn)
	if err != nil {
		return DatabaseName{}, err
	}
	name.Name = migrations.DatabaseName(config.ConnConfig) + " at " + migrations.Address(config.ConnConfig)
	return name, nil
}

// Validate returns one error for each invalid flag.
func (o *StoreOptions) Validate() []error {
	var errs invalid
	errs.unless(o.DataDir != "", "--data-dir must not be empty")
	_, err := o.DSN()
	errs.add(err)
	errs.unless(o.Retention >= 0, "--retention must not be negative")
	errs.unless(o.CompactionInterval > 0, "--compaction-interval must be positive")
	errs.unless(o.RepresentationCacheBytes >= 0, "--representation-cache-bytes must not be negative")
	errs.unless(o.DeleteCollectionWorkers > 0, "--delete-collection-workers must be positive")
	_, err = o.ResourceRetentions()
	errs.add(err)
	errs.unless(!o.EncryptionReload || o.EncryptionConfig != "",
		"--encryption-provider-config-automatic-reload needs --encryption-provider-config")
	errs.unless(o.DatabaseQuota.Value() >= 0, "--database-quota must not be negative")
	reserve := o.DiskReserve.Value()
	errs.unless(reserve == 0 || reserve >= smallestReserve,
		"--disk-reserve must be 0 or at least 24Mi: the write-ahead log takes up to 16Mi of it")
	errs.add(o.checkVolatile())
	errs.unless(o.RetentionChanges >= 0, "--retention-changes must not be negative")
	return errs
}

// shortLived are resources that change all the time, each change of little interest later. Their
// history is kept for shortRetention, unless RetentionFor selects them.
var shortLived = []string{"pods", "nodes", "leases", "events", "endpoints", "endpointslices"}

const shortRetention = 24 * time.Hour

// ResourceRetentions returns RetentionFor, parsed, in the order of the names, and what is kept for
// shortRetention.
func (o *StoreOptions) ResourceRetentions() ([]sqlstore.ResourceRetention, error) {
	all, err := o.namedRetentions()
	if _, isSet := o.RetentionFor["*"]; isSet || o.Retention > 0 && o.Retention <= shortRetention {
		return all, err
	}
	for _, name := range shortLived {
		of := sqlstore.GroupResource{Resource: name}
		if !slices.ContainsFunc(all, func(r sqlstore.ResourceRetention) bool { return r.GroupResource == of }) {
			all = append(all, sqlstore.ResourceRetention{GroupResource: of, Age: shortRetention})
		}
	}
	return all, err
}

// History returns the options of a store that say for how long history is kept, and how large the database may become.
func (o *StoreOptions) History() (sqlstore.Options, error) {
	retentions, err := o.ResourceRetentions()
	return sqlstore.Options{
		Retention: unlimited(o.Retention), RetentionChanges: unlimited(o.RetentionChanges), RetentionFor: retentions,
		Quota: o.DatabaseQuota.Value(), CompactInterval: o.CompactionInterval,
	}, err
}

// unlimited turns 0, which means no limit in a flag, into -1, which means no limit in
// sqlstore.Options.
func unlimited[T time.Duration | int64](limit T) T {
	if limit == 0 {
		return -1
	}
	return limit
}

func (o *StoreOptions) namedRetentions() (all []sqlstore.ResourceRetention, err error) {
	for _, name := range slices.Sorted(maps.Keys(o.RetentionFor)) {
		of := schema.ParseGroupResource(name)
		age, err := moment.ParseDuration(o.RetentionFor[name])
		switch {
		case of.Resource == "" || strings.Contains(name, "*") && name != "*":
			return nil, fmt.Errorf("--retention-for: %q is not a resource, such as leases or deployments.apps, nor *", name)
		case err != nil:
			return nil, fmt.Errorf("--retention-for: %s: %w", name, err)
		case age < 0:
			return nil, fmt.Errorf("--retention-for: %s must not be negative", name)
		case age == 0:
			age = -1 // for ever
		}
		all = append(all, sqlstore.ResourceRetention{
			GroupResource: sqlstore.GroupResource{Group: of.Group, Resource: of.Resource}, Age: age,
		})
	}
	return all, nil
}

func (o *StoreOptions) checkVolatile() error {
	for _, name := range o.Volatile {
		if of := schema.ParseGroupResource(name); of.Resource == "" || strings.Contains(name, "*") {
			return fmt.Errorf("--volatile: %q is not a resource, such as leases or events.events.k8s.io", name)
		}
	}
	dsn, err := o.DSN()
	if err != nil || len(o.Volatile) == 0 {
		return nil // Validate reports the error of the endpoint
	}
	if dialect, _, err := migrations.ParseEndpoint(dsn); err == nil && dialect != migrations.SQLite {
		return errors.New(
			"--volatile needs SQLite: on PostgreSQL other replicas would not see what one of them has in memory")
	}
	return nil
}

// IsVolatile returns a function that reports whether Volatile names the resource of a
// key. It returns nil if Volatile is empty.
func (o *StoreOptions) IsVolatile() func(sqlstore.Key) bool {
	if len(o.Volatile) == 0 {
		return nil
	}
	var named []schema.GroupResource
	for _, name := range o.Volatile {
		named = append(named, schema.ParseGroupResource(name))
	}
	return func(k sqlstore.Key) bool {
		return slices.ContainsFunc(named, func(of schema.GroupResource) bool {
			return of.Resource == k.Resource && (of.Group == "" || of.Group == k.Group)
		})
	}
}
