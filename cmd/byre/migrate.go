package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"byre/apiserver/server"
	"byre/cmd/byre/client"
	"byre/migrations"
	"byre/sqlstore"
)

// Exit statuses of "byre migrate status"; 1 is any other error.
const (
	statusBehind = 2
	statusDirty  = 3
	statusNewer  = 4
)

// statusError is an error with an exit status of its own.
type statusError struct {
	error
	status int
}

func (e *statusError) Unwrap() error { return e.error }

func newMigrateCommand() *cobra.Command {
	store := server.NewStoreOptions()
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database's schema up, take it down, or show where it stands",
		Args:  client.SubcommandOnly,
		RunE:  client.Help,
	}
	store.AddDatabaseFlags(cmd.PersistentFlags())
	cmd.AddCommand(newMigrateDownCommand(&store), &cobra.Command{
		Use:   "up",
		Short: "Bring the schema to the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dsn, err := usedEndpoint(store)
			if err != nil {
				return err
			}
			state, err := showSteps(newProgress(cmd.ErrOrStderr(), ""),
				func(onStep func(migrations.Step)) (migrations.State, error) {
					return migrations.Up(cmd.Context(), dsn, onStep)
				})
			return show(cmd.OutOrStdout(), state, err)
		},
	}, &cobra.Command{
		Use:   "status",
		Short: "Show the version of the schema",
		Long: "Show the version of the schema.\n\n" +
			"The exit status is 0 if it is this program's, 2 if it is behind, 3 if another\n" +
			"program left a migration half done, 4 if it is of a newer byre, and 1 if it\n" +
			"can't be read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dsn, err := usedEndpoint(store)
			if err != nil {
				return err
			}
			state, err := migrations.Status(cmd.Context(), dsn)
			switch {
			case errors.Is(err, migrations.ErrDirty):
				return &statusError{fmt.Errorf("schema %d: %w", state.Current, err), statusDirty}
			case errors.Is(err, migrations.ErrNewer):
				return &statusError{fmt.Errorf("%w: run that version", err), statusNewer}
			}
			if err := show(cmd.OutOrStdout(), state, err); err != nil {
				return err
			}
			if state.Current < state.Latest {
				return &statusError{errors.New(`the schema is behind: "byre migrate up" or "byre serve" brings it up`),
					statusBehind}
			}
			return nil
		},
	})
	return cmd
}

func newMigrateDownCommand(store *server.StoreOptions) *cobra.Command {
	var deleteAll bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take back the last step of the schema, while no process uses the database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dsn, err := usedEndpoint(*store)
			if err != nil {
				return err
			}
			// Down would make a database that is not there.
			if state, err := migrations.Status(cmd.Context(), dsn); err == nil && state.Current == 0 {
				return errors.New("there is no schema of byre to take down: name the database by --data-dir or --endpoint")
			}
			state, err := showSteps(newProgress(cmd.ErrOrStderr(), ""),
				func(onStep func(migrations.Step)) (migrations.State, error) {
					return migrations.Down(cmd.Context(), dsn, deleteAll, onStep)
				})
			if _, deletes := errors.AsType[*migrations.DeletesError](err); deletes {
				return fmt.Errorf("%w; to do it, add --yes-delete-all-data", err)
			}
			return show(cmd.OutOrStdout(), state, explainInUse(err, "stop all processes that use the database first"))
		},
	}
	cmd.Flags().BoolVar(&deleteAll, "yes-delete-all-data", false,
		"Take back the first step too, and delete all objects and their history with it.")
	return cmd
}

// waitingToMigrate is what a migration does before its first step.
const waitingToMigrate = "waiting for the database, or for another process that migrates it"

// showSteps shows the progress of a migration.
func showSteps(
	p *progress, migrate func(onStep func(migrations.Step)) (migrations.State, error),
) (migrations.State, error) {
	var running atomic.Pointer[migrations.Step] // nil before the first one
	stop := p.showElapsed(func() string {
		if s := running.Load(); s != nil {
			return fmt.Sprintf("step %d of %d of the schema", s.Number, s.Latest)
		}
		return waitingToMigrate
	})
	defer p.end()
	defer stop()
	return migrate(func(step migrations.Step) { running.Store(&step) })
}

// logSteps logs the progress of a migration that takes long.
func logSteps(
	logger *slog.Logger, migrate func(onStep func(migrations.Step)) (migrations.State, error),
) (migrations.State, error) {
	var running atomic.Pointer[migrations.Step] // nil before the first one
	stop := sqlstore.ReportElapsed(sqlstore.ReportAfter, sqlstore.ReportInLog, func(elapsed time.Duration) {
		elapsed = elapsed.Round(time.Second)
		if s := running.Load(); s != nil {
			logger.Info("store: migrating the schema", "step", s.Number, "latest", s.Latest, "elapsed", elapsed)
		} else {
			logger.Info("store: "+waitingToMigrate, "elapsed", elapsed)
		}
	})
	defer stop()
	return migrate(func(step migrations.Step) { running.Store(&step) })
}

func show(out io.Writer, state migrations.State, err error) error {
	if err == nil {
		_, err = fmt.Fprintf(out, "%s: schema %d, this program has %d\n", state.Dialect, state.Current, state.Latest)
	}
	return err
}
