package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"byre/apiserver/process"
	"byre/apiserver/server"
	"byre/migrations"
	"byre/sqlstore"
	etcd "byre/sqlstore/etcd/server"
	"byre/watch"
)

// etcdOptions are the flags of "byre etcd".
type etcdOptions struct {
	store            server.StoreOptions
	listening        etcd.Listening
	progressInterval time.Duration
}

// storeFlagsOfEtcd are the flags of "byre serve" that say how the database is kept.
var storeFlagsOfEtcd = []string{
	"endpoint", "database-schema", "retention", "retention-changes", "retention-for", "compaction-interval",
	"database-quota", "disk-reserve", "allow-unsafe-durability",
}

func newServeEtcdCommand() *cobra.Command {
	o := etcdOptions{store: server.NewStoreOptions()}
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Serve the etcd v3 API, for kube-apiserver and other clients of etcd",
		Long: "Serve the etcd v3 API from SQLite or PostgreSQL, for kube-apiserver and other clients of\n" +
			"etcd: give its address to them as that of etcd. docs/etcd.md says what differs from etcd.",
		Example: "  byre etcd --data-dir /var/lib/byre-etcd --listen-client-urls http://127.0.0.1:2379",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return serveEtcd(cmd.Context(), o) },
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.store.AddFlags(all)
	for _, name := range storeFlagsOfEtcd {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	cmd.Flags().StringVar(&o.store.DataDir, "data-dir", o.store.DataDir,
		"Directory of the SQLite database if there is no --endpoint.")
	cmd.Flags().StringSliceVar(&o.listening.ClientURLs, "listen-client-urls", []string{"http://localhost:2379"},
		"Where clients are served: http://HOST:PORT or https://HOST:PORT.")
	cmd.Flags().DurationVar(&o.progressInterval, "watch-progress-notify-interval", 10*time.Minute,
		"Time between two progress notifications of a watch that asks for them.")
	cmd.Flags().StringVar(&o.listening.CertFile, "cert-file", "",
		"Certificate of https, in PEM. It is read at each connection.")
	cmd.Flags().StringVar(&o.listening.KeyFile, "key-file", "", "Private key of --cert-file.")
	cmd.Flags().StringVar(&o.listening.TrustedCAFile, "trusted-ca-file", "",
		"Authorities, in PEM, of the certificates that clients must have.")
	cmd.Flags().BoolVar(&o.listening.ClientCertAuth, "client-cert-auth", false,
		"Require certificates of --trusted-ca-file of clients, which the latter does too.")
	return cmd
}

func serveEtcd(ctx context.Context, o etcdOptions) (err error) {
	if err := errors.Join(o.store.Validate()...); err != nil {
		return err
	}
	if o.progressInterval <= 0 {
		return errors.New("--watch-progress-notify-interval must be positive")
	}
	options, err := o.store.History()
	if err != nil {
		return err
	}
	// The ports first: whoever connects meanwhile waits.
	listeners, err := etcd.Listen(ctx, o.listening)
	if err != nil {
		return err
	}
	defer func() { _ = listeners.Close() }()
	if o.store.Endpoint == "" {
		if err := migrations.MkdirAllOwned(o.store.DataDir, 0o700); err != nil {
			return err
		}
	}
	database, err := openDatabase(ctx, o.store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, database.Driver.Close()) }()
	logger := slog.New(logr.ToSlogHandler(klog.Background()))
	feed := watch.New(database.Driver, watch.Options{
		Logger: logger, Registerer: legacyregistry.Registerer(),
	})
	options.Publish, options.Logger, options.Registerer = feed.Publish, logger, legacyregistry.Registerer()
	store := sqlstore.New(database.Driver, options)
	s := etcd.New(etcd.Options{
		Store: store, Feed: feed, ClientURLs: listeners.URLs, Quota: o.store.DatabaseQuota.Value(),
		ProgressInterval: o.progressInterval, Logger: logger,
	})
	// The requests end first, then what they need.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var services sync.WaitGroup
	defer services.Wait()
	defer stop()
	services.Go(func() { _ = store.Run(running) })
	services.Go(func() { _ = feed.Run(running) })
	if err := s.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // a stop that was asked for is no failure
		}
		return err
	}
	services.Go(func() { _ = s.Run(running) })
	if check := database.CheckFile; check != nil {
		services.Go(func() {
			if err := check(running); err != nil && running.Err() == nil {
				klog.ErrorS(err, "The check of the database file after a crash failed: run \"byre check\"")
			}
		})
	}
	ready := make(chan struct{})
	close(ready)
	services.Go(func() { _ = process.TuneMemory(running, ready) })
	klog.InfoS("Serving the etcd API", "database", database.Name, "urls", listeners.URLs)
	err = s.Serve(ctx, listeners, s.Handler(promhttp.HandlerFor(legacyregistry.DefaultGatherer, promhttp.HandlerOpts{})))
	klog.InfoS("Stopped serving the etcd API")
	return err
}
