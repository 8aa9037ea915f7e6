package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/term"

	"byre/apiserver/server"

	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/postgres"

	"byre/sqlstore/sqlite"
)

func newBackupCommand() *cobra.Command {
	store := server.NewStoreOptions()
	var to bucket.Location
	var pki pkiFlags
	var skipDamaged bool
	cmd := &cobra.Command{
		Use:   "backup [flags] FILE|-|s3://BUCKET/KEY",
		Short: "Write a backup of the database, while it is in use",
		Long: "Write a backup of the database, while it is in use.\n\n" +
			"The backup is the database at one moment, with its history: all objects and what each\n" +
			"change has replaced. It is a compressed file that \"byre restore\" reads on either kind\n" +
			"of database, and contains every Secret that is not encrypted at rest. It appears under\n" +
			"its name when it is complete. The checksum that is printed is the file's. \"byre status\"\n" +
			"shows the last backup.\n\n" +
			"Back up the directory pki/ too: without its keys a restored server knows no client.\n" +
			"--with-pki writes them, encrypted, to a file beside the backup, FILE.pki.age.\n" +
			"\"byre serve --backup-schedule\" makes backups by itself.\n\n" +
			"With --skip-damaged, rows that are damaged are left out, and named on standard error.\n" +
			"History is left out up to the last change that is damaged or missing. The exit status is\n" +
			"then 2, the backup is complete but for these rows, and \"byre status\" shows the one of\n" +
			"before; it is 0 if nothing was left out, and 1 if there is no backup.",
		Example: "  byre backup --data-dir /var/lib/byre /backup/byre-$(date +%F).zst\n" +
			"  byre backup --with-pki --age-recipient age1... /backup/byre-$(date +%F).zst\n" +
			"  byre backup --endpoint postgres://byre@db.example.com/byre s3://backups/byre.zst\n" +
			"  byre backup - | ssh backup.example.com 'cat > byre.zst'",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			to.Name, to.Stdout = args[0], cmd.OutOrStdout()
			dsn, err := usedEndpoint(store)
			if err != nil {
				return err
			}
			keys, err := pki.encrypted(store.DataDir, to.Name)
			if err != nil {
				return err
			}
			// With status 2 the backup is complete but for what is damaged.
			err = writeBackup(cmd, dsn, to, skipDamaged)
			if _, damaged := errors.AsType[*statusError](err); err == nil || damaged {
				err = cmp.Or(writePKI(cmd.Context(), cmd.OutOrStdout(), to, keys), err)
			}
			return err
		},
	}
	store.AddDatabaseFlags(cmd.Flags())
	to.S3.AddFlags(cmd.Flags())
	pki.addToBackup(cmd)
	cmd.Flags().BoolVar(&skipDamaged, "skip-damaged", false, "Leave out rows of SQLite that can't be read, and of both databases those that no store can have.")
	cmd.Flags().BoolVar(&to.Force, "force", false, "Replace what is there under the name.")
	cmd.AddCommand(newBackupListCommand(), newBackupVerifyCommand(), newBackupPruneCommand())
	return cmd
}

func writeBackup(cmd *cobra.Command, endpoint string, to bucket.Location, skipDamaged bool) error {
	if _, _, err := term.TerminalSize(to.Stdout); to.Name == "-" && err == nil {
		return errors.New("a backup is not written to a terminal: redirect standard output, or name a file")
	}
	ctx, p := cmd.Context(), newProgress(cmd.ErrOrStderr(), "backing up")
	defer p.end()
	var header sqlstore.Header
	var digest *backup.Digest
	file := &sized{Hash: sha256.New()}
	read, left := readDatabase, 0
	if skipDamaged {
		read = readDamagedDatabase
	}
	err := read(ctx, endpoint, func(s sqlstore.Snapshot) (err error) {
		if skipDamaged {
			s, err = p.follow(s).Salvage(func(f sqlstore.Finding) {
				left++
				fmt.Fprintln(cmd.ErrOrStderr(), "left out:", f)
			})
			if err != nil {
				return err
			}
			p.begin("backing up")
		} else {
			s = p.follow(s)
		}
		header = s.Header
		s, digest = backup.Digested(s)
		return to.Write(ctx, func(w io.Writer) error {
			return backup.Write(io.MultiWriter(w, file), s, server.ProgramVersion())
		})
	})
	switch {
	case errors.Is(err, bucket.ErrExists):
		return fmt.Errorf("%w: name another file, or replace it with --force", err)
	case !skipDamaged && (errors.Is(err, sqlstore.ErrDamaged) || errors.Is(err, sqlstore.ErrBroken)):
		return fmt.Errorf("%w; if there is no backup of before, \"byre backup --skip-damaged\" saves what can be read", err)
	case err != nil:
		return err
	}
	p.end()
	if left == 0 {
		if err := recordBackup(ctx, endpoint, to.Name, header.Revision); err != nil {
			// The backup is complete all the same.
			fmt.Fprintf(cmd.ErrOrStderr(), "the backup is complete, but \"byre status\" will not show it, because it could not be recorded: %v\n", err)
		}
	}
	out := cmd.OutOrStdout()
	if to.Name == "-" {
		out = cmd.ErrOrStderr()
	}
	fmt.Fprintf(out, "%s: revision %d, %d objects, %d changes, %d bytes\nsha256 %x\n",
		to.Name, header.Revision, digest.Objects, digest.Changes, file.size, file.Sum(nil))
	if left > 0 {
		return &statusError{fmt.Errorf("%d damaged parts of the database are not in the backup", left), statusDamaged}
	}
	return nil
}

// recordBackup records a backup in the database, for "byre status".
func recordBackup(ctx context.Context, endpoint, name string, revision int64) error {
	b := sqlstore.LastBackup{Time: time.Now(), Revision: revision, Location: name}
	switch {
	case name == "-":
		b.Location = "standard output"
	case !strings.Contains(name, "://"):
		if path, err := filepath.Abs(name); err == nil {
			b.Location = path
		}
	}
	return storeBackupRecord(ctx, endpoint, b)
}

func storeBackupRecord(ctx context.Context, endpoint string, b sqlstore.LastBackup) error {
	return withDatabase(endpoint,
		func(path string) error { return sqlite.RecordBackup(path, b) },
		func(dsn string) error { return postgres.RecordBackup(ctx, dsn, b) })
}

// sized is a hash that counts its bytes.
type sized struct {
	hash.Hash
	size int64
}

// Write implements io.Writer.
func (s *sized) Write(p []byte) (int, error) {
	s.size += int64(len(p))
	return s.Hash.Write(p)
}
