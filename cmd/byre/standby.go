package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"byre/apiserver"
	"byre/apiserver/options"
	"byre/apiserver/process/pki"
	"byre/cmd/byre/cli"
	"byre/migrations"
	"byre/migrations/fileowner"
	"byre/sqlstore/backup/location"
	"byre/sqlstore/replication"
	"byre/sqlstore/replication/lease"
	"byre/sqlstore/replication/standby"
	"byre/sqlstore/sqlite"
)

// tolerableLag is how far the copy may be behind for the standby to go on from it by itself. Healthy is a second;
// as the alert of a copy that is behind.
const tolerableLag = time.Minute

// serveByLease is serveDatabase while this server has the lease of its destination. It follows until then.
func serveByLease(ctx context.Context, o options.Completed) error {
	endpoint, err := o.Store.DSN()
	if err != nil {
		return err
	}
	_, path, err := migrations.ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	if err := fileowner.MkdirAll(o.Store.DataDir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := sqlite.ReleaseReserve(path); err != nil {
		return err
	}
	keys := keysOf(o)
	return standby.Run(ctx, standby.Config{
		URL: o.Store.ReplicateTo[0], S3: o.Store.S3, Path: path, Duration: o.Store.LeaseDuration,
		Logger:   slog.New(logr.ToSlogHandler(klog.Background())),
		SetAside: sqlite.SetAside, Replace: sqlite.Replace,
		Accept: func(s lease.State) error {
			if s.Keys != "" && s.Keys != keys {
				return fmt.Errorf("%s has other keys than %s, which serves or did so last: copy that directory from there, so that clients trust both servers", o.CertDir, s.Holder)
			}
			return nil
		},
		Follow: func(ctx context.Context, current func() standby.Status) error {
			return apiserver.ServeStandby(ctx, o, current)
		},
		Serve: func(ctx context.Context, l *lease.Lease) (complete bool, err error) {
			var copied *replication.Replicator
			err = serveDatabase(ctx, o, func(ctx context.Context, store options.StoreOptions) (apiserver.Database, error) {
				database, err := openDatabaseBehind(ctx, store, l)
				copied = database.Replication
				return database, err
			}, func(ctx context.Context) error {
				legacyregistry.Registerer().MustRegister(leaseMetric(l.State()))
				return l.Serve(ctx, keysOf(o), func() bool { return copied.Status()[0].Lag > tolerableLag })
			})
			return copied != nil && copied.IsComplete(), err
		},
		Lost: func(err error) {
			klog.ErrorS(err, "The lease is lost")
			logs.FlushLogs()
			os.Exit(1) //nolint:revive // nothing that this process would still answer or write may be true
		},
	})
}

// keysOf is a digest of the CA and of the key of service accounts, which two servers share.
func keysOf(o options.Completed) string {
	files, hash := pki.Paths(o.CertDir), sha256.New()
	for _, path := range []string{files.CACert, files.ServiceAccount} {
		text, _ := os.ReadFile(path) // flags may name other ones
		hash.Write(text)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// leaseMetric tells who serves, and since when.
func leaseMetric(s lease.State) prometheus.Collector {
	since := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "byre_lease_acquired_timestamp_seconds",
		Help:        "When this server has taken the lease of --standby. It is absent without.",
		ConstLabels: prometheus.Labels{"holder": s.Holder, "generation": strconv.FormatInt(s.Generation, 10)},
	})
	since.Set(float64(s.Since.Unix()))
	return since
}

func newTakeoverCommand() *cobra.Command {
	var places []string
	var s3 location.S3
	var yes bool
	timeout := 5 * time.Minute
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "Have the standby take over from the server that serves",
		Long: "Have the standby take over from the server that serves, without losing a write.\n\n" +
			"It asks the holder of the lease in the place of --replicate-to to stop. The holder completes its\n" +
			"requests and its copy, and releases the lease, which the standby then takes. If no standby takes\n" +
			"it, the old holder does when it is started again. The command may run on either machine.",
		Example: "  byre takeover --yes",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(places) != 1 {
				return errors.New("name the place of the two servers with --replicate-to s3://BUCKET/PATH")
			}
			object, err := replication.LeaseOf(places[0], s3)
			if err != nil {
				return fmt.Errorf("--replicate-to %w", err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return takeOver(ctx, cmd, object, yes)
		},
	}
	cmd.Flags().StringArrayVar(&places, "replicate-to", nil, "Place of the two servers: s3://BUCKET/PATH.")
	s3.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "Do not ask.")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "How long to wait until another server serves.")
	return cmd
}

func takeOver(ctx context.Context, cmd *cobra.Command, object *lease.Object, yes bool) error {
	before, exists, err := object.Read(ctx)
	switch {
	case err != nil:
		return err
	case !exists:
		return lease.ErrNobody
	}
	if !yes {
		fmt.Fprintf(cmd.OutOrStdout(), "%s serves since %s. It stops, and the standby takes over. Go on? [y/N] ", before.Holder, before.Since.Format(time.RFC3339))
		if yes, err := cli.IsYes(ctx, cmd.InOrStdin()); err != nil {
			return err
		} else if !yes {
			return errors.New("nothing was done: answer y, or use --yes")
		}
	}
	if before, err = object.RequestHandOver(ctx); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "waiting until another server serves instead of %s\n", before.Holder)
	for {
		now, _, err := object.Read(ctx)
		if err == nil && now.Generation == before.Generation && now.Released && now.Lacks {
			return fmt.Errorf("%s has stopped before its last writes were copied, which takes long now: start it again, where its supervisor does not; it serves, and nothing is lost", now.Holder)
		}
		if err == nil && now.Generation > before.Generation && now.Serving {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s serves\n", now.Holder)
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no other server serves yet: see the log of the standby, and of %s", before.Holder)
		case <-time.After(time.Second):
		}
	}
}
