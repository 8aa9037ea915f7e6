package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"byre/migrations"
	"byre/migrations/dbfile"
)

// checkSource fails if the endpoint of a database that is to be read names a file that does not
// exist, or that is no database of byre.
func checkSource(endpoint string) error {
	dialect, path, err := migrations.ParseEndpoint(endpoint)
	if err != nil || dialect != migrations.SQLite {
		return err
	}
	isFresh, err := dbfile.Inspect(path)
	switch {
	case errors.Is(err, dbfile.ErrForeign):
		return explainFile(path, byreDatabase, fmt.Errorf("%w: name a database that \"byre serve\" has made", err))
	case err != nil:
		return err
	case isFresh:
		return fmt.Errorf("there is no database in %s: name its directory with --data-dir, or another database with --endpoint", path)
	}
	return nil
}

// explainFile returns err, which a command that takes files of the kind want got of the file at
// path. If the file is of another kind, explainFile returns the command that takes it.
func explainFile(path, want string, err error) error {
	if kind, command := recognize(path); kind != "" && kind != want {
		return fmt.Errorf("%s is %s: use \"byre %s\"", path, kind, command)
	}
	return err
}

// The kinds of recognize.
const (
	compressed   = "a compressed file, as backups of byre are" // RFC 8878
	byreDatabase = "a database of byre"
	etcdSnapshot = "a snapshot of etcd"
	otherSQLite  = "another program's SQLite database"
)

// recognize tells by the first bytes of a file what it is, and which command takes it. kind is
// empty if it is nothing that byre knows.
func recognize(path string) (kind, command string) {
	file, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer file.Close()
	header := make([]byte, 100)
	if n, err := io.ReadFull(file, header); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || n < 20 {
		return "", ""
	}
	switch {
	case bytes.HasPrefix(header, []byte("\x28\xb5\x2f\xfd")):
		return compressed, "restore " + path
	case binary.NativeEndian.Uint32(header[16:]) == 0xED0CDAED: // bbolt's page header, and its magic
		return etcdSnapshot, "import etcd " + path
	case !bytes.HasPrefix(header, []byte("SQLite format 3\x00")):
		return "", ""
	case binary.BigEndian.Uint32(header[68:]) == dbfile.ApplicationID:
		return byreDatabase, "restore --from sqlite://" + path
	}
	return otherSQLite, "import kine sqlite://" + path
}
