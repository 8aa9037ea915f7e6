package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations/dbserver"
	"byre/sqlstore"
)

// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	codeLockNotAvailable = "55P03"
	codeReadOnly         = "25006"
	codeNoStatement      = "26000"
	codeNoPrivilege      = "42501"
	codeNoTable          = "42P01"
	codeDiskFull         = "53100"
	codeDuplicate        = "23505"
)

// causes are the codes whose meaning a client is told.
var causes = map[string]error{
	codeReadOnly:         sqlstore.ErrReadOnly,
	codeDiskFull:         sqlstore.ErrDiskFull,
	codeLockNotAvailable: sqlstore.ErrLocked,
}

// unavailable are the codes, by their beginning, of a server that can't serve
// now: lost connections, refused users and missing rights, transactions to be
// tried again, a lack of resources, operators at work, I/O errors, damage.
var unavailable = []string{
	"08", "28", "3D", "3F", "40", "53", "57", "58", "XX", codeNoStatement,
	codeNoPrivilege, codeNoTable,
}

// translate turns errors of the server and of the connection into sqlstore's,
// for anything but a COMMIT under way; see translateCommit.
func (d *Driver) translate(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || isOurs(err) {
		return err
	}
	explained := dbserver.Explain(d.config, err)
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		// Other errors are those of the connection, or of a time-out.
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, explained)
	}
	if cause := causes[server.Code]; cause != nil {
		return fmt.Errorf("%w: %w", cause, explained)
	}
	for _, code := range unavailable {
		if strings.HasPrefix(server.Code, code) {
			return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, explained)
		}
	}
	return fmt.Errorf("%w: %w", sqlstore.ErrDatabase, explained)
}

// translateCommit is translate for a batch. committing says that what failed
// was the COMMIT itself. The whole batch is sent at once: when the connection
// breaks the server may have got to the COMMIT. When an earlier statement
// failed by the server's own word, or nothing could be sent, it has not.
func (d *Driver) translateCommit(err error, committing bool) error {
	var server *pgconn.PgError
	isServer := errors.As(err, &server)
	switch {
	case err == nil:
		return nil
	case isServer && (!committing || strings.HasPrefix(server.Code, "40")), nothingWasSent(err):
		return d.translate(err)
	default:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnknown, dbserver.Explain(d.config, err))
	}
}

// nothingWasSent reports whether a batch failed before any of it was on its way: its
// first write failed. pgconn.SafeToRetry alone does not say so: it holds for "conn closed"
// too, which is also how the read of an answer fails after the connection has broken.
func nothingWasSent(err error) bool {
	var network *net.OpError
	return pgconn.SafeToRetry(err) && errors.As(err, &network) && network.Op == "write"
}

// isOurs reports whether an error passed through the driver from the caller's
// own code or is a sentinel already.
func isOurs(err error) bool {
	for _, sentinel := range []error{
		sqlstore.ErrCompacted, sqlstore.ErrFuture, sqlstore.ErrInvalid, sqlstore.ErrNotFound,
		sqlstore.ErrUnavailable, sqlstore.ErrUnknown, sqlstore.ErrDatabase,
	} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	var y *yieldError
	return errors.As(err, &y)
}

// yieldError is an error of the function that a List calls.
type yieldError struct{ err error }

func (e *yieldError) Error() string { return e.err.Error() }
func (e *yieldError) Unwrap() error { return e.err }

// hasCode reports whether the server's error has the code.
func hasCode(err error, code string) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == code
}
