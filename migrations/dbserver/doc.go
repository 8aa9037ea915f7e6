// Package dbserver connects to a PostgreSQL server: it has the defaults of a connection,
// and explains a failed connection to the operator. Migrations and the store's driver use
// it.
//
// Every session is read-write: of several hosts it uses the primary, and never a standby.
// The kernel notices a silent server: keepalives while a connection is idle,
// TCP_USER_TIMEOUT (Linux) while data waits to be acknowledged.
package dbserver
