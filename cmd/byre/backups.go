package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"byre/cmd/byre/client"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
)

const directoryHelp = "LOCATION is a directory, s3://BUCKET or s3://BUCKET/PREFIX; without one it is that of --backup-to,\n" +
	"which the configuration of the server names. Its backups are the files whose names end with " + bucket.Suffix + "."

// copiesHelp is of the commands that know continuous copies.
const copiesHelp = directoryHelp + "\n" +
	"A place of --replicate-to is a LOCATION too: each folder in it is a continuous copy, which one process has written."

// backupsFlags name a directory of backups.
type backupsFlags struct{ bucket.Directory }

func (f *backupsFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Name, "backup-to", "", "The LOCATION if no argument names one.")
	f.S3.AddFlags(cmd.Flags())
}

// setArgs takes the location of the arguments.
func (f *backupsFlags) setArgs(args []string) error {
	if len(args) > 0 {
		f.Name = args[0]
	}
	f.Name = strings.TrimPrefix(f.Name, "file://")
	if f.Name == "" {
		return errors.New("name a directory of backups, or set --backup-to")
	}
	return nil
}

// storedBackup is a backup in a directory, as its first line tells.
type storedBackup struct {
	Name      string    `json:"name"`
	Time      time.Time `json:"time,omitzero"`
	Revision  int64     `json:"revision,omitempty"`
	Objects   int64     `json:"objects,omitempty"`
	SizeBytes int64     `json:"sizeBytes"`
	Program   string    `json:"program,omitempty"`
	// Cluster is sqlstore.Header.Cluster; header is what tells whether two are of one cluster.
	Cluster string `json:"cluster,omitempty"`
	header  *sqlstore.Header
	// Transaction is the last one of a continuous copy that can be restored. Nothing tells its Revision and Objects
	// without a restore.
	Transaction uint64 `json:"transaction,omitempty"`
	// Error is why the file can't be restored; empty if its first line does not show a reason.
	Error string `json:"error,omitempty"`
}

// list returns the backups in the directory, the newest last, and before them the files that are none.
func (f *backupsFlags) list(ctx context.Context) ([]storedBackup, error) {
	entries, err := f.List(ctx)
	if err != nil {
		return nil, err
	}
	backups := []storedBackup{}
	for _, entry := range entries {
		stored := storedBackup{Name: entry.Name, SizeBytes: entry.Size}
		file, err := f.File(entry.Name).Peek(ctx)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was deleted meanwhile
		}
		if errors.Is(err, os.ErrPermission) {
			stored.Error = "it belongs to another user"
			backups = append(backups, stored)
			continue
		}
		if err != nil {
			return nil, err
		}
		if b, err := backup.Open(file); err != nil {
			stored.Error = err.Error()
		} else {
			stored.Time, stored.Revision, stored.Objects, stored.Program = b.Time, b.Revision, b.ObjectCount, b.Program
			stored.Cluster, stored.header = b.Cluster, &b.Header
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
		backups = append(backups, stored)
	}
	slices.SortStableFunc(backups, func(a, b storedBackup) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Name, b.Name))
	})
	return backups, nil
}

// copies returns the continuous copies in the directory, the newest last; none where no --replicate-to can write.
func (f *backupsFlags) copies(ctx context.Context) (url string, copies []replication.Copy, err error) {
	url = f.Name
	if !strings.HasPrefix(url, "s3:") {
		path, err := filepath.Abs(url)
		if err != nil {
			return "", nil, err
		}
		url = "file://" + path
	}
	if replication.Check(url, f.S3) != nil { // such as s3://BUCKET
		return "", nil, nil
	}
	copies, err = replication.Copies(ctx, url, f.S3)
	return url, copies, err
}

func newBackupListCommand() *cobra.Command {
	var flags backupsFlags
	var output client.Output
	cmd := &cobra.Command{
		Use:   "list [LOCATION]",
		Short: "List the backups in a directory or a bucket",
		Long: "List the backups in a directory or a bucket, the newest last: the time and the revision of what\n" +
			"each holds, its size, and the program that wrote it. Only the beginning of each is read.\n" +
			"Of each continuous copy it tells the time and the transaction up to which it can be restored, and\n" +
			"whether files are missing. \"byre backup verify\" tells the revision.\n\n" + copiesHelp,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.setArgs(args); err != nil {
				return err
			}
			backups, err := flags.list(cmd.Context())
			if err != nil {
				return err
			}
			_, copies, err := flags.copies(cmd.Context())
			if err != nil {
				return err
			}
			for _, c := range copies {
				backups = append(backups, storedBackup{Name: c.Folder, Time: c.Time, Transaction: c.Last, SizeBytes: c.SizeBytes, Error: c.Hole()})
			}
			return output.Print(cmd.OutOrStdout(), backups, func(w io.Writer) error { return printBackups(w, backups) })
		},
	}
	flags.addTo(cmd)
	output.AddTo(cmd, "text", "json", "yaml")
	return cmd
}

