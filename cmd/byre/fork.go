package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/apiserver/access/auth"
	"byre/apiserver/controllers"

	"byre/apiserver/server"
	"byre/apiserver/storage/encoding"
	"byre/cmd/byre/client"
	"byre/sqlstore"
	"byre/sqlstore/backup"
)

// forkFlags are those of "byre fork".
type forkFlags struct {
	from server.StoreOptions
	at   string
	// to is a directory or a DSN.
	to, toSchema string
}

func newForkCommand() *cobra.Command {
	f := forkFlags{from: server.NewStoreOptions()}
	cmd := &cobra.Command{
		Use:   "fork [flags] --to DIR|DSN",
		Short: "Make a second control plane with the objects of a moment",
		Long: "Make a second control plane with the objects of a moment, to rehearse an upgrade or to debug\n" +
			"yesterday. The database that it reads may be in use, and is not changed.\n\n" +
			"The fork is another cluster: the namespace kube-system has another UID, the store is in a\n" +
			"new epoch, and \"byre serve\" makes another CA and service account key for it. It has no\n" +
			"history. Serve it from a directory of its own. Until \"byre serve --adopt\" a server of it\n" +
			"runs no controllers, calls no admission webhooks, and connects to no node, Pod or Service.\n\n" +
			"What is encrypted at rest stays so: the fork needs the same --encryption-provider-config.\n\n" +
			"The moment, now without --at, must lie within the history of every resource: by default\n" +
			"that is 24 hours.",
		Example: "  byre fork --data-dir /var/lib/byre --at -2h --to /tmp/fork && byre serve --data-dir /tmp/fork --secure-port 7443\n" +
			"  byre fork --endpoint postgres://byre@db.example.com/byre --to postgres://byre@db.example.com/rehearsal",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.from.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&f.at, "at", "", "The moment: "+client.MomentHelp+". If not set, now.")
	cmd.Flags().StringVar(&f.to, "to", "", "Directory to make the SQLite database in, or database to fill: sqlite:///PATH or postgres://...")
	cmd.Flags().StringVar(&f.toSchema, "to-schema", "", "Schema of the PostgreSQL database to fill.")
	_ = cmd.MarkFlagRequired("to") // the flag is there
	return cmd
}

func (f *forkFlags) run(cmd *cobra.Command) error {
	var moment client.Moment
	var err error
	if f.at != "" {
		if moment, err = client.ParseMoment(f.at); err != nil {
			return fmt.Errorf("--at %w", err)
		}
	}
	from, err := usedEndpoint(f.from)
	if err != nil {
		return err
	}
	to, err := f.target()
	if err != nil {
		return err
	}
	p := newProgress(cmd.ErrOrStderr(), "forking")
	defer p.end()
	return readDatabase(cmd.Context(), from, func(s sqlstore.Snapshot) error {
		s, fork, err := forkAt(s, moment)
		if _, outside := errors.AsType[*backup.HistoryError](err); outside {
			return fmt.Errorf("--at: %w: name a moment within it", err)
		}
		if err != nil {
			return err
		}
		digest, err := loadVerified(cmd.Context(), p, to, p.follow(s))
		if err != nil {
			return err
		}
		p.end()
		fmt.Fprintf(cmd.OutOrStdout(), "forked and verified %d objects of revision %d, %s; serve it from a directory of its own\n",
			digest.Objects, fork.Revision, fork.Time.UTC().Format(time.RFC3339))
		return nil
	})
}

// target returns the endpoint of --to. It fails if a server has used the directory: the fork would
// have its keys.
func (f *forkFlags) target() (string, error) {
	to := server.StoreOptions{DataDir: f.to, DatabaseSchema: f.toSchema}
	if strings.Contains(f.to, "://") {
		to = server.StoreOptions{Endpoint: f.to, DatabaseSchema: f.toSchema}
	} else if f.to == "" {
		return "", errors.New("--to must name a directory or a database")
	} else if _, err := os.Stat(filepath.Join(f.to, "pki")); err == nil {
		return "", fmt.Errorf("--to: %s has the keys of another cluster in pki/: name an empty directory, or one that does not exist yet", f.to)
	}
	return to.DSN()
}

