package dbserver

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// passwordFile is the parameter of an endpoint that names a file with the password and nothing
// else: a mounted Secret, or the token of a cloud's identity service. libpq has only passfile,
// whose lines have the server's name too.
const passwordFile = "passwordfile"

// RefreshCredentials reads the files that an endpoint names once more, and sets the password,
// the client certificate and the root certificates of a configuration for a new connection.
// pgx reads them when it parses the endpoint, and would use those for as long as the process
// runs. A file that cannot be read fails this connection; those that exist go on.
func RefreshCredentials(dsn string, config *pgx.ConnConfig) error {
	fresh, err := pgx.ParseConfig(dsn)
	if err == nil {
		err = readPasswordFile(fresh)
	}
	if err != nil {
		// What pgx says of an endpoint contains it.
		if parse := new(pgconn.ParseConfigError); errors.As(err, &parse) && parse.Unwrap() != nil {
			err = parse.Unwrap()
		}
		return &explained{text: "PostgreSQL at " + Address(config) + ": " + oneLine(err.Error()) + ": correct the file that the endpoint names", err: err}
	}
	config.Password, config.TLSConfig, config.Fallbacks = fresh.Password, fresh.TLSConfig, fresh.Fallbacks
	return nil
}

// readPasswordFile sets the password from the file of the parameter, if there is one. It removes
// the parameter, which pgx would send to the server.
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
