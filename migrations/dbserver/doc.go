// Package dbserver connects to a PostgreSQL server: it has the defaults of a connection,
// and explains a failed connection to the operator. Migrations and the store's driver use
// it.
//
// The files that an endpoint names (passfile, passwordfile, sslcert, sslkey, sslrootcert) are
// read for every new connection, so that credentials rotate without a restart.
//
// Every session is read-write: of several hosts it uses the primary, and never a standby.
// The kernel notices a silent server: keepalives while a connection is idle,
// TCP_USER_TIMEOUT (Linux) while data waits to be acknowledged.
package dbserver
