package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/process/pki"
	"byre/apiserver/server"
	"byre/cmd/byre/client"
	"byre/cmd/byre/status"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
)

// statusAlarms is the exit status of "byre status" when there are alarms.
const statusAlarms = 2

// databaseTimeout bounds the reading of a database's status.
const databaseTimeout = 5 * time.Second

func newStatusCommand() *cobra.Command {
	store := server.NewStoreOptions()
	var certDir string
	var output client.Output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the database, the history, replicas, leaders, certificates and alarms",
		Long: "Show the database, the history, replicas, leaders, certificates and alarms.\n\n" +
			"A running server is asked, with admin.kubeconfig of --data-dir; what it can't tell, such\n" +
			"as the size of a database that does not answer, is an alarm. If no server answers, the\n" +
			"database is read instead: that of --endpoint, or the SQLite file in --data-dir if its\n" +
			"servers use that.\n\n" +
			"The exit status is 0 without alarms, 2 with alarms, and 1 if nothing can be read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			certs := certsFlags{dataDir: store.DataDir, certDir: certDir}
			s, err := readStatus(cmd.Context(), store, certs.config())
			if err != nil {
				return err
			}
			if err := output.Print(cmd.OutOrStdout(), s, func(w io.Writer) error {
				return printStatus(w, s, time.Now())
			}); err != nil {
				return err
			}
			if n := len(s.Alarms); n > 0 {
				text := fmt.Sprintf("%d alarms", n)
				if n == 1 {
					text = "1 alarm"
				}
				return &statusError{errors.New(text), statusAlarms}
			}
			return nil
		},
	}
	store.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&certDir, "cert-dir", "", "Directory of the certificates. If not set, pki below --data-dir.")
	output.AddTo(cmd, "text", "json", "yaml")
	return cmd
}

// readStatus asks the server, or else reads the database.
func readStatus(ctx context.Context, store server.StoreOptions, certs pki.Config) (status.Status, error) {
	s, serverErr := askServer(ctx, certs)
	if apierrors.IsServiceUnavailable(serverErr) &&
		!apierrors.HasStatusCause(serverErr, metav1.CauseTypeUnexpectedServerResponse) {
		// It is a server's own answer, as of a standby, whose database is an old copy.
		return s, fmt.Errorf("the server of %s answers: %w", certs.Kubeconfig, serverErr)
	}
	if serverErr != nil {
		var err error
		if s, err = readStoppedStatus(ctx, store); err != nil {
			return s,
				fmt.Errorf(
					"no server answers (%s), nor can the database be read: start \"byre serve\", or name its --data-dir or --endpoint: %w", serverErr.Error(), err)
		}
		s.Alarms = append(s.Alarms,
			"no server answers, and the database was read instead ("+serverErr.Error()+
				"): start \"byre serve\", or name its --data-dir")
	} else if store.Endpoint != "" && s.Database.Address != "" {
		named, err := store.NameDatabase()
		if err != nil {
			return s, err
		}
		if served := (server.DatabaseName{Kind: s.Database.Kind, Name: s.Database.Address}); named != served {
			s.Alarms = append(s.Alarms,
				fmt.Sprintf(
					"the server of --data-dir serves %s, and this is its status, not that of %s: name the other server's --data-dir",
					served, named))
		}
	}
	certificates, err := pki.Inspect(certs.Dir, certs.Kubeconfig, certs.Now)
	if err != nil {
		return s, err
	}
	s.AddCertificates(certificates)
	return s, nil
}

func askServer(ctx context.Context, certs pki.Config) (status.Status, error) {
	config, err := serverConfig(certs)
	if err != nil {
		return status.Status{}, err
	}
	return status.Read(ctx, config, certs.Now)
}

// serverConfig returns how the administrator reaches the server of a directory.
func serverConfig(certs pki.Config) (*rest.Config, error) {
	if _, err := os.Stat(certs.Kubeconfig); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", certs.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certs.Kubeconfig, err)
	}
	return config, nil
}

// readStoppedStatus reads the database. It makes none and migrates none.
func readStoppedStatus(ctx context.Context, store server.StoreOptions) (status.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	s := status.Status{Alarms: []string{}}
	endpoint, err := usedEndpoint(store)
	if err != nil {
		return s, err
	}
	database, err := store.NameDatabase()
	if err != nil {
		return s, err
	}
	s.Database.Kind, s.Database.Address = database.Kind, database.Name
	if database.Kind == string(migrations.SQLite) {
		info, err := os.Stat(database.Name)
		if err != nil {
			return s, err
		}
		s.Database.SizeBytes = info.Size()
	}
	schema, err := migrations.Status(ctx, endpoint)
	if err != nil {
		return s, err
	}
	if schema.Current == 0 {
		return s, migrations.Check(schema.Dialect, migrations.Schema{})
	}
	s.Database.Schema = int(schema.Current)
	if schema.Current < schema.Latest {
		s.Alarms = append(s.Alarms,
			fmt.Sprintf("the schema is %d and this program has %d: \"byre serve\" brings it up", schema.Current, schema.Latest))
		return s, nil
	}
	header := func(h sqlstore.Snapshot) (err error) {
		s.Database.Revision, s.Database.CompactedRevision = h.Revision, h.Compacted
		s.Database.Fork, err = sqlstore.ReadFork(ctx, h.Get)
		return err
	}
	err = withDatabase(endpoint,
		func(path string) (err error) {
			if err := sqlite.ReadSnapshot(ctx, path, header); err != nil {
				return err
			}
			last, err := sqlite.ReadLastBackup(path)
			return s.Database.AddBackup(last, err)
		},
		func(dsn string) error { return readPostgresStatus(ctx, dsn, &s.Database, header) })
	return s, err
}