func printBackups(out io.Writer, backups []storedBackup) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTIME\tREVISION\tOBJECTS\tSIZE\tPROGRAM")
	for _, b := range backups {
		if b.Error != "" || b.Transaction > 0 {
			at := "-"
			if !b.Time.IsZero() {
				at = b.Time.UTC().Format(time.RFC3339)
			}
			client.PrintRow(w, []any{b.Name, at, "-", "-", bytesText(b.SizeBytes), cmp.Or(b.Error, fmt.Sprintf("continuous copy, up to transaction %d", b.Transaction))})
			continue
		}
		client.PrintRow(w, []any{b.Name, b.Time.UTC().Format(time.RFC3339), b.Revision, b.Objects, bytesText(b.SizeBytes), b.Program})
	}
	return w.Flush()
}

func newBackupVerifyCommand() *cobra.Command {
	var flags backupsFlags
	cmd := &cobra.Command{
		Use:   "verify [FILE|LOCATION]",
		Short: "Read backups to their end, and check that they can be restored",
		Long: "Read a backup, or all of a directory or a bucket, to the end, and check what \"byre restore\" checks\n" +
			"before it does anything: that the file is complete, its checksum is right, and its rows can be\n" +
			"loaded. Of a continuous copy it restores each folder to a temporary file, below $TMPDIR. The exit status is 2 if\n" +
			"one can't be restored or lacks files, and 1 if one can't be read.\n\n" + copiesHelp,
		Example: "  byre backup verify /backup/byre.zst\n  byre backup verify s3://backups/cluster-1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.setArgs(args); err != nil {
				return err
			}
			files := []bucket.Location{{Name: flags.Name, S3: flags.S3, Stdin: cmd.InOrStdin()}}
			var url string
			var copies []replication.Copy
			if info, err := os.Stat(flags.Name); err == nil && info.IsDir() || strings.HasPrefix(flags.Name, "s3:") && !strings.HasSuffix(flags.Name, bucket.Suffix) {
				entries, err := flags.List(cmd.Context())
				if err != nil {
					return err
				}
				if url, copies, err = flags.copies(cmd.Context()); err != nil {
					return err
				}
				if len(entries)+len(copies) > 0 || info != nil { // else it may be the key of a backup
					files = files[:0]
				}
				for _, entry := range entries {
					files = append(files, flags.File(entry.Name))
				}
			}
			var all []verification
			for _, file := range files {
				all = append(all, verification{file.Name, func() (string, error) { return verifyBackup(cmd, file) }})
			}
			for _, c := range copies {
				if c.Seen > 0 { // else its process ended before it had copied anything
					all = append(all, verification{url + "/" + c.Folder, func() (string, error) { return verifyCopy(cmd, url, flags.S3, c) }})
				}
			}
			return verifyAll(cmd, all)
		},
	}
	flags.addTo(cmd)
	return cmd
}

// verification reads something that a restore reads, and returns what it holds.
type verification struct {
	name string
	run  func() (string, error)
}