// forkAt returns the fork of a store at a moment, and its record; the zero moment is that of the
// snapshot. The fork has no history, in which its namespace kube-system would have the other UID.
// What expires has as long left in the fork as it had at the moment.
func forkAt(s sqlstore.Snapshot, m client.Moment) (sqlstore.Snapshot, sqlstore.Fork, error) {
	fork := sqlstore.Fork{Revision: s.Revision, Time: s.Time}
	if m != (client.Moment{}) {
		var err error
		if fork.Revision, fork.Time = m.Revision, m.Time; m.Revision == 0 {
			fork.Revision, err = backup.RevisionAt(s, m.Time)
		} else {
			fork.Time, err = timeOf(s, m.Revision)
		}
		if err == nil {
			s, err = backup.At(s, fork.Revision)
		}
		if err != nil {
			return s, fork, err
		}
	}
	now := time.Now()
	s = backup.Restored(backup.NotEmpty(s), bumpRevision, rand.Text(), now)
	s.ObjectCount, s.Retained = -1, nil
	s.Changes = func(func(*sqlstore.ChangeRow, error) bool) {}
	record, err := fork.Record(s.Revision)
	if err != nil {
		return s, fork, err
	}
	mark := sqlstore.ObjectRow{Record: record, Time: now.UTC().Truncate(time.Microsecond), Author: sqlstore.Author{User: "byre", Verb: "fork"}}
	s.Objects, err = forkedObjects(s.Objects, &mark, now.Sub(fork.Time))
	return s, fork, err
}

// timeOf returns when a revision was given; of one that is not in the history, a time near it.
func timeOf(s sqlstore.Snapshot, revision int64) (time.Time, error) {
	for row, err := range s.Changes {
		if err != nil {
			return time.Time{}, err
		}
		if row.Revision >= revision {
			return row.Time, nil
		}
	}
	return s.Time, nil
}

// kubeSystem is the namespace whose UID is the ID of a cluster.
var kubeSystem = sqlstore.Key{Resource: "namespaces", Owner: sqlstore.BuiltIn, Name: metav1.NamespaceSystem}

// forkedObjects returns the objects of a fork: those of the store without what belongs to its servers,
// and the record of the fork. The UID of kube-system is replaced wherever it occurs, so that what refers
// to the namespace, as an owner for example, still does. If the namespace is encrypted it is left out
// instead: the first server makes another one.
func forkedObjects(objects iter.Seq2[*sqlstore.ObjectRow, error], mark *sqlstore.ObjectRow, age time.Duration) (iter.Seq2[*sqlstore.ObjectRow, error], error) {
	was, err := uidOf(objects, kubeSystem)
	if err != nil {
		return nil, err
	}
	is := uuid.NewString()
	return func(yield func(*sqlstore.ObjectRow, error) bool) {
		for row, err := range objects {
			if err != nil {
				yield(nil, err)
				return
			}
			if isOfServers(row.Key) || row.Key == kubeSystem && encoding.IsWrapped(row.Value) {
				continue
			}
			forked := *row
			if !row.Expires.IsZero() {
				forked.Expires = row.Expires.Add(age).Truncate(time.Microsecond)
			}
			if was != "" && bytes.Contains(row.Value, []byte(was)) {
				forked.Value = bytes.ReplaceAll(row.Value, []byte(was), []byte(is))
			}
			switch row.Key {
			case kubeSystem:
				forked.UID = is
			case auth.TrustedKeysKey:
				forked.Key = auth.SourceKeysKey
			}
			if !yield(&forked, nil) {
				return
			}
		}
		yield(mark, nil)
	}, nil
}

func uidOf(objects iter.Seq2[*sqlstore.ObjectRow, error], key sqlstore.Key) (string, error) {
	for row, err := range objects {
		if err != nil {
			return "", err
		}
		if row.Key == key {
			return row.UID, nil
		}
	}
	return "", nil
}

// isOfServers reports whether an object tells of the servers of a cluster and their keys, which a fork
// does not have. A server writes its own at its start.
func isOfServers(k sqlstore.Key) bool {
	switch {
	case k.Owner != sqlstore.BuiltIn:
		return false
	case k.Group == "byre": // if it is a fork itself
		return k == auth.SourceKeysKey || k == sqlstore.ForkKey
	case k.Group == "" && k.Resource == "configmaps": // the CAs of clients and of the proxy
		return k.Namespace == metav1.NamespaceSystem &&
			slices.Contains([]string{"extension-apiserver-authentication", controllers.HostsConfigMap, controllers.CredentialsConfigMap}, k.Name)
	case k.Group == "coordination.k8s.io" && k.Resource == "leases": // their identities
		return k.Namespace == metav1.NamespaceSystem && strings.HasPrefix(k.Name, "apiserver-")
	}
	return k.Group == "" && k.Resource == "apiserveripinfo" // their addresses
}
