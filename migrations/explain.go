package migrations

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes for which there is a next step; see
// https://www.postgresql.org/docs/current/errcodes-appendix.html.
const (
	codeInvalidPassword       = "28P01"
	codeInvalidAuthorization  = "28000"
	codeInvalidCatalogName    = "3D000"
	codeInsufficientPrivilege = "42501"
	codeUndefinedTable        = "42P01"
	codeUndefinedObject       = "42704"
	codeReadOnlyTransaction   = "25006"
	codeTooManyConnections    = "53300"
	codeDiskFull              = "53100"
	codeCannotConnectNow      = "57P03"
	codeLockNotAvailable      = "55P03"
	codeProtocolViolation     = "08P01"
)

// explained is an error with a text for the operator. It wraps the error that it explains.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// Explain returns an error whose text tells in one line the server, what is wrong, and what to do. It
// wraps err. It returns an error that is explained already unchanged.
func Explain(config *pgx.ConnConfig, err error) error {
	var already *explained
	if err == nil || errors.As(err, &already) {
		return err
	}
	return &explained{text: "PostgreSQL at " + Address(config) + ": " + describe(config, err), err: err}
}

// Address returns the hosts of an endpoint with their ports, separated by commas.
func Address(config *pgx.ConnConfig) string {
	addresses := []string{address(config.Host, config.Port)}
	for _, f := range config.Fallbacks {
		if a := address(f.Host, f.Port); !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	return strings.Join(addresses, ",")
}

func address(host string, port uint16) string {
	_, address := pgconn.NetworkAddress(host, port)
	return address
}

// describe returns the text of Explain without the server. If pgx has tried several hosts, it tells
// the cause for each host.
func describe(config *pgx.ConnConfig, err error) string {
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) {
		return cause(config, err)
	}
	var joined interface{ Unwrap() []error }
	if !errors.As(connect.Unwrap(), &joined) {
		return cause(config, err)
	}
	// If sslmode allows both, pgx tries a host with TLS and then without. The last error of a
	// host is its cause.
	var addresses []string
	causes := map[string]string{}
	for _, one := range joined.Unwrap() {
		at, _, _ := strings.Cut(one.Error(), " (") // pgconn's error has no field for the address
		if _, seen := causes[at]; !seen {
			addresses = append(addresses, at)
		}
		causes[at] = cause(config, one)
	}
	if len(addresses) == 1 {
		return causes[addresses[0]]
	}
	var texts []string
	for _, at := range addresses {
		texts = append(texts, at+": "+causes[at])
	}
	return strings.Join(texts, "; ")
}

// cause returns a text that tells what is wrong and what to do about it.
func cause(config *pgx.ConnConfig, err error) string {
	var server *pgconn.PgError
	var dns *net.DNSError
	var unknownAuthority x509.UnknownAuthorityError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &server):
		return serverCause(config, server)
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		return "the server is a standby or read-only: name the primary in the endpoint too, or promote the standby"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: start the server, or correct host and port (listen_addresses, port)"
	case errors.As(err, &dns):
		return fmt.Sprintf("host %s is not known: correct the endpoint or the name service", dns.Name)
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such socket: start the server, or correct the host"
	case errors.Is(err, fs.ErrPermission):
		return "the socket or file may not be opened: correct its permissions"
	case errors.As(err, &unknownAuthority), errors.As(err, &certificate):
		return oneLine(
			fmt.Sprintf("the server's certificate is not accepted (%v): correct sslrootcert, sslmode or the certificate",
				root(err)))
	case strings.Contains(err.Error(), "server refused TLS connection"): // pgconn has no sentinel for this error
		return "the server refuses TLS: turn ssl on in postgresql.conf, or set sslmode=prefer in the endpoint"
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err), errors.Is(err, syscall.ETIMEDOUT):
		return "no answer in time: check that host and port are reachable"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		return "the connection was closed by the server: see its log"
	}
	return oneLine(root(err).Error())
}

// serverCause returns the server's own message, which names the user, the database or the table,
// and the next step.
func serverCause(config *pgx.ConnConfig, err *pgconn.PgError) string {
	if err.Code == codeInvalidAuthorization && err.Routine == roleRoutine {
		return fmt.Sprintf(
			"%[1]s: create it (CREATE ROLE %[2]s LOGIN), or let it log in (ALTER ROLE %[2]s LOGIN), or correct the user in the endpoint",
			oneLine(err.Message), pgx.Identifier{config.User}.Sanitize())
	}
	next := map[string]string{
		codeInvalidPassword:      "correct the password in the endpoint, PGPASSWORD or the passfile",
		codeInvalidAuthorization: "allow the user, host and database in pg_hba.conf, and TLS as that demands (sslmode)",
		codeInvalidCatalogName: fmt.Sprintf("create it (CREATE DATABASE %s) or correct the endpoint",
			pgx.Identifier{config.Database}.Sanitize()),
		codeInsufficientPrivilege: fmt.Sprintf(
			"grant it to %s (the owner of the database and its schema has every right needed)",
			pgx.Identifier{config.User}.Sanitize()),
		codeUndefinedTable:      "the schema was changed or removed: run \"byre migrate status\"",
		codeReadOnlyTransaction: "the server is a standby, or default_transaction_read_only is on",
		codeTooManyConnections:  "raise max_connections, or lower pool_max_conns in the endpoint",
		codeDiskFull:            "free space on the server's disk",
		codeCannotConnectNow:    "the server starts or stops: wait, or see its log",
		codeLockNotAvailable:    "end the other session's transaction (a backup, for example), or wait for its end",
	}[err.Code]
	text := oneLine(err.Message)
	if err.Code == codeProtocolViolation && strings.Contains(text, "search_path") {
		// PgBouncer sends this error.
		next = "the pooler takes no search_path: name no schema in the endpoint, and set search_path for the role (ALTER ROLE) or at the pooler"
	}
	if next == "" {
		return fmt.Sprintf("%s (SQLSTATE %s)", text, err.Code)
	}
	return text + ": " + next
}

// roleRoutine is the function of the server (src/backend/utils/init/miscinit.c) that refuses a role
// that does not exist or may not log in. The code is that of pg_hba.conf's refusal, and the message has
// the language of lc_messages.
const roleRoutine = "InitializeSessionUserId"

// root returns the innermost error. The texts of the outer ones repeat what the explanation tells.
func root(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
