package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"k8s.io/component-base/term"

	"byre/apiserver/process/pki"
	"byre/apiserver/server"
	"byre/cmd/byre/client"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/postgres"
	"byre/sqlstore/replication"
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
	cmd.Flags().BoolVar(&skipDamaged, "skip-damaged", false,
		"Leave out rows of SQLite that can't be read, and of both databases those that no store can have.")
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
			fmt.Fprintf(cmd.ErrOrStderr(),
				"the backup is complete, but \"byre status\" will not show it, because it could not be recorded: %v\n", err)
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
				backups = append(backups,
					storedBackup{Name: c.Folder, Time: c.Time, Transaction: c.Last, SizeBytes: c.SizeBytes, Error: c.Hole()})
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
			client.PrintRow(w,
				[]any{b.Name, at, "-", "-", bytesText(b.SizeBytes),
					cmp.Or(b.Error, fmt.Sprintf("continuous copy, up to transaction %d", b.Transaction))})
			continue
		}
		client.PrintRow(w,
			[]any{b.Name, b.Time.UTC().Format(time.RFC3339), b.Revision, b.Objects, bytesText(b.SizeBytes), b.Program})
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
			if info, err := os.Stat(flags.Name); err == nil && info.IsDir() || strings.HasPrefix(flags.Name, "s3:") &&
				!strings.HasSuffix(flags.Name, bucket.Suffix) {
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
					all = append(all, verification{url + "/" + c.Folder, func() (string, error) {
						return verifyCopy(cmd, url, flags.S3, c)
					}})
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
		case errors.Is(err, sqlstore.ErrBroken), errors.Is(err, sqlstore.ErrDamaged), errors.Is(err, backup.ErrNewer),
			errors.Is(err, errNoObjects), errors.Is(err, errHole):
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
		errs = append(errs,
			&statusError{fmt.Errorf("%d of %d backups can't be restored, or lack something: keep the others, and make a new one",
				broken, len(all)), statusDamaged})
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
		text = fmt.Sprintf("revision %d of %s, %d objects, %d changes", s.Revision, c.Time.Format(time.RFC3339),
			digest.Objects, digest.Changes)
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
	return fmt.Sprintf("complete, revision %d of %s, %d objects, %d changes", b.Revision,
		b.Time.UTC().Format(time.RFC3339), digest.Objects, digest.Changes), err
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

// oldBackups returns the backups that are older than the newest ones of their cluster, of which keep are kept. They are
// in order, the newest last.
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

// pkiFlags say that a backup has the certificates and keys of the server beside it, and who can decrypt them.
type pkiFlags struct {
	with                    bool
	certDir, passphraseFile string
	// recipients are of "byre backup", and identityFiles of "byre restore".
	recipients, identityFiles []string
}

func (f *pkiFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.certDir, "cert-dir", "",
		"With --with-pki: directory of the certificates. If not set, pki below --data-dir.")
	cmd.Flags().StringVar(&f.passphraseFile, "age-passphrase-file", "",
		"With --with-pki: file whose first line is the passphrase.")
}

func (f *pkiFlags) addToBackup(cmd *cobra.Command) {
	f.addTo(cmd)
	cmd.Flags().BoolVar(&f.with, "with-pki", false,
		"Write the server's certificates and keys too, to a file beside the backup whose name ends with "+bucket.KeysSuffix+
			", encrypted by age for --age-recipient or by --age-passphrase-file.")
	cmd.Flags().StringArrayVar(&f.recipients, "age-recipient", nil,
		"With --with-pki: public key, as age-keygen prints it, of who can decrypt the certificates. May be repeated.")
}

func (f *pkiFlags) addToRestore(cmd *cobra.Command) {
	f.addTo(cmd)
	cmd.Flags().BoolVar(&f.with, "with-pki", false,
		"Restore the certificates and keys too, from the file beside the backup whose name ends with "+bucket.KeysSuffix+
			". Their directory must be empty or not exist yet.")
	cmd.Flags().StringArrayVar(&f.identityFiles, "age-identity-file", nil,
		"With --with-pki: file with the private key, as age-keygen writes it. May be repeated.")
}

