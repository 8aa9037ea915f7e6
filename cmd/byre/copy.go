package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"byre/apiserver/options"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/snapshot"
)

func newCopyCommand() *cobra.Command {
	var from, to options.StoreOptions
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
	cmd.Flags().StringVar(&from.DatabaseSchema, "from-schema", "", "Schema of the PostgreSQL database to read, as --database-schema of \"byre serve\".")
	cmd.Flags().StringVar(&to.DatabaseSchema, "to-schema", "", "Schema of the PostgreSQL database to fill.")
	for _, flag := range []string{"from", "to"} {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // there is no such flag
		}
	}
	return cmd
}

func copyDatabase(cmd *cobra.Command, source, target options.StoreOptions) error {
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
	var copied snapshot.Digest
	var revision int64
	err = readIdleDatabase(ctx, from, func(s sqlstore.Snapshot) (err error) {
		revision = s.Revision
		copied, err = loadVerified(ctx, p, to, p.follow(s))
		return err
	})
	var inUse *migrations.InUseError
	if errors.As(err, &inUse) && revision == 0 { // the first one: it was not read
		return fmt.Errorf("%w: stop it first; to copy a database in use, see \"byre restore --from\"", err)
	}
	if err != nil {
		return err
	}
	p.end()
	fmt.Fprintf(cmd.OutOrStdout(), "copied and verified %v, at revision %d\n", copied, revision)
	return nil
}
