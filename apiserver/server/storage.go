package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionreload "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	encryptionmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"byre/apiserver/access/admission"
	"byre/apiserver/process"
	"byre/apiserver/storage"
	"byre/migrations"
	"byre/sqlstore"
	"byre/watch"
)

// storageBackend is the database with the store and the feed over it.
type storageBackend struct {
	storage.Backend
	database   Database
	fork       *sqlstore.Fork // nil unless the server must act as that of a fork
	encryption encryption
	getter     *storage.RESTOptionsGetter // of the built-in resources
	damaged    prometheus.Gauge
}

func openStorage(ctx context.Context, c Config, e encryption) (*storageBackend, error) {
	if err := makeDataDir(c.Options.Store.DataDir); err != nil {
		return nil, err
	}
	database, err := c.OpenDatabase(ctx, c.Options.Store)
	if err != nil {
		return nil, err
	}
	state, err := database.Driver.State(ctx)
	if err != nil {
		return nil, errors.Join(err, database.Driver.Close())
	}
	klog.InfoS("Starting byre", "version", ProgramVersion(), "kubernetes",
		Version(compatibility.DefaultBuildEffectiveVersion()).GitVersion)
	klog.InfoS("Opened database", "database", database.Name, "schema", database.Schema, "revision", state.Revision)
	logger := slog.New(logr.ToSlogHandler(klog.Background()))
	options, err := c.Options.Store.History()
	if err != nil {
		return nil, errors.Join(err, database.Driver.Close())
	}
	if err := warnOfUnknownResources(ctx, database.Driver, c.Options.Store, logger); err != nil {
		return nil, errors.Join(err, database.Driver.Close())
	}
	fork, err := readFork(ctx, database.Driver, c.Options.Store.Adopt)
	if err != nil {
		return nil, errors.Join(err, database.Driver.Close())
	}
	damaged := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "byre_store_damaged",
		Help: "1 if the check of the database file after a crash, which goes on while it is served, has found damage.",
	})
	legacyregistry.Registerer().MustRegister(damaged, newStoreInfo(database, c.Options.Store))
	feed := watch.New(database.Driver, watch.Options{
		StateBytes: stateBytes(process.MemoryLimit()),
		Resident:   residentResources(),
		RepresentationBytes: representationBytes(c.Options.Store.RepresentationCacheBytes, process.MemoryLimit(),
			process.MachineMemory()),
		Logger:     logger,
		Registerer: legacyregistry.Registerer(),
	})
	options.Publish, options.Logger, options.Registerer = feed.Publish, logger, legacyregistry.Registerer()
	store := sqlstore.New(database.Driver, options)
	effective := effectiveVersion()
	backend := storage.Backend{
		Store:                   store,
		Feed:                    feed,
		Program:                 storage.Program(effective),
		Transformers:            e.transformers,
		DeleteCollectionWorkers: c.Options.Store.DeleteCollectionWorkers,
		NoGarbageCollection:     !c.Options.Store.GarbageCollection,
	}
	getter := storage.NewRESTOptionsGetter(backend, storage.BuiltinResources(effective))
	return &storageBackend{Backend: backend, database: database, fork: fork, encryption: e, getter: getter,
		damaged: damaged}, nil
}

// residentResources are those that requests are authenticated and authorized with.
func residentResources() []sqlstore.Resource {
	resources := []sqlstore.Resource{{Resource: "serviceaccounts"}}
	for _, name := range []string{"clusterrolebindings", "clusterroles", "rolebindings", "roles"} {
		resources = append(resources, sqlstore.Resource{Group: v1.GroupName, Resource: name})
	}
	return resources
}

// checkFile checks the file that is served, and raises the alarm if it is damaged.
func (s *storageBackend) checkFile(ctx context.Context) error {
	start := time.Now()
	switch err := s.database.CheckFile(ctx); {
	case ctx.Err() != nil:
	case errors.Is(err, sqlstore.ErrDamaged):
		s.damaged.Set(1)
		klog.ErrorS(err, "The database file is damaged; what can be read of it is right")
	case err != nil:
		klog.ErrorS(err, "The database file can't be checked: run \"byre check\"")
	default:
		klog.InfoS("The database file is sound", "took", time.Since(start).Round(time.Millisecond))
	}
	return nil
}