// dir is the directory of the certificates.
func (f *pkiFlags) dir(dataDir string) string {
	return cmp.Or(f.certDir, filepath.Join(dataDir, "pki"))
}

// validate checks flags, of which keys is the one for keys: it needs --with-pki, and that needs keys or a passphrase.
func (f *pkiFlags) validate(backup, keys string, hasKeys bool) error {
	switch isEncrypted := hasKeys || f.passphraseFile != ""; {
	case !f.with && isEncrypted:
		return fmt.Errorf("%s and --age-passphrase-file are for --with-pki", keys)
	case f.with && (!isEncrypted || hasKeys && f.passphraseFile != ""):
		return fmt.Errorf("--with-pki needs %s, or else --age-passphrase-file", keys)
	case f.with && backup == "-":
		return errors.New("--with-pki is for a backup that has a name")
	}
	return nil
}

func (f *pkiFlags) passphrase() (string, error) {
	content, err := os.ReadFile(f.passphraseFile)
	passphrase, _, _ := strings.Cut(string(content), "\n")
	if passphrase = strings.TrimSuffix(passphrase, "\r"); err == nil && passphrase == "" {
		err = fmt.Errorf("--age-passphrase-file %s: its first line is empty", f.passphraseFile)
	}
	return passphrase, err
}

// encrypted returns the content of the file beside a backup. It is nil without --with-pki.
func (f *pkiFlags) encrypted(dataDir, backup string) ([]byte, error) {
	if err := f.validate(backup, "--age-recipient", len(f.recipients) > 0); err != nil || !f.with {
		return nil, err
	}
	to, err := pki.Recipients(f.recipients)
	if err != nil {
		return nil, err
	}
	if f.passphraseFile != "" {
		passphrase, err := f.passphrase()
		if err != nil {
			return nil, err
		}
		recipient, err := age.NewScryptRecipient(passphrase)
		if err != nil {
			return nil, err
		}
		to = append(to, recipient)
	}
	var content bytes.Buffer
	err = pki.WriteArchive(&content, f.dir(dataDir), to...)
	return content.Bytes(), err
}

// writePKI writes the file beside a backup.
func writePKI(ctx context.Context, out io.Writer, backup bucket.Location, content []byte) error {
	if content == nil {
		return nil
	}
	backup.Name += bucket.KeysSuffix
	if err := backup.Write(ctx, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}); err != nil {
		return fmt.Errorf("the backup is complete, but without the certificates: %w", err)
	}
	fmt.Fprintf(out, "%s: the certificates and keys, encrypted\n", backup.Name)
	return nil
}

// decrypted reads the file beside a backup. It is nil without --with-pki.
func (f *pkiFlags) decrypted(ctx context.Context, dataDir string, backup bucket.Location) (pki.Archive, error) {
	if err := f.validate(backup.Name, "--age-identity-file", len(f.identityFiles) > 0); err != nil || !f.with {
		return nil, err
	}
	if err := pki.CheckArchiveEmpty(f.dir(dataDir)); err != nil {
		return nil, err
	}
	by, err := f.identities()
	if err != nil {
		return nil, err
	}
	backup.Name += bucket.KeysSuffix
	file, err := backup.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	archive, err := pki.ReadArchive(file, by...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: nothing was restored", backup.Name, err)
	}
	return archive, nil
}

func (f *pkiFlags) identities() (by []age.Identity, err error) {
	if f.passphraseFile != "" {
		passphrase, err := f.passphrase()
		if err != nil {
			return nil, err
		}
		identity, err := age.NewScryptIdentity(passphrase)
		return []age.Identity{identity}, err
	}
	for _, name := range f.identityFiles {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		identities, err := age.ParseIdentities(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("--age-identity-file %s: %w", name, err)
		}
		by = append(by, identities...)
	}
	return by, nil
}

// extract writes the certificates of a restored database.
func (f *pkiFlags) extract(out io.Writer, dataDir string, archive pki.Archive) error {
	if err := archive.Extract(f.dir(dataDir)); err != nil {
		return fmt.Errorf("the database is restored, but not the certificates: %w", err)
	}
	fmt.Fprintf(out, "restored %d files into %s\n", len(archive), f.dir(dataDir))
	return nil
}
