package dbserver

import (
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

// RefreshCredentials reads the files that an endpoint names again, and sets the password, the client
// certificate and the root certificates of the configuration of a new connection. pgx alone reads
// the files only when it parses the endpoint. If a file can't be read, the new connection fails; the
// existing ones keep working.
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
	config.Password, config.TLSConfig, config.Fallbacks = fresh.Password, fresh.TLSConfig, fresh.Fallbacks
	return nil
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