// newStoreInfo makes the metric byre_store_info. Its labels tell which database the
// server uses, without secrets, and how long the server keeps history. Its value is 1.
func newStoreInfo(database Database, o StoreOptions) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "byre_store_info",
		Help: "The database of this server, the version of its schema, and the limits of the history; 0 means none.",
		ConstLabels: prometheus.Labels{
			"kind": database.Kind, "database": database.Name, "schema": strconv.Itoa(database.Schema),
			"retention": o.Retention.String(), "retention_changes": strconv.FormatInt(o.RetentionChanges, 10),
		},
	})
	info.Set(1)
	return info
}

// makeDataDir makes the directory, with the mode 0700, because private keys and Secrets
// will be in it. A directory that exists keeps its mode. makeDataDir also creates and
// removes a file, so that a directory that cannot be written is reported before
// anything else is done.
func makeDataDir(dir string) error {
	if err := migrations.MkdirAllOwned(dir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	probe, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return fmt.Errorf("--data-dir %s can't be written: %w", filepath.Clean(dir), err)
	}
	if err := probe.Close(); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return os.Remove(probe.Name())
}

// checkDatabase is the health check of the store. Its error is answered to any client, so
// it names neither the driver's text nor the database.
func (s *storageBackend) checkDatabase(ctx context.Context) (err error) {
	if driver, ok := s.database.Driver.(sqlstore.Exclusive); ok {
		err = driver.Probe(ctx)
	} else {
		_, err = s.database.Driver.State(ctx)
	}
	if err == nil {
		return nil
	}
	klog.V(2).InfoS("The database does not answer", "err", err)
	return errors.New(sqlstore.Public(err))
}

// writable makes a check that fails where the given check fails, and also while the
// database takes no writes.
func (s *storageBackend) writable(check process.HealthChecker) process.HealthChecker {
	return healthz.NamedCheck(check.Name(), func(r *http.Request) error {
		if err := s.Store.Writable(); err != nil {
			return err
		}
		return check.Check(r)
	})
}

// quotaCheck is the check of /readyz that fails while the database is at its quota.
// Without a quota (0 bytes) there is no such check.
func (s *storageBackend) quotaCheck(quota int64) []process.HealthChecker {
	if quota == 0 {
		return nil
	}
	return []process.HealthChecker{healthz.NamedCheck("database-quota", func(*http.Request) error {
		return s.Store.Quota()
	})}
}

// close releases the database after everything that uses it has stopped.
func (s *storageBackend) close() {
	start := time.Now()
	if err := s.database.Driver.Close(); err != nil {
		klog.ErrorS(err, "Closing the database failed")
		return
	}
	klog.V(2).InfoS("Database closed", "duration", time.Since(start))
}

// stateFraction is the divisor of the memory limit: the values of resources that nobody
// watches may take a quarter of it (watch.Options.StateBytes). The rest is for what is
// derived from the values, for requests, and for garbage that has not been collected
// yet.
const stateFraction = 4

// stateBytes is this quarter of limit, in bytes. Where an int has 32 bits, it is at
// most the largest int.
func stateBytes(limit int64) int { return int(min(limit/stateFraction, math.MaxInt)) }

// representationFraction is the divisor of the memory that the process may use: the cache of
// representations gets a 32nd, and at least watch.DefaultRepresentationBytes.
const representationFraction = 32

// representationBytes is the budget of the cache of representations, in bytes: flag
// where it is set, and otherwise a part of the memory limit and of what the machine has. 0 means
// that there is no limit, or that the machine does not tell.
func representationBytes(flag, limit, machine int64) int64 {
	if flag > 0 {
		return flag
	}
	if limit == 0 || machine > 0 && machine < limit {
		limit = machine
	}
	return max(limit/representationFraction, watch.DefaultRepresentationBytes)
}

// encryption is encryption at rest, by upstream's providers.
type encryption struct {
	transformers func(schema.GroupResource) value.Transformer
	checks       []process.HealthChecker
	// reload reads the configuration file again when it changes; nil without
	// --encryption-provider-config-automatic-reload.
	reload *encryptionreload.DynamicEncryptionConfigContent
}