func verifyAll(cmd *cobra.Command, all []verification) error {
	if len(all) == 0 {
		return errors.New("there is no backup there: name another directory, or make one with \"byre backup\"")
	}
	broken, errs := 0, []error{}
	for _, v := range all {
		text, err := v.run()
		switch {
		case errors.Is(err, sqlstore.ErrBroken), errors.Is(err, sqlstore.ErrDamaged), errors.Is(err, backup.ErrNewer), errors.Is(err, errNoObjects), errors.Is(err, errHole):
			broken++
			text = err.Error()
		case cmd.Context().Err() != nil:
			return err
		case err != nil:
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", v.name, client.Visible(text))
	}
	if broken > 0 {
		errs = append(errs, &statusError{fmt.Errorf("%d of %d backups can't be restored, or lack something: keep the others, and make a new one", broken, len(all)), statusDamaged})
	}
	return errors.Join(errs...)
}

var (
	errNoObjects = errors.New("it has no objects")
	errHole      = errors.New("make a new copy: restart the server that writes it")
)

// verifyCopy restores a continuous copy to a temporary file, and reads that.
func verifyCopy(cmd *cobra.Command, url string, s3 bucket.S3, c replication.Copy) (text string, err error) {
	if c.Last == 0 {
		return "", fmt.Errorf("%s: %w", c.Hole(), errHole)
	}
	p := newProgress(cmd.ErrOrStderr(), "verifying")
	defer p.end()
	dir, err := os.MkdirTemp("", "byre-verify-*")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "byre.db")
	if err := replication.Restore(cmd.Context(), url, s3, c, path); err != nil {
		if _, isAway := errors.AsType[net.Error](err); !isAway && cmd.Context().Err() == nil {
			err = fmt.Errorf("%w: %w", sqlstore.ErrBroken, err)
		}
		return "", err
	}
	err = readDatabase(cmd.Context(), "sqlite://"+path, func(s sqlstore.Snapshot) error {
		digest, err := backup.DigestOf(p.follow(s))
		if err == nil && digest.Objects == 0 {
			err = errNoObjects
		}
		text = fmt.Sprintf("revision %d of %s, %d objects, %d changes", s.Revision, c.Time.Format(time.RFC3339), digest.Objects, digest.Changes)
		return err
	})
	switch {
	case err != nil:
		return "", err
	case c.HasHole():
		return "", fmt.Errorf("%s: it can be restored up to %s: %w", c.Hole(), text, errHole)
	}
	return "complete, " + text, nil
}

// verifyBackup returns what a backup that can be restored holds.
func verifyBackup(cmd *cobra.Command, l bucket.Location) (string, error) {
	p := newProgress(cmd.ErrOrStderr(), "verifying")
	defer p.end()
	file, err := l.Open(cmd.Context())
	if err != nil {
		return "", err
	}
	defer file.Close()
	b, err := backup.Open(file)
	if err != nil {
		return "", err
	}
	digest, err := b.Verify(p.follow)
	if err == nil && digest.Objects == 0 {
		err = errNoObjects
	}
	return fmt.Sprintf("complete, revision %d of %s, %d objects, %d changes", b.Revision, b.Time.UTC().Format(time.RFC3339), digest.Objects, digest.Changes), err
}

func newBackupPruneCommand() *cobra.Command {
	var flags backupsFlags
	var keep int
	var yes bool
	cmd := &cobra.Command{
		Use:   "prune [LOCATION] --keep N",
		Short: "Delete the oldest backups in a directory or a bucket",
		Long: "Delete all backups in a directory or a bucket but the newest N of each cluster. The command says\n" +
			"which, and asks first. Only the beginning of each is read: \"byre backup verify\" tells which can be restored.\n" +
			"Files that are no backups of byre, or can't be read, are left alone.\n\n" + directoryHelp,
		Example: "  byre backup prune /backup --keep 14",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.setArgs(args); err != nil {
				return err
			}
			if keep < 1 {
				return errors.New("--keep must be at least 1")
			}
			return flags.prune(cmd, keep, yes)
		},
	}
	flags.addTo(cmd)
	cmd.Flags().IntVar(&keep, "keep", 0, "How many backups of each cluster to keep.")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask.")
	_ = cmd.MarkFlagRequired("keep") // the flag is there
	return cmd
}

func (f *backupsFlags) prune(cmd *cobra.Command, keep int, yes bool) error {
	backups, err := f.list(cmd.Context())
	if err != nil {
		return err
	}
	backups = slices.DeleteFunc(backups, func(b storedBackup) bool { return b.Error != "" })
	old := oldBackups(backups, keep)
	if len(old) == 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "there are %d backups: nothing to delete\n", len(backups))
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(), "delete %d of %d backups:\n", len(old), len(backups))
	if err := printBackups(cmd.OutOrStdout(), old); err != nil {
		return err
	}
	if !yes {
		if ok, err := client.Ask(cmd); err != nil || !ok {
			return err
		}
	}
	for _, b := range old {
		if err := f.Remove(cmd.Context(), b.Name); err != nil {
			return err
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "deleted %d backups\n", len(old))
	return nil
}

// oldBackups returns the backups that are older than the newest ones of their cluster, of which keep are kept. They are in order, the
// newest last.
func oldBackups(backups []storedBackup, keep int) (old []storedBackup) {
	for i, b := range backups {
		newer := 0
		for _, other := range backups[i+1:] {
			if b.header.IsSameCluster(other.header) {
				newer++
			}
		}
		if newer >= keep {
			old = append(old, b)
		}
	}
	return old
}
