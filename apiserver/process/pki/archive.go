package pki

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"

	"byre/migrations"
)

// maxSize bounds what Read takes into memory, in bytes. A directory of byre has some 30 KB.
const maxSize = 16 << 20

// WriteArchive writes the files of a directory, also those that are symbolic links, encrypted for recipients. It fails
// if there are none.
func WriteArchive(w io.Writer, dir string, recipients ...age.Recipient) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			files = append(files, info)
		}
	}
	if len(files) == 0 {
		return fmt.Errorf("%s has no files: name the directory of the certificates of a server that has been started", dir)
	}
	encrypted, err := age.Encrypt(w, recipients...)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(encrypted)
	for _, info := range files {
		content, err := os.ReadFile(filepath.Join(dir, info.Name()))
		if err != nil {
			return err
		}
		header := tar.Header{Typeflag: tar.TypeReg, Name: info.Name(), Size: int64(len(content)),
			Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := archive.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), encrypted.Close())
}

// Archive is what Write has written.
type Archive []file

type file struct {
	name    string
	mode    fs.FileMode
	content []byte
}

// Recipients parses public keys, as age-keygen prints them. It fails if age does not encrypt for all of them together.
func Recipients(keys []string) (to []age.Recipient, err error) {
	for _, key := range keys {
		recipients, err := age.ParseRecipients(strings.NewReader(key))
		if err != nil {
			return nil, fmt.Errorf("--age-recipient %q: %w", key, err)
		}
		to = append(to, recipients...)
	}
	if len(to) > 0 {
		if _, err := age.Encrypt(io.Discard, to...); err != nil {
			return nil, fmt.Errorf("--age-recipient: %w", err)
		}
	}
	return to, nil
}

// ReadArchive reads an archive to its end, and so fails if it is not whole, or was changed, or if no identity can
// decrypt it.
func ReadArchive(r io.Reader, identities ...age.Identity) (Archive, error) {
	decrypted, err := age.Decrypt(r, identities...)
	if err != nil {
		return nil, err
	}
	whole, err := io.ReadAll(io.LimitReader(decrypted, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(whole) > maxSize {
		return nil, fmt.Errorf("it has more than %d MiB, and so is no archive of certificates", maxSize>>20)
	}
	var archive Archive
	for files := tar.NewReader(bytes.NewReader(whole)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg || filepath.Base(header.Name) != header.Name || !filepath.IsLocal(header.Name) {
			return nil, fmt.Errorf("it has %q, which is no file of a directory of certificates", header.Name)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return nil, err
		}
		archive = append(archive, file{header.Name, header.FileInfo().Mode().Perm(), content})
	}
	if len(archive) == 0 {
		return nil, errors.New("it has no files")
	}
	return archive, nil
}

// CheckArchiveEmpty fails if a directory has files, which Extract would replace.
func CheckArchiveEmpty(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(files) > 0 {
		err = fmt.Errorf("%s has files: move them away, or restore without --with-pki", dir)
	}
	return err
}

// Extract writes the files into a directory, which it makes. The owner of what it makes is that of the directory above.
func (a Archive) Extract(dir string) error {
	if err := migrations.MkdirAllOwned(dir, 0o700); err != nil {
		return err
	}
	for _, file := range a {
		if err := migrations.WriteFileOwned(filepath.Join(dir, file.name), file.content, file.mode); err != nil {
			return err
		}
	}
	return migrations.SyncDir(dir)
}
