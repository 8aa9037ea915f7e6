package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"byre/apiserver"
	"byre/migrations"
)

func newMigrateCommand() *cobra.Command {
	store := apiserver.NewOptions().Store
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database's schema up, take it down, or show where it stands",
		Args:  subcommandOnly,
		RunE:  help,
	}
	cmd.PersistentFlags().StringVar(&store.DataDir, "data-dir", store.DataDir,
		"Directory of the SQLite database if there is no --endpoint.")
	cmd.PersistentFlags().StringVar(&store.Endpoint, "endpoint", store.Endpoint,
		"Database: sqlite:///PATH or postgres://...")
	add := func(use, short string, move func(context.Context, string) (migrations.State, error)) {
		cmd.AddCommand(&cobra.Command{
			Use:   use,
			Short: short,
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				state, err := move(cmd.Context(), store.DSN())
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: schema %d, this program has %d\n", state.Dialect, state.Current, state.Latest)
				return nil
			},
		})
	}
	add("up", "Bring the schema to the version of this program", migrations.Up)
	add("down", "Take back the last step of the schema, with all data in it", migrations.Down)
	add("status", "Show the version of the schema", migrations.Status)
	return cmd
}
