package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"byre/apiserver/process/pki"
	"byre/sqlstore/bucket"
)

// pkiFlags say that a backup has the certificates and keys of the server beside it, and who can decrypt them.
type pkiFlags struct {
	with                    bool
	certDir, passphraseFile string
	// recipients are of "byre backup", and identityFiles of "byre restore".
	recipients, identityFiles []string
}

func (f *pkiFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.certDir, "cert-dir", "", "With --with-pki: directory of the certificates. If not set, pki below --data-dir.")
	cmd.Flags().StringVar(&f.passphraseFile, "age-passphrase-file", "", "With --with-pki: file whose first line is the passphrase.")
}

func (f *pkiFlags) addToBackup(cmd *cobra.Command) {
	f.addTo(cmd)
	cmd.Flags().BoolVar(&f.with, "with-pki", false, "Write the server's certificates and keys too, to a file beside the backup whose name ends with "+bucket.KeysSuffix+", encrypted by age for --age-recipient or by --age-passphrase-file.")
	cmd.Flags().StringArrayVar(&f.recipients, "age-recipient", nil, "With --with-pki: public key, as age-keygen prints it, of who can decrypt the certificates. May be repeated.")
}

func (f *pkiFlags) addToRestore(cmd *cobra.Command) {
	f.addTo(cmd)
	cmd.Flags().BoolVar(&f.with, "with-pki", false, "Restore the certificates and keys too, from the file beside the backup whose name ends with "+bucket.KeysSuffix+". Their directory must be empty or not exist yet.")
	cmd.Flags().StringArrayVar(&f.identityFiles, "age-identity-file", nil, "With --with-pki: file with the private key, as age-keygen writes it. May be repeated.")
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