func readPostgresStatus(
	ctx context.Context, dsn string, d *status.Database, header func(sqlstore.Snapshot) error,
) (err error) {
	if err := postgres.ReadSnapshot(ctx, dsn, header); err != nil {
		return err
	}
	driver, err := postgres.OpenWithoutServing(ctx, dsn, postgres.Options{AllowLoss: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, driver.Close()) }()
	if d.SizeBytes, err = driver.Size(ctx); err != nil {
		return err
	}
	last, err := driver.LastBackup(ctx)
	return d.AddBackup(last, err)
}

// printStatus prints one screen.
func printStatus(out io.Writer, s status.Status, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	if server := s.Server; server == nil {
		line("Server", "none answers")
	} else {
		state := "ready"
		if !server.Ready {
			state = "not ready"
		}
		line("Server", "%s, %s, Kubernetes API %s, %d watchers", server.Address, state, server.Version, server.Watchers)
	}
	printDatabase(line, s.Database, now)
	for _, l := range s.Replicas {
		line("Replica", "%s", replicaText(l, now))
	}
	for _, l := range s.Leaders {
		line("Leader", "%s", leaderText(l, now))
	}
	for _, c := range s.Certificates {
		if c.Missing {
			line("Certificate", "%s is missing", c.Name)
		} else {
			line("Certificate", "%s until %s (%s)", c.Name, c.ExpirationDate.Format(time.DateOnly), residual(c))
		}
	}
	for _, alarm := range s.Alarms {
		line("ALARM", "%s", alarm)
	}
	if len(s.Alarms) == 0 {
		line("Alarms", "none")
	}
	return w.Flush()
}

// printDatabase prints what is known of the database.
func printDatabase(line func(name, format string, args ...any), d status.Database, now time.Time) {
	if d.Kind == "" {
		line("Database", "not known: see the alarms")
		return
	}
	line("Database", "%s, %s, schema %d, %s", d.Kind, d.Address, d.Schema, bytesText(d.SizeBytes))
	if f := d.Fork; f != nil {
		line("FORK", "of revision %d, %s: without controllers and webhooks until \"byre serve --adopt\"", f.Revision,
			f.Time.UTC().Format(time.RFC3339))
	}
	line("Revision", "%d", d.Revision)
	history := fmt.Sprintf("%d changes after revision %d", d.Revision-d.CompactedRevision, d.CompactedRevision)
	if d.Retention != "" {
		history += fmt.Sprintf(", at most %s and %s changes (0 is no limit)", d.Retention, d.RetentionChanges)
	}
	line("History", "%s", history)
	if d.QuotaBytes > 0 {
		line("Quota", "%s of %s", bytesText(d.UsedBytes), bytesText(d.QuotaBytes))
	}
	if d.Disk != nil {
		line("Disk", "%s free, the log has %s", bytesText(d.Disk.FreeBytes), bytesText(d.Disk.LogBytes))
	}
	for _, c := range d.Copies {
		switch {
		case c.LagSeconds == 0:
			line("Copy", "%s, complete", c.Destination)
		case c.LastSuccess.IsZero():
			line("Copy", "%s, never complete since the start of the server", c.Destination)
		default:
			line("Copy", "%s, %s behind, last complete at %s", c.Destination,
				duration.HumanDuration(time.Duration(c.LagSeconds)*time.Second), c.LastSuccess.Format(time.RFC3339))
		}
	}
	if d.LeaseHolder != "" {
		line("Lease", "%s serves since %s", d.LeaseHolder, d.LeaseSince.Format(time.RFC3339))
		if s := d.Standby; s == nil {
			line("Standby", "none has told of a copy")
		} else {
			line("Standby", "%s has revision %d, as of %s ago", s.Name, s.Revision,
				duration.HumanDuration(time.Duration(s.AgeSeconds)*time.Second))
		}
	}
	if b := d.LastBackup; b == nil {
		line("Last backup", "none is recorded")
	} else {
		line("Last backup", "%s (%s ago), revision %d, to %s", b.Time.UTC().Format(time.RFC3339),
			duration.HumanDuration(max(0, now.Sub(b.Time))), b.Revision, b.Location)
	}
}

func replicaText(l status.Lease, now time.Time) string {
	text := strings.TrimSpace(l.Host + " " + l.Name)
	unseen := duration.HumanDuration(max(0, now.Sub(l.RenewTime)))
	if l.Expired {
		return text + ", NOT SEEN for " + unseen
	}
	return text + ", last seen " + unseen + " ago"
}

func leaderText(l status.Lease, now time.Time) string {
	text := l.Name + ": "
	if l.Host != "" {
		text += l.Host + " "
	}
	text += l.Holder
	if !l.RenewTime.IsZero() {
		text += ", renewed " + duration.HumanDuration(max(0, now.Sub(l.RenewTime))) + " ago"
	}
	if l.Expired {
		text += ", EXPIRED"
	}
	return text
}

// bytesText is a size for a person.
func bytesText(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
