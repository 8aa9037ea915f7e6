package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations"
	"byre/sqlstore"
)

// SQLSTATE codes; see https://www.postgresql.org/docs/current/errcodes-appendix.html.
const (
	codeWarning          = "01000"
	codeLockNotAvailable = "55P03"
	codeReadOnly         = "25006"
	codeNoStatement      = "26000"
	codeNoPrivilege      = "42501"
	codeNoTable          = "42P01"
	codeDiskFull         = "53100"
	codeDuplicate        = "23505"
	codeSerialization    = "40001"
	codeDeadlock         = "40P01"
	codeNoFunction       = "42883"
	codeNotSupported     = "0A000"
	codeLimit            = "54000"
)

// refusals are the codes of a server that does not show something to the role, or to anybody, now
// and later.
var refusals = []string{codeNoPrivilege, codeNoFunction, codeNotSupported}

// causes are the codes whose meaning a client may learn; see sqlstore.Cause.
var causes = map[string]error{
	codeReadOnly:         sqlstore.ErrReadOnly,
	codeDiskFull:         sqlstore.ErrDiskFull,
	codeLockNotAvailable: sqlstore.ErrLocked,
}

// unavailable are the first characters of the codes of a server that can't serve now: lost
// connections, transactions that the server has ended or takes no writes in, refused users and
// missing privileges, conflicts of transactions, a lack of resources, a state that does not allow
// the statement (such as recovery), intervention of an operator, I/O errors, damage; and a prepared
// statement that is lost or that a change of the schema has made obsolete (codeNotSupported).
var unavailable = []string{
	"08", "25", "28", "3D", "3F", "40", "53", "55", "57", "58", "XX", codeNoStatement, codeNotSupported,
	codeNoPrivilege, codeNoTable,
}

// translate turns an error of the server or of the connection into one of sqlstore. It is
// for everything but a batch; see translateCommit.
func (s *server) translate(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || isOurs(err) {
		return err
	}
	explained := migrations.Explain(s.config, err)
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		// Errors that do not come from the server are those of the connection, or time-outs.
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, explained)
	}
	cause := causes[server.Code]
	if isExhausted(server) {
		cause = sqlstore.ErrReadOnly
	}
	if cause != nil {
		return fmt.Errorf("%w: %w", cause, explained)
	}
	isUnavailable := func(code string) bool { return strings.HasPrefix(server.Code, code) }
	if slices.ContainsFunc(unavailable, isUnavailable) || isLostRace(server) {
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, explained)
	}
	return fmt.Errorf("%w: %w", sqlstore.ErrDatabase, explained)
}

// isExhausted reports whether the server gives no transaction or multixact IDs, until tables are vacuumed.
func isExhausted(err *pgconn.PgError) bool {
	return err.Code == codeLimit && (err.Routine == "GetNewTransactionId" || err.Routine == "GetNewMultiXactId")
}

// translateCommit is translate for a batch. committing says that the COMMIT itself failed.
//
// The driver sends the whole batch at once. When the connection breaks, the server may
// have received the COMMIT, and the outcome is unknown. It is certain that the batch did not
// happen if the session of the batch says that an earlier statement failed, or if nothing was
// sent.
func (s *server) translateCommit(err error, committing bool) error {
	var server *pgconn.PgError
	isCertain := errors.As(err, &server) && s.isProof(server) && (!committing || strings.HasPrefix(server.Code, "40"))
	switch {
	case err == nil:
		return nil
	case isCertain, nothingWasSent(err):
		return s.translate(err)
	default:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnknown, migrations.Explain(s.config, err))
	}
}

// isProof reports whether an error proves that the session of a batch did not execute the rest of
// the batch. A pooler answers in the server's name when its own connection to the server breaks,
// which may be after the COMMIT: PgBouncer with FATAL 08P01, Odyssey with ERROR 08006. On a direct
// connection a FATAL of class 57 comes from a session that is terminated, by pg_terminate_backend or
// a shutdown, before it has committed.
func (s *server) isProof(err *pgconn.PgError) bool {
	return isOfSession(err) || s.hasSession() && strings.HasPrefix(err.Code, "57P")
}

// isOfSession reports whether a session has answered a statement with the error, and goes on. An
// error of class 08 is about a connection, which may be that of a pooler to the server. PostgreSQL sends
// the severity in English (V) with each error: one without it is a pooler's.
func isOfSession(err *pgconn.PgError) bool {
	return err.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(err.Code, "08")
}

// hasLostRace reports whether the server rolled back a batch that may succeed when it is
// repeated.
func hasLostRace(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && !errors.Is(err, sqlstore.ErrUnknown) && isLostRace(server)
}

// isLostRace reports whether an error is a conflict with another transaction, a deadlock, or a revision, the
// id of a resource or the key of an object that another transaction has given meanwhile. The latter
// happens where a batch got no writers' lock (see lock), as while synchronous_standby_names changes: each
// session reads it at a time of its own.
func isLostRace(err *pgconn.PgError) bool {
	switch err.Code {
	case codeSerialization, codeDeadlock:
		return true
	case codeDuplicate:
		return slices.Contains([]string{"undo_log", "resources", "current_objects"}, err.TableName)
	}
	return false
}

// nothingWasSent reports whether a batch failed because the first write to the connection
// failed. pgconn.SafeToRetry alone is not enough: it also holds for the error "conn closed",
// with which pgx reads an answer after the connection has broken.
func nothingWasSent(err error) bool {
	var network *net.OpError
	return pgconn.SafeToRetry(err) && errors.As(err, &network) && network.Op == "write"
}

// isOurs reports whether an error came from the function that a caller passed to List, or
// matches an error of sqlstore already.
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

// yieldError is an error of the function that the caller of List passed.
type yieldError struct{ err error }

func (e *yieldError) Error() string { return e.err.Error() }
func (e *yieldError) Unwrap() error { return e.err }

// hasCode reports whether the server's error has the code.
func hasCode(err error, code string) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == code
}
