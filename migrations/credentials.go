package migrations

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// passwordFile is the parameter of an endpoint that names a file with only the password, such as a
// mounted Secret or the token of a cloud's identity service. libpq has only passfile, whose lines
// have the name of the server too.
const passwordFile = "passwordfile"

// RefreshCredentials reads the files that an endpoint names again, and sets the password and the root
// certificates of the configuration of a new connection, which is the caller's own copy. pgx itself reads
// the client certificate for each connection, and the other files only when it parses the endpoint. If a
// file can't be read, the new connection fails; the existing ones keep working.
func RefreshCredentials(dsn string, config *pgx.ConnConfig) error {
	fresh, err := pgx.ParseConfig(dsn)
	if err == nil {
		err = readPasswordFile(fresh)
	}
	if err != nil {
		// The message of a ParseConfigError contains the endpoint; that of the error that it
		// wraps does not.
		if parse := new(pgconn.ParseConfigError); errors.As(err, &parse) && parse.Unwrap() != nil {
			err = parse.Unwrap()
		}
		return &explained{text: "PostgreSQL at " + Address(config) + ": " + oneLine(err.Error()) + ": correct the file that the endpoint names", err: err}
	}
	config.Password = fresh.Password
	refreshRoots(config.TLSConfig, fresh.TLSConfig)
	for i, fallback := range config.Fallbacks[:min(len(config.Fallbacks), len(fresh.Fallbacks))] { // the other hosts of the endpoint
		refreshRoots(fallback.TLSConfig, fresh.Fallbacks[i].TLSConfig)
	}
	return nil
}

// refreshRoots replaces the root certificates. It keeps config itself: pgx knows the client certificate by it.
func refreshRoots(config, fresh *tls.Config) {
	if config != nil && fresh != nil { // a service file may have changed since
		config.RootCAs, config.VerifyPeerCertificate = fresh.RootCAs, fresh.VerifyPeerCertificate
	}
}

// readPasswordFile sets the password to the content of the file that the parameter passwordfile
// names, if it is set. It removes the parameter, which pgx would otherwise send to the server.
func readPasswordFile(config *pgx.ConnConfig) error {
	path, given := config.RuntimeParams[passwordFile]
	if !given {
		return nil
	}
	delete(config.RuntimeParams, passwordFile)
	password, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s: %w", passwordFile, err)
	}
	config.Password = strings.TrimRight(string(password), "\r\n")
	return nil
}
