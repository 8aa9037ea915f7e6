package main

import (
	"bytes"
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
	"byre/sqlstore"
)

// forkFlags are those of "byre fork", which is a restore of another database's history.
type forkFlags struct {
	restoreFlags
	database server.StoreOptions
	// to is a directory or a DSN.
	to, toSchema string
}

func newForkCommand() *cobra.Command {
	f := forkFlags{restoreFlags: restoreFlags{isFork: true, bump: bumpRevision}, database: server.NewStoreOptions()}
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
	f.database.AddDatabaseFlags(cmd.Flags())
	f.at.AddTo(cmd, "at", "The moment; if not set, now")
	cmd.Flags().StringVar(&f.to, "to", "",
		"Directory to make the SQLite database in, or database to fill: sqlite:///PATH or postgres://...")
	cmd.Flags().StringVar(&f.toSchema, "to-schema", "", "Schema of the PostgreSQL database to fill.")
	_ = cmd.MarkFlagRequired("to") // the flag is there
	return cmd
}

func (f *forkFlags) run(cmd *cobra.Command) (err error) {
	if f.moment, err = f.at.Parse(cmd); err != nil {
		return err
	}
	from, err := usedEndpoint(f.database)
	if err != nil {
		return err
	}
	if f.store, err = f.target(); err != nil {
		return err
	}
	return f.restoreDatabase(cmd, "forking", from)
}

// target returns the database of --to. It fails if a server has used the directory: the fork would
// have its keys.
func (f *forkFlags) target() (server.StoreOptions, error) {
	to := server.StoreOptions{DataDir: f.to, DatabaseSchema: f.toSchema}
	if strings.Contains(f.to, "://") {
		to = server.StoreOptions{Endpoint: f.to, DatabaseSchema: f.toSchema}
	} else if f.to == "" {
		return to, errors.New("--to must name a directory or a database")
	} else if _, err := os.Stat(filepath.Join(f.to, "pki")); err == nil {
		return to,
			fmt.Errorf(
				"--to: %s has the keys of another cluster in pki/: name an empty directory, or one that does not exist yet", f.to)
	}
	return to, nil
}

// kubeSystem is the namespace whose UID is the ID of a cluster.
var kubeSystem = sqlstore.Key{Resource: "namespaces", Owner: sqlstore.BuiltIn, Name: metav1.NamespaceSystem}

// asFork returns a fork of a store, which the caller restores with a bump of the revision. It has the
// objects without what belongs to their servers, and a record of the fork. What expires has as long left
// as it had at the moment.
//
// The UID of kube-system is replaced wherever it occurs, so that what refers to the namespace, as an owner
// for example, still does. If the namespace is encrypted it is left out instead: the first server makes
// another one. The fork has no history, in which the namespace would have the other UID.
func asFork(s sqlstore.Snapshot, of sqlstore.Fork, bump int64, now time.Time) sqlstore.Snapshot {
	objects, revision, is := s.Objects, s.Revision+bump, uuid.NewString()
	s.Compacted, s.CompleteAfter, s.ObjectCount, s.Retained = s.Revision, revision, -1, nil
	s.Changes = func(func(*sqlstore.ChangeRow, error) bool) {}
	s.Objects = func(yield func(*sqlstore.ObjectRow, error) bool) {
		was, err := uidOf(objects, kubeSystem)
		record, recordErr := of.Record(revision)
		if err = errors.Join(err, recordErr); err != nil {
			yield(nil, err)
			return
		}
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
				forked.Expires = row.Expires.Add(now.Sub(of.Time)).Truncate(time.Microsecond)
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
		yield(&sqlstore.ObjectRow{
			Record: record, Time: now.UTC().Truncate(time.Microsecond), Author: sqlstore.Author{User: "byre", Verb: "fork"},
		}, nil)
	}
	return s
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
			slices.Contains([]string{"extension-apiserver-authentication", controllers.HostsConfigMap,
				controllers.CredentialsConfigMap}, k.Name)
	case k.Group == "coordination.k8s.io" && k.Resource == "leases": // their identities
		return k.Namespace == metav1.NamespaceSystem && strings.HasPrefix(k.Name, "apiserver-")
	}
	return k.Group == "" && k.Resource == "apiserveripinfo" // their addresses
}
