// Package dbserver has the configuration of connections to a PostgreSQL server, and explains failed
// connections to the operator. Migrations and the store's driver use it.
//
// Each new connection reads the files that the endpoint names (passfile, passwordfile, sslcert,
// sslkey, sslrootcert), so that credentials rotate without a restart.
//
// Every session is read-write: of several hosts, a connection is made to the primary, and never to a
// standby, nor to a Pgpool-II that may read from one. The kernel ends a connection whose server does not
// answer: by TCP keepalives while the connection is idle, and by TCP_USER_TIMEOUT (on Linux) while sent data
// is unacknowledged.
package migrations
