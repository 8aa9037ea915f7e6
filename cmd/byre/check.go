package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"byre/apiserver/server"
	"byre/cmd/byre/client"
	"byre/cmd/byre/status"
	"byre/cmd/byre/transfer"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
)

// statusDamaged is the exit status of "byre check" when something is wrong.
const statusDamaged = 2

func newCheckCommand() *cobra.Command {
	store := server.NewStoreOptions()
	var repair bool
	var output client.Output
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check a whole database: every row against the others",
		Long: "Check a whole database: every row against the others.\n\n" +
			"The check reads every row once, in one snapshot. byre may use the database meanwhile.\n" +
			"It decodes all values, compares them with their keys, follows each object through its\n" +
			"history, looks for missing revisions, and compares the addresses and node ports of\n" +
			"Services with what is allocated. Of a SQLite file it also has SQLite check each page,\n" +
			"and compares the checksum of each row. Each finding is a line with the row and the\n" +
			"reason. Services that are being created can differ from their allocations for a\n" +
			"moment: check again.\n\n" +
			"With the server's --encryption-provider-config every value is decrypted and decoded,\n" +
			"those of the history too. Without it only the envelope of an encrypted value is\n" +
			"checked.\n\n" +
			"Nothing is changed without --repair, which repairs what can be proved: if revisions\n" +
			"are missing, it compacts the history up to them, so that clients list again instead\n" +
			"of missing changes. It writes nothing to a damaged file. For everything else restore a\n" +
			"backup.\n\n" +
			"A row that can't be read is a finding too, and the check goes on after it; of PostgreSQL\n" +
			"it ends there. The exit status is 0 if nothing is wrong, 2 if there are findings, and 1\n" +
			"if the database can't be read to its end.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dsn, err := usedEndpoint(store)
			if err != nil {
				return err
			}
			open, err := newOpener(cmd.Context(), store.EncryptionConfig)
			if err != nil {
				return err
			}
			return check(cmd, newProgress(cmd.ErrOrStderr(), "checking"), dsn, open, repair, output)
		},
	}
	store.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&store.EncryptionConfig, "encryption-provider-config", "",
		"The server's EncryptionConfiguration, to decrypt all values.")
	cmd.Flags().BoolVar(&repair, "repair", false,
		"Compact the history up to missing revisions. byre must not be running on a SQLite file.")
	output.AddTo(cmd, "text", "json")
	return cmd
}

// newOpener returns what decrypts values with the keys of a configuration; nil without one.
func newOpener(ctx context.Context, config string) (status.OpenForCheck, error) {
	if config == "" {
		return nil, nil
	}
	transformers, err := server.Transformers(ctx, config)
	if err != nil {
		return nil, err
	}
	// Upstream logs each value that does not decrypt. The findings say which.
	klog.SetLogger(logr.Discard())
	return transfer.NewOpener(ctx, transformers)
}

func check(
	cmd *cobra.Command, p *progress, endpoint string, open status.OpenForCheck, repair bool,
	output client.Output,
) error {
	ctx := cmd.Context()
	defer p.end()
	if err := checkSource(endpoint); err != nil {
		return err
	}
	var result status.CheckResult
	file := status.CheckResult{Findings: []sqlstore.Finding{}} // in JSON no findings are an empty list
	err := withDatabase(endpoint,
		func(path string) error {
			defer p.showElapsed(func() string { return "checking the pages of the file" })()
			return sqlite.Inspect(ctx, path, file.Add)
		},
		func(string) error { return nil })
	if errors.Is(err, sqlstore.ErrDamaged) {
		file.Add(sqlstore.Finding{Row: "file", Reason: err.Error()})
		err = nil
	}
	if err == nil {
		err = readDamagedDatabase(ctx, endpoint, func(s sqlstore.Snapshot) (err error) {
			result, err = status.Check(p.follow(s), open)
			return err
		})
	}
	p.end()
	result.Findings = append(file.Findings, result.Findings...)
	result.FindingCount += file.FindingCount
	result.Damaged = result.Damaged || file.FindingCount > 0
	if err := showResult(cmd, result, err, output); err != nil {
		return err
	}
	if repair && err == nil && result.MissingUpTo > 0 && !result.Damaged {
		if err := compactUpTo(ctx, endpoint, result.MissingUpTo); err != nil {
			return fmt.Errorf("repair: %w", err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "repaired: the history is compacted up to revision %d; check again\n",
			result.MissingUpTo)
	}
	switch n := result.FindingCount; {
	case err != nil:
		return fmt.Errorf("the check did not reach the end: %w", err)
	case n > 0:
		return &statusError{fmt.Errorf(
			"%d findings: keep a copy of the database, and restore a backup; without one, \"byre backup --skip-damaged\" saves what can be read", n), statusDamaged}
	}
	return nil
}

// showResult writes the result. readErr is why the check did not reach the end; nil if it
// did.
func showResult(cmd *cobra.Command, result status.CheckResult, readErr error, output client.Output) error {
	return output.Print(cmd.OutOrStdout(), result, func(out io.Writer) error {
		for _, f := range result.Findings {
			fmt.Fprintln(out, f)
		}
		if more := result.FindingCount - int64(len(result.Findings)); more > 0 {
			fmt.Fprintf(out, "and %d more findings\n", more)
		}
		if readErr != nil {
			return nil
		}
		last := "none was made"
		if !result.LastChange.IsZero() {
			last = result.LastChange.UTC().Format(time.RFC3339)
		}
		_, err := fmt.Fprintf(out,
			"checked %d objects and %d changes at revision %d, %d values encrypted, %d of them decrypted: %d findings; the last change: %s\n",
			result.Objects, result.Changes, result.Revision, result.Encrypted, result.Decrypted, result.FindingCount, last)
		return err
	})
}

// compactUpTo deletes the history up to a revision.
func compactUpTo(ctx context.Context, endpoint string, revision int64) error {
	var driver sqlstore.Driver
	err := withDatabase(endpoint,
		func(path string) (err error) {
			driver, err = sqlite.Open(ctx, path, sqlite.Options{AcceptGaps: true})
			return err
		},
		func(dsn string) (err error) {
			driver, err = postgres.OpenWithoutServing(ctx, dsn, postgres.Options{})
			return err
		})
	if err != nil {
		return explainInUse(err, "stop it first")
	}
	_, err = sqlstore.New(driver, sqlstore.Options{Retention: -1}).CompactOlder(ctx, sqlstore.Compaction{UpTo: revision})
	return errors.Join(err, driver.Close())
}