// newEncryption reads the configuration file. Without a file, nothing is encrypted. The
// connections to key services, which upstream opens here, stay open until ctx ends, or the
// file is read again.
func newEncryption(ctx context.Context, o StoreOptions, serverID string) (encryption, error) {
	if o.EncryptionConfig == "" {
		return encryption{}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, cancel) // the transformers of a file that is not read again end with the server
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, o.EncryptionConfig, o.EncryptionReload, serverID)
	if err != nil {
		return encryption{}, fmt.Errorf("--encryption-provider-config %s: %w", o.EncryptionConfig, err)
	}
	encryptionmetrics.RecordEncryptionConfigLastConfigInfo(serverID, loaded.EncryptionFileContentHash)
	if !o.EncryptionReload {
		static := encryptionconfig.StaticTransformers(loaded.Transformers)
		return encryption{
			checks: loaded.HealthChecks,
			transformers: func(gr schema.GroupResource) value.Transformer {
				if !covered(loaded.Transformers, gr) {
					return nil
				}
				return static.TransformerForResource(gr)
			},
		}, nil
	}
	dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], cancel,
		loaded.KMSCloseGracePeriod)
	return encryption{
		checks:       []process.HealthChecker{dynamic},
		transformers: dynamic.TransformerForResource,
		reload: encryptionreload.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
			o.EncryptionConfig, dynamic, loaded.EncryptionFileContentHash, serverID),
	}, nil
}

// Transformers reads the encryption configuration file at path. The function it returns
// gives what decrypts the values of a resource; nil for a resource without a rule. The
// connections to key services stay open until ctx ends.
func Transformers(ctx context.Context, path string) (func(schema.GroupResource) value.Transformer, error) {
	e, err := newEncryption(ctx, StoreOptions{EncryptionConfig: path}, "")
	return e.transformers, err
}

// covered reports whether a rule of the configuration applies to the resource. The
// values of a resource without a rule are stored as they are, and are read without a
// transformer.
func covered(rules map[schema.GroupResource]value.Transformer, gr schema.GroupResource) bool {
	for _, rule := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if rules[rule] != nil {
			return true
		}
	}
	return false
}

// A server of a fork (sqlstore.Fork) must not act on what the objects describe, because that is
// another cluster's: it runs no controllers, calls no admission webhooks, and connects to no node, Pod
// or Service, and so to no aggregated API server. It does call the conversion webhooks of custom
// resources, without which it could not read them.

// readFork reads whether the database is a fork. With adopt it is served as any other, and its record
// is deleted by storageBackend.deleteForkRecord.
func readFork(ctx context.Context, driver sqlstore.Driver, adopt bool) (*sqlstore.Fork, error) {
	fork, err := sqlstore.ReadFork(ctx, driver.Get)
	if fork == nil || adopt || err != nil {
		return nil, err
	}
	moment := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "byre_store_fork_timestamp_seconds",
		Help:        "The moment whose objects byre fork has copied to this database, with its revision. It is absent unless the database is a fork.",
		ConstLabels: prometheus.Labels{"revision": fmt.Sprint(fork.Revision)},
	})
	moment.Set(float64(fork.Time.Unix()))
	legacyregistry.Registerer().MustRegister(moment)
	klog.Warningf(
		"THIS IS A FORK, of revision %d of %s: no controllers run, no admission webhooks or aggregated API servers are called, and nodes, Pods and Services are not connected to. \"byre serve --adopt\" makes it a cluster of its own",
		fork.Revision, fork.Time.UTC().Format(time.RFC3339))
	return fork, nil
}

var errFork = errors.New(
	"this is a fork, which connects to no node, Pod or Service: start it with --adopt to make it a cluster of its own")

// refuseDial is the dial function of a fork.
func refuseDial(context.Context, string, string) (net.Conn, error) { return nil, errFork }

// withoutWebhooks returns the options of a fork.
func withoutWebhooks(o admission.Options) *admission.Options {
	generic := *o.GenericAdmission
	generic.DisablePlugins = append([]string{mutatingwebhook.PluginName, validatingwebhook.PluginName},
		generic.DisablePlugins...)
	o.GenericAdmission = &generic
	return &o
}

// deleteForkRecord deletes the record of a fork, if there is one.
func (s *storageBackend) deleteForkRecord(ctx context.Context) error {
	record, _, err := s.database.Driver.Get(ctx, sqlstore.ForkKey)
	if err == nil {
		_, err = s.Store.Commit(ctx, sqlstore.Write{
			Op: sqlstore.Delete, Key: sqlstore.ForkKey, Replaces: record.Revision,
			Author: sqlstore.Author{User: "byre", Verb: "adopt"},
		})
	}
	if errors.Is(err, sqlstore.ErrNotFound) { // another server has deleted it
		return nil
	}
	return err
}
