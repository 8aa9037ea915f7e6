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

	"byre/apiserver/process/pki"
	"byre/apiserver/server"
	"byre/cmd/byre/client"
	"byre/migrations"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
)

// tolerableLag is how far the copy may be behind for the standby to go on from it by itself. Healthy is a second;
// as the alert of a copy that is behind.
const tolerableLag = time.Minute

// serveByLease is serveDatabase while this server has the lease of its destination. It follows until then.
func serveByLease(ctx context.Context, o server.Completed) error {
	endpoint, err := o.Store.DSN()
	if err != nil {
		return err
	}
	_, path, err := migrations.ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	if err := migrations.MkdirAllOwned(o.Store.DataDir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := sqlite.ReleaseReserve(path); err != nil {
		return err
	}
	keys := keysOf(o)
	return replication.RunStandby(ctx, replication.StandbyConfig{
		URL: o.Store.ReplicateTo[0], S3: o.Store.S3, Path: path, Duration: o.Store.LeaseDuration,
		Logger:   slog.New(logr.ToSlogHandler(klog.Background())),
		SetAside: sqlite.SetAside, Replace: sqlite.Replace,
		Position: func(ctx context.Context, path string, isCopy bool) (p replication.Position, err error) {
			p.Lineage, p.Revision, err = sqlite.ReadPosition(ctx, path, isCopy)
			return p, err
		},
		Accept: func(s replication.LeaseState) error {
			if s.Keys != "" && s.Keys != keys {
				return fmt.Errorf(
					"%s has other keys than %s, which serves or did so last: copy that directory from there, so that clients trust both servers", o.CertDir, s.Holder)
			}
			return nil
		},
		Follow: func(ctx context.Context, current func() replication.StandbyStatus) error {
			return server.ServeStandby(ctx, o, current)
		},
		Serve: func(ctx context.Context, l *replication.Lease) (complete bool, err error) {
			var copied *replication.Replicator
			err = serveDatabase(ctx, o, func(ctx context.Context, store server.StoreOptions) (server.Database, error) {
				database, err := openDatabaseBehind(ctx, store, l)
				copied = database.Replication
				return database, err
			}, func(ctx context.Context) error {
				legacyregistry.Registerer().MustRegister(leaseMetrics{l, l.State()})
				return l.Serve(ctx, keysOf(o), func() (int64, uint64) { return copied.Position(tolerableLag) })
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
func keysOf(o server.Completed) string {
	files, hash := pki.Paths(o.CertDir), sha256.New()
	for _, path := range []string{files.CACert, files.ServiceAccount} {
		text, _ := os.ReadFile(path) // flags may name other ones
		hash.Write(text)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// leaseMetrics tell who serves, and since when, and what the standby has.
type leaseMetrics struct {
	*replication.Lease
	state replication.LeaseState
}

var (
	standbyRevisionDesc = prometheus.NewDesc("byre_lease_standby_revision",
		"Revision that the copy of the standby has. It is absent if no standby has told anything.", []string{"standby"}, nil)
	standbyAgeDesc = prometheus.NewDesc("byre_lease_standby_age_seconds",
		"How long ago the standby has told the revision of its copy.", []string{"standby"}, nil)
	leaseAcquiredDesc = prometheus.NewDesc("byre_lease_acquired_timestamp_seconds",
		"When this server has taken the lease of --standby. It is absent without.", []string{"holder", "generation"}, nil)
)

// Describe implements prometheus.Collector.
func (leaseMetrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- leaseAcquiredDesc
	descriptions <- standbyRevisionDesc
	descriptions <- standbyAgeDesc
}

// Collect implements prometheus.Collector.
func (l leaseMetrics) Collect(metrics chan<- prometheus.Metric) {
	s := l.state
	metrics <- prometheus.MustNewConstMetric(leaseAcquiredDesc, prometheus.GaugeValue, float64(s.Since.Unix()), s.Holder,
		strconv.FormatInt(s.Generation, 10))
	if reported, age := l.Standby(); reported.Name != "" {
		metrics <- prometheus.MustNewConstMetric(standbyRevisionDesc, prometheus.GaugeValue,
			float64(reported.Position.Revision), reported.Name)
		metrics <- prometheus.MustNewConstMetric(standbyAgeDesc, prometheus.GaugeValue, age.Seconds(), reported.Name)
	}
}

func newTakeoverCommand() *cobra.Command {
	var places []string
	var s3 bucket.S3
	var yes bool
	timeout := 5 * time.Minute
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "Have the standby take over from the server that serves",
		Long: "Have the standby take over from the server that serves, without losing a write.\n\n" +
			"It asks the holder of the lease in the place of --replicate-to to stop. The holder completes its\n" +
			"requests and its copy, and releases the lease, which the standby then takes. Without a standby\n" +
			"that has a copy nothing is done. The command may run on either machine.",
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

// awaitStandby returns the standby that has a copy of what the holder has copied, once it has said so again.
func awaitStandby(
	ctx context.Context, object *replication.LeaseObject, held replication.LeaseState,
) (replication.Standby, error) {
	begin := time.Now()
	for first := (replication.Standby{}); ; {
		s, err := object.ReadStandby(ctx)
		switch {
		case err != nil:
			return s, err
		case first == replication.Standby{}:
			first = s
		case s != first && s.Folder == held.Folder:
			return s, nil
		}
		if time.Since(begin) > held.Duration() {
			text := "none has ever reported"
			if s.Name != "" {
				text = fmt.Sprintf("%s had revision %d at %s", s.Name, s.Position.Revision, s.Time.Format(time.RFC3339))
			}
			return s,
				fmt.Errorf("no standby has a copy of what %s has (%s), and nothing was done: start the standby, or see its log",
					held.Holder, text)
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func takeOver(ctx context.Context, cmd *cobra.Command, object *replication.LeaseObject, yes bool) error {
	before, exists, err := object.Read(ctx)
	switch {
	case err != nil:
		return err
	case !exists:
		return replication.ErrLeaseNobody
	}
	if !yes {
		fmt.Fprintf(cmd.OutOrStdout(), "%s serves since %s. It stops, and the standby takes over. Go on? [y/N] ",
			before.Holder, before.Since.Format(time.RFC3339))
		if yes, err := client.IsYes(ctx, cmd.InOrStdin()); err != nil {
			return err
		} else if !yes {
			return errors.New("nothing was done: answer y, or use --yes")
		}
	}
	next, err := awaitStandby(ctx, object, before)
	if err != nil {
		return err
	}
	if before, err = object.RequestHandOver(ctx, next.Name); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "waiting until %s serves instead of %s\n", next.Name, before.Holder)
	for {
		now, _, err := object.Read(ctx)
		switch {
		case err != nil:
		case now.Generation == before.Generation && now.Released && now.HandOverTo == "":
			return fmt.Errorf(
				"%s has stopped before its last writes were copied, which takes long now: start it again, where its supervisor does not; it serves, and nothing is lost", now.Holder)
		case now.Generation > before.Generation && now.Holder != next.Name:
			return fmt.Errorf("%s has not taken over, and %s has: see the log of the standby", next.Name, now.Holder)
		case now.Generation > before.Generation && now.Serving:
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
