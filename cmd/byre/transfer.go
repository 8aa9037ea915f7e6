package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"byre/apiserver/server"
	"byre/cmd/byre/client"
	"byre/cmd/byre/transfer"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/etcd"
)

// transferCommand is what import and export have in common.
type transferCommand struct {
	store         server.StoreOptions
	options       transfer.Options
	skipHashCheck bool
}

func (c *transferCommand) addFlags(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	c.store.AddDatabaseFlags(flags)
	flags.StringVar(&c.options.Prefix, "etcd-prefix", transfer.DefaultPrefix,
		"The --etcd-prefix of the stock kube-apiserver.")
}

// sourceCloser is an open source.
type sourceCloser interface {
	transfer.Source
	io.Closer
}

func newImportCommand() *cobra.Command {
	c := &transferCommand{store: server.NewStoreOptions()}
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Fill an empty database from etcd or kine",
		Long: "Fill an empty database with the objects of a cluster that kept them in etcd or kine.\n\n" +
			"Objects keep their uid, their resourceVersion and the time of their creation. Leases\n" +
			"run on from now. There is no history: clients that watched the old server list again.\n" +
			"Values that are encrypted at rest stay so: serve them with the same\n" +
			"--encryption-provider-config. Afterwards both sides are counted and hashed.\n\n" +
			"Stop the old API servers first: what they write later is not in the copy.",
		Args: client.SubcommandOnly,
		RunE: client.Help,
	}
	c.addFlags(cmd)
	cmd.PersistentFlags().StringArrayVar(&c.options.Skip, "skip-prefix", nil,
		"Leave out the keys that begin with this, such as /registry/podsecuritypolicy/. May be repeated.")
	cmd.PersistentFlags().Int64Var(&c.options.BumpRevision, "bump-revision", 0,
		"Move the revision on by this. For a source older than what clients have seen, as etcdutl's flag of this name.")
	fromEtcd := &cobra.Command{
		Use:     "etcd SNAPSHOT",
		Short:   "Fill an empty database from a snapshot file of etcd 3.5, 3.6 or 3.7",
		Example: "  etcdctl snapshot save cluster.db\n  byre import etcd cluster.db --data-dir /var/lib/byre",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.importFrom(cmd, func(ctx context.Context) (sourceCloser, error) {
				s, err := etcd.Open(ctx, args[0], etcd.Options{SkipHashCheck: c.skipHashCheck})
				return s, snapshotError(args[0], err)
			})
		},
	}
	fromEtcd.Flags().BoolVar(&c.skipHashCheck, "skip-hash-check", false,
		"Take a file without an integrity hash: member/snap/db of a member that is stopped.")
	cmd.AddCommand(fromEtcd, &cobra.Command{
		Use:     "kine DATABASE",
		Short:   "Fill an empty database from kine's SQLite or PostgreSQL, as k3s has it",
		Example: "  byre import kine sqlite:///var/lib/rancher/k3s/server/db/state.db --data-dir /var/lib/byre",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.importFrom(cmd, func(ctx context.Context) (sourceCloser, error) {
				d, err := etcd.OpenKine(ctx, args[0])
				return d, kineError(args[0], err)
			})
		},
	})
	return cmd
}

// kineError adds to an error of kine's database what to do next.
func kineError(endpoint string, err error) error {
	dialect, path, parseErr := migrations.ParseEndpoint(endpoint)
	if err == nil || parseErr != nil {
		return err
	}
	if errors.Is(err, etcd.ErrNotKine) {
		err = fmt.Errorf("%w: name the database that kine's --endpoint, or k3s's --datastore-endpoint, names", err)
	}
	if dialect != migrations.SQLite {
		return err
	}
	return explainFile(path, otherSQLite, fmt.Errorf("%s: %w", path, err))
}

