package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"byre/apiserver/server"
	"byre/apiserver/storage/moment"
	"byre/cmd/byre/client"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
)

// bumpRevision is how far a restore moves the revision forward: etcdutl's documentation
// recommends it too. At 1,000 changes a second it takes eleven days to get there.
const bumpRevision = 1_000_000_000

// restoreFlags are those of "byre restore".
type restoreFlags struct {
	store server.StoreOptions
	// source is the backup; from is a database instead.
	source bucket.Location
	from   string
	at     client.MomentFlag
	moment moment.Moment
	// folder and upTo are for a continuous copy of which files are missing.
	folder string
	upTo   int64
	bump   int64
	pki    pkiFlags
	// isFork has another cluster made of the objects; see asFork.
	isFork bool
}

func newRestoreCommand() *cobra.Command {
	f := restoreFlags{store: server.NewStoreOptions()}
	cmd := &cobra.Command{
		Use:   "restore [flags] FILE|-|s3://BUCKET/KEY",
		Short: "Fill an empty database from a backup, a continuous copy, or another database's history",
		Long: "Fill an empty database from a backup, a continuous copy, or another database's history.\n\n" +
			"The backup is read and verified to its end before anything is done. The database of\n" +
			"--endpoint or --data-dir must be empty or not exist yet: it has everything in the end,\n" +
			"or stays empty. Its objects are then counted and hashed.\n\n" +
			"The restored store goes on at a revision that no client can have seen, in a new epoch:\n" +
			"watches that go on from before end with 410 Expired, so that every client lists again.\n" +
			"Of what runs on, only a kube-controller-manager and a kube-scheduler need to be restarted. The\n" +
			"history is there for SQL, with the revisions that it had.\n\n" +
			"With --at, the objects and the history are those of an earlier moment: after the last\n" +
			"change that was made until a time, or after a revision.\n" +
			"It must lie within the history that the backup, or the database of --from, has of every\n" +
			"resource: by default that is 24 hours. Restore into a new database: the first one stays as\n" +
			"it is. Nothing is restored if there were no objects.\n\n" +
			"Files of a continuous copy may be missing: the error then names what is left. --up-to restores the\n" +
			"copy up to there, and --folder an older copy of \"byre backup list\".\n\n" +
			"With --with-pki, the certificates and keys are restored too, that \"byre backup --with-pki\", or\n" +
			"a server with --age-recipient, has written beside the backup or the continuous copy.",
		Example: "  byre restore --data-dir /var/lib/byre-restored /backup/byre.zst\n" +
			"  byre restore --data-dir /var/lib/byre --with-pki --age-identity-file key.txt /backup/byre.zst\n" +
			"  byre restore --endpoint postgres://byre@db.example.com/restored s3://backups/byre.zst\n" +
			"  byre restore --from s3://backups/cluster-1 --with-pki --age-identity-file key.txt --data-dir /var/lib/byre\n" +
			"  byre restore --from sqlite:///var/lib/byre/byre.db --at 2026-03-01T11:59:00Z --data-dir /var/lib/byre-restored",
		Args: func(cmd *cobra.Command, args []string) error {
			if f.from != "" {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.bump < 1 {
				return errors.New("--bump-revision must be positive: clients have seen the revisions up to the last one")
			}
			if !replication.IsURL(f.from) && (f.folder != "" || f.upTo != 0) {
				return errors.New("--folder and --up-to are for what --replicate-to has copied: name it with --from")
			}
			var err error
			if f.moment, err = f.at.Parse(cmd); err != nil {
				return err
			}
			restore := f.restoreBackup
			switch {
			case replication.IsURL(f.from):
				f.source, restore = replication.Location(f.from, f.source.S3), f.restoreReplica
			case f.from != "" && f.pki.with:
				return errors.New(
					"--with-pki is for a backup, or for what --replicate-to has copied: a database has no certificates beside it")
			case f.from != "":
				restore = func(cmd *cobra.Command) error { return f.restoreDatabase(cmd, "restoring", f.from) }
			default:
				f.source.Name, f.source.Stdin = args[0], cmd.InOrStdin()
			}
			keys, err := f.pki.decrypted(cmd.Context(), f.store.DataDir, f.source)
			if err != nil {
				return err
			}
			if err := restore(cmd); err != nil {
				return err
			}
			if keys == nil {
				dir := f.pki.dir(f.store.DataDir)
				if f.store.Endpoint != "" {
					dir = "pki/ in the --data-dir of each server"
				}
				fmt.Fprintf(cmd.OutOrStdout(),
					"next, before a start: %s must be the pki/ of the server that was backed up; a start with other keys is refused\n",
					dir)
				return nil
			}
			return f.pki.extract(cmd.OutOrStdout(), f.store.DataDir, keys)
		},
	}
	f.store.AddDatabaseFlags(cmd.Flags())
	f.source.S3.AddFlags(cmd.Flags())
	f.pki.addToRestore(cmd)
	cmd.Flags().StringVar(&f.from, "from", "",
		"Instead of a backup, read this database, which may be in use: sqlite:///PATH or postgres://...; or the latest that --replicate-to of a server has copied: file:///PATH or s3://BUCKET/PATH, through a temporary file in $TMPDIR.")
	cmd.Flags().StringVar(&f.folder, "folder", "",
		"With --from and a continuous copy: the folder to restore, of those that \"byre backup list\" shows; if not set, the newest.")
	cmd.Flags().Int64Var(&f.upTo, "up-to", 0,
		"With --from and a continuous copy of which files are missing: restore what was written up to this revision, without what came later.")
	f.at.AddTo(cmd, "at", "Restore the objects of a moment")
	cmd.MarkFlagsMutuallyExclusive("at", "up-to")
	cmd.Flags().Int64Var(&f.bump, "bump-revision", bumpRevision,
		"How far to move the revision forward: beyond every revision that a client may have seen since the backup.")
	return cmd
}

func (f *restoreFlags) restoreDatabase(cmd *cobra.Command, doing, endpoint string) error {
	return readDatabase(cmd.Context(), endpoint, func(s sqlstore.Snapshot) error {
		return f.restore(cmd, newProgress(cmd.ErrOrStderr(), doing), s)
	})
}

// restoreReplica restores from what --replicate-to has copied. It downloads to a temporary file.
func (f *restoreFlags) restoreReplica(cmd *cobra.Command) (err error) {
	copies, err := replication.Copies(cmd.Context(), f.from, f.source.S3)
	if err != nil {
		return err
	}
	chosen, err := f.choose(copies)
	if err != nil {
		return err
	}
	if chosen.Last == 0 {
		return fmt.Errorf("%s/%s: %s: nothing was restored%s", f.from, chosen.Folder, chosen.Hole(),
			olderCopy(copies, chosen))
	}
	dir, err := os.MkdirTemp("", "byre-restore-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "byre.db")
	if err := replication.Restore(cmd.Context(), f.from, f.source.S3, chosen, path); err != nil {
		return fmt.Errorf("%w: nothing was restored%s", err, olderCopy(copies, chosen))
	}
	return readDatabase(cmd.Context(), "sqlite://"+path, func(s sqlstore.Snapshot) error {
		switch {
		case f.upTo > s.Revision:
			return fmt.Errorf("%s/%s reaches up to revision %d, not %d: nothing was restored", f.from, chosen.Folder, s.Revision,
				f.upTo)
		case f.upTo > 0:
			f.moment.Revision = f.upTo
		case chosen.HasHole():
			return fmt.Errorf(
				"%s/%s: %s: nothing was restored; restore what is left, up to revision %d of %s, with --up-to %d%s", f.from,
				chosen.Folder,
				chosen.Hole(), s.Revision, chosen.Time.Format(time.RFC3339), s.Revision, olderCopy(copies, chosen))
		}
		return f.restore(cmd, newProgress(cmd.ErrOrStderr(), "restoring"), s)
	})
}

// choose returns the copy of --folder, or else the newest.
func (f *restoreFlags) choose(copies []replication.Copy) (replication.Copy, error) {
	if f.folder == "" {
		latest, err := replication.Latest(copies)
		if err != nil {
			err = fmt.Errorf("%s: %w", f.from, err)
		}
		return latest, err
	}
	for _, c := range copies {
		if c.Folder == f.folder {
			return c, nil
		}
	}
	return replication.Copy{}, fmt.Errorf("%s has no folder %s: see \"byre backup list %s\"", f.from, f.folder, f.from)
}

// olderCopy says how to restore the newest copy before one that has all of its files; empty if there is none.
func olderCopy(copies []replication.Copy, than replication.Copy) string {
	for _, c := range slices.Backward(copies) {
		if c.Folder < than.Folder && c.Last > 0 && !c.HasHole() {
			return fmt.Sprintf("; or restore an older copy, of %s, with --folder %s", c.Time.Format(time.RFC3339), c.Folder)
		}
	}
	return ""
}

func (f *restoreFlags) restoreBackup(cmd *cobra.Command) error {
	p := newProgress(cmd.ErrOrStderr(), "verifying")
	defer p.end()
	file, err := f.source.Open(cmd.Context())
	if err != nil {
		return err
	}
	defer file.Close()
	b, err := backup.Open(file)
	switch {
	case errors.Is(err, sqlstore.ErrBroken):
		return explainFile(f.source.Name, compressed,
			fmt.Errorf("%s: %w: name a file that \"byre backup\" has written", f.source.Name, err))
	case err != nil:
		return fmt.Errorf("%s: %w", f.source.Name, err)
	}
	if _, err := b.Verify(p.follow); err != nil {
		return fmt.Errorf("%s: %w: nothing was restored; use another backup", f.source.Name, err)
	}
	p.begin("restoring")
	return f.restore(cmd, p, b.Snapshot())
}

func (f *restoreFlags) restore(cmd *cobra.Command, p *progress, s sqlstore.Snapshot) error {
	defer p.end()
	dsn, err := f.store.DSN()
	if err != nil {
		return err
	}
	history, now := s.Header, time.Now()
	s, of, err := atMoment(s, f.moment)
	if err != nil {
		return err
	}
	if s = backup.NotEmpty(s); f.isFork {
		s = asFork(s, of, f.bump, now)
	}
	s = backup.Restored(p.follow(s), f.bump, rand.Text(), now)
	digest, err := loadVerified(cmd.Context(), p, dsn, s)
	if _, empty := errors.AsType[*backup.EmptyError](err); empty {
		return fmt.Errorf("%w, where the history reaches from revision %d to %d: nothing was restored; "+
			"name another backup or database, or another moment with --at", err, history.CompleteAfter, history.Revision)
	}
	if err != nil {
		return err
	}
	p.end()
	if f.isFork {
		fmt.Fprintf(cmd.OutOrStdout(), "forked and verified %d objects of revision %d, %s; "+
			"serve it from a directory of its own\n", digest.Objects, of.Revision, of.Time.UTC().Format(time.RFC3339))
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(),
		"restored and verified %d objects of revision %d, and %d changes of history; the next revision is %d\n",
		digest.Objects, of.Revision, digest.Changes, s.Revision+1)
	return nil
}

// atMoment returns a store at the moment of --at, or as it is, and which moment that is.
func atMoment(s sqlstore.Snapshot, m moment.Moment) (_ sqlstore.Snapshot, of sqlstore.Fork, err error) {
	if m.IsZero() {
		return s, sqlstore.Fork{Revision: s.Revision, Time: s.Time}, nil
	}
	if of = sqlstore.Fork(m); of.Revision == 0 {
		of.Revision, err = backup.RevisionAt(s, of.Time)
	} else {
		of.Time, err = timeOf(s, of.Revision)
	}
	if err == nil {
		s, err = backup.At(s, of.Revision)
	}
	return s, of, err
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
