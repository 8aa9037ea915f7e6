package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"byre/aggregator"
	"byre/apiserver/process"
	"byre/apiserver/server"
	"byre/crd"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
)

func newServeCommand(config *configuration) *cobra.Command {
	o := newServerOptions()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the Kubernetes API",
		Long: "Serve the Kubernetes API from SQLite or PostgreSQL.\n\n" +
			"The first start makes the database, the certificates and an administrator's\n" +
			"kubeconfig below --data-dir; later starts go on with them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), o) },
	}
	addServerFlags(cmd, o.Flags(), config, versionText)
	return cmd
}

// newServerOptions returns the defaults of the server, with the parts that only this program has.
func newServerOptions() *server.Options { return server.NewOptions(newViewsFeature()) }

func serve(ctx context.Context, o *server.Options) error {
	// The server's own client would log every warning that the server sends.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	if err := o.Apply(); err != nil {
		return err
	}
	if flags := o.Ignored(); len(flags) > 0 {
		klog.Warningf("%s: these flags change nothing, because there is no separate watch cache to tune: leave them out",
			strings.Join(flags, ", "))
	}
	completed, err := o.Complete()
	if err != nil {
		return err
	}
	if o.Store.Standby {
		err = serveByLease(ctx, completed)
	} else {
		err = serveDatabase(ctx, completed, openDatabase, func(context.Context) error { return nil })
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		klog.InfoS("Stopped during the start")
		return nil // a stop that was asked for is no failure, as in kube-apiserver
	}
	return err
}

// serveDatabase serves the database that open opens, until ctx ends. It calls begin when everything is there, and
// nothing was committed for a client yet.
func serveDatabase(ctx context.Context, o server.Completed,
	open func(context.Context, server.StoreOptions) (server.Database, error),
	begin func(context.Context) error,
) error {
	var custom *crd.Server // it is made first: the aggregator needs to know when it is synced
	config := server.Config{
		Options:      o,
		OpenDatabase: open,
		CustomResources: func(d process.Dependencies, delegate http.Handler) (_ process.ChainServer, err error) {
			custom, err = crd.New(d, delegate)
			return custom, err
		},
		Aggregator: func(d process.Dependencies, delegate http.Handler) (process.ChainServer, error) {
			return aggregator.New(d, aggregator.Options{CustomSynced: custom.Synced(), Metrics: metrics{}}, delegate)
		},
	}
	server, err := server.New(ctx, config)
	if err != nil {
		return err
	}
	if err := begin(ctx); err != nil {
		return errors.Join(err, server.Close())
	}
	return server.Run(ctx)
}

// openDatabase migrates the database to this program's schema and opens it.
func openDatabase(ctx context.Context, o server.StoreOptions) (server.Database, error) {
	return openDatabaseBehind(ctx, o, nil)
}

// crashCheckTime is for how long a start after a crash checks the file before it serves.
const crashCheckTime = 750 * time.Millisecond

// openDatabaseBehind is openDatabase of a server with --standby, which has the lease l; nil for others.
func openDatabaseBehind(ctx context.Context, o server.StoreOptions, l *replication.Lease) (server.Database, error) {
	endpoint, err := o.DSN()
	if err != nil {
		return server.Database{}, err
	}
	dialect, dsn, err := migrations.ParseEndpoint(endpoint)
	if err != nil {
		return server.Database{}, err
	}
	logger := slog.New(logr.ToSlogHandler(klog.Background()))
	isChecked := true
	if dialect == migrations.SQLite {
		if err := sqlite.ReleaseReserve(dsn); err != nil {
			return server.Database{}, err
		}
		if isChecked, err = sqlite.InspectAfterCrash(ctx, dsn, l == nil, crashCheckTime, logger); err != nil {
			return server.Database{}, err
		}
	}
	state, err := logSteps(logger, func(onStep func(migrations.Step)) (migrations.State, error) {
		return migrations.Up(ctx, endpoint, onStep)
	})
	if err != nil {
		return server.Database{}, err
	}
	name, err := o.NameDatabase()
	if err != nil {
		return server.Database{}, err
	}
	database := server.Database{
		Kind: name.Kind, Name: name.Name, Schema: int(state.Current),
		ReadSnapshot: func(ctx context.Context, read func(sqlstore.Snapshot) error) error {
			return readOpenDatabase(ctx, endpoint, read)
		},
		RecordBackup: func(ctx context.Context, b sqlstore.LastBackup) error { return storeBackupRecord(ctx, endpoint, b) },
	}
	switch dialect {
	case migrations.SQLite:
		opened := sqlite.Options{
			Volatile: o.IsVolatile(), Reserve: o.DiskReserve.Value(), Unsynced: o.IsForTest, Logger: logger,
		}
		if len(o.ReplicateTo) > 0 {
			if database.Replication, err = replication.New(o.ReplicateTo, o.S3, logger); err != nil {
				return server.Database{}, err
			}
			database.Replication.Sync = o.ReplicateSync
		}
		if l != nil {
			database.Fence, database.Replication.Began = l.Check, l.SetFolder
			opened.Lineage, opened.NewEpoch = l.State().Holder, l.MayFork()
		}
		opened.Replication, opened.Fence = database.Replication, database.Fence
		var driver *sqlite.Driver
		if driver, err = sqlite.Open(ctx, dsn, opened); err != nil {
			break
		}
		database.Driver = driver
		if !isChecked {
			database.CheckFile = driver.CheckFile
		}
	case migrations.Postgres:
		database.Shared = true
		database.Driver, err = postgres.Open(ctx, dsn, postgres.Options{
			AllowLoss: o.AllowUnsafeDurability, Logger: logger, Registerer: legacyregistry.Registerer(),
		})
	}
	if err != nil {
		return server.Database{}, err
	}
	recordUsedDatabase(o, name)
	return database, nil
}

// metrics is the registry of the process, which upstream's metrics are in too.
type metrics struct{}

func (metrics) Register(c k8smetrics.Registerable) error { return legacyregistry.Register(c) }
func (metrics) CustomRegister(c k8smetrics.StableCollector) error {
	return legacyregistry.CustomRegister(c)
}