// snapshotError adds to an error of a snapshot file what to do next.
func snapshotError(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, etcd.ErrNoHash), errors.Is(err, etcd.ErrNotEtcd), errors.Is(err, etcd.ErrWrongHash):
		if kind, _ := recognize(path); kind != etcdSnapshot {
			return explainFile(path, etcdSnapshot,
				fmt.Errorf("%s: %w: save one with \"etcdctl snapshot save\"", path, etcd.ErrNotEtcd))
		}
	}
	switch {
	case errors.Is(err, etcd.ErrNoHash):
		return fmt.Errorf(
			"%s: %w: save one with \"etcdctl snapshot save\", or take a file of a stopped member with --skip-hash-check", path,
			err)
	case errors.Is(err, etcd.ErrWrongHash):
		return fmt.Errorf("%s: %w: copy it again, or save another with \"etcdctl snapshot save\"", path, err)
	case errors.Is(err, etcd.ErrInUse):
		return fmt.Errorf("%s: %w: save a snapshot with \"etcdctl snapshot save\", or stop it", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

func (c *transferCommand) importFrom(cmd *cobra.Command, open func(context.Context) (sourceCloser, error)) (err error) {
	ctx, p := cmd.Context(), newProgress(cmd.ErrOrStderr(), "reading")
	defer p.end()
	if c.options.BumpRevision < 0 {
		return errors.New("--bump-revision: the revision never goes back")
	}
	dsn, err := c.store.DSN()
	if err != nil {
		return err
	}
	source, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	c.options.Now, c.options.Progress = time.Now().UTC().Truncate(time.Microsecond), p.add
	translator, err := transfer.New(c.options)
	if err != nil {
		return err
	}
	p.total = int64(source.Len())
	found, err := translator.Summarize(ctx, source)
	if err != nil {
		return err
	}
	if found.Objects() == 0 {
		return c.noObjects(found)
	}
	if c.store.Endpoint == "" {
		if err := migrations.MkdirAllOwned(c.store.DataDir, 0o700); err != nil {
			return err
		}
	}
	p.begin("importing")
	p.total = int64(source.Len())
	if err := loadDatabase(ctx, dsn, translator.Import(ctx, source)); err != nil {
		return err
	}
	p.begin("verifying")
	var copied *transfer.Summary
	err = readDatabase(ctx, dsn, func(s sqlstore.Snapshot) error {
		p.total = int64(found.Objects())
		copied, err = translator.SummarizeRows(s)
		return err
	})
	if err == nil {
		err = found.Compare(copied)
	}
	if err != nil {
		return fmt.Errorf("verify the import: %w: do not use the database", err)
	}
	p.end()
	return report(cmd.OutOrStdout(), "imported", found, copied.Revision)
}

// noObjects says why there is nothing to import: --etcd-prefix, if there are keys elsewhere.
func (c *transferCommand) noObjects(found *transfer.Summary) error {
	if len(found.Outside) == 0 {
		return errors.New("the source has no objects: nothing was imported")
	}
	var there []string
	for _, prefix := range slices.Sorted(maps.Keys(found.Outside)) {
		there = append(there, fmt.Sprintf("%s (%d keys)", prefix, found.Outside[prefix]))
	}
	return fmt.Errorf("there are no objects below --etcd-prefix %s, so nothing was imported; the source has keys below %s",
		c.options.Prefix, strings.Join(there, ", "))
}

// report says what was moved, and what was not.
func report(out io.Writer, done string, s *transfer.Summary, revision int64) error {
	for _, reason := range slices.Sorted(maps.Keys(s.LeftOut)) {
		fmt.Fprintf(out, "left out: %d (%s)\n", s.LeftOut[reason], reason)
	}
	encrypted := ""
	if s.Encrypted > 0 {
		encrypted = fmt.Sprintf(" (%d encrypted)", s.Encrypted)
	}
	_, err := fmt.Fprintf(out, "%s and verified %d objects%s of %d resources, at revision %d\nsha256 of both sides: %s\n",
		done, s.Objects(), encrypted, s.Resources(), revision, s.Hash())
	return err
}

func newExportCommand() *cobra.Command {
	c := &transferCommand{store: server.NewStoreOptions()}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the objects of a database for a stock server with etcd",
		Args:  client.SubcommandOnly,
		RunE:  client.Help,
	}
	c.addFlags(cmd)
	cmd.AddCommand(&cobra.Command{
		Use:   "etcd SNAPSHOT",
		Short: "Write a snapshot file that \"etcdutl snapshot restore\" takes",
		Long: "Write a snapshot file that \"etcdutl snapshot restore\" of etcd 3.6 takes, for a\n" +
			"kube-apiserver of this version.\n\n" +
			"Objects keep their uid, their resourceVersion and the time of their creation. What\n" +
			"expires does so in etcd too, up to a minute later. There is no history. Values that\n" +
			"are encrypted at rest stay so: serve them with the same\n" +
			"--encryption-provider-config. Afterwards both sides are counted and hashed.\n\n" +
			"byre may run meanwhile; stop it first if nothing that it writes later is to be lost.",
		Example: "  byre export etcd cluster.db --data-dir /var/lib/byre\n  etcdutl snapshot restore cluster.db --data-dir /var/lib/etcd",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return c.exportTo(cmd, args[0]) },
	})
	return cmd
}

func (c *transferCommand) exportTo(cmd *cobra.Command, path string) (err error) {
	ctx, p := cmd.Context(), newProgress(cmd.ErrOrStderr(), "exporting")
	defer p.end()
	c.options.Now, c.options.Progress = time.Now(), p.add
	dsn, err := usedEndpoint(c.store)
	if err != nil {
		return err
	}
	translator, err := transfer.New(c.options)
	if err != nil {
		return err
	}
	w, err := etcd.Create(path)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: remove it, or name another file", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var found *transfer.Summary
	err = readDatabase(ctx, dsn, func(s sqlstore.Snapshot) error {
		p.total = s.ObjectCount
		found, err = translator.Export(s, w.Put)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Finish(ctx, found.Revision); err != nil {
		return err
	}
	p.begin("verifying")
	written, err := etcd.Open(ctx, path, etcd.Options{})
	if err != nil {
		return fmt.Errorf("verify the export: %w", err)
	}
	defer func() { err = errors.Join(err, written.Close()) }()
	p.total = int64(written.Len())
	copied, err := translator.Summarize(ctx, written)
	if err == nil {
		err = found.Compare(copied)
	}
	if err != nil {
		return fmt.Errorf("verify the export: %w: do not use the file", err)
	}
	p.end()
	return report(cmd.OutOrStdout(), "exported", found, copied.Revision)
}

func newCopyCommand() *cobra.Command {
	var from, to server.StoreOptions
	cmd := &cobra.Command{
		Use:   "copy --from DATABASE --to DATABASE",
		Short: "Copy a database to another one, of either kind, with its history",
		Long: "Copy a database to another one, of either kind, with its history.\n\n" +
			"Revisions stay what they are, so that clients go on where they were: serve the copy\n" +
			"instead of the first database, not beside it. No byre may use either of them\n" +
			"meanwhile. The second must be empty or not exist yet; it is filled as a whole or not at all.\n" +
			"Afterwards the rows of both are counted and hashed.\n\n" +
			"Copy the directory pki/ too where the copy is served from another host.",
		Example: "  byre copy --from sqlite:///var/lib/byre/byre.db --to postgres://byre@db.example.com/byre",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return copyDatabase(cmd, from, to) },
	}
	cmd.Flags().StringVar(&from.Endpoint, "from", "", "Database to read: sqlite:///PATH or postgres://...")
	cmd.Flags().StringVar(&to.Endpoint, "to", "", "Database to fill: sqlite:///PATH or postgres://...")
	cmd.Flags().StringVar(&from.DatabaseSchema, "from-schema", "",
		"Schema of the PostgreSQL database to read, as --database-schema of \"byre serve\".")
	cmd.Flags().StringVar(&to.DatabaseSchema, "to-schema", "", "Schema of the PostgreSQL database to fill.")
	_ = cmd.MarkFlagRequired("from") // the flag is there
	_ = cmd.MarkFlagRequired("to")
	return cmd
}

func copyDatabase(cmd *cobra.Command, source, target server.StoreOptions) error {
	if source.Endpoint == "" || target.Endpoint == "" {
		return errors.New("--from and --to must name a database each")
	}
	from, err := source.DSN()
	if err != nil {
		return err
	}
	to, err := target.DSN()
	if err != nil {
		return err
	}
	ctx, p := cmd.Context(), newProgress(cmd.ErrOrStderr(), "copying")
	defer p.end()
	var copied backup.Digest
	var revision int64
	err = readIdleDatabase(ctx, from, func(s sqlstore.Snapshot) (err error) {
		revision = s.Revision
		copied, err = loadVerified(ctx, p, to, p.follow(s))
		return err
	})
	if revision == 0 { // the first one: it was not read
		err = explainInUse(err, "stop it first; to copy a database in use, see \"byre restore --from\"")
	}
	if err != nil {
		return err
	}
	p.end()
	fmt.Fprintf(cmd.OutOrStdout(), "copied and verified %v, at revision %d\n", copied, revision)
	return nil
}
