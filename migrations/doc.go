// Package migrations brings a database to the schema of this program. It also has what everything
// that opens such a database needs: the lock of a SQLite file, connections to a PostgreSQL server,
// and files that belong to the right user.
//
// # Steps
//
// The steps are numbered SQL files, one folder for each dialect. They are embedded in the
// program, and golang-migrate runs them. The package does not use golang-migrate's database
// drivers. Its own drivers run all steps, and write the version, in one transaction that holds
// the lock of the migration. So a migration happens completely or not at all, and never leaves a
// database "dirty". The lock needs no session of its own, which a connection pooler in
// transaction mode could not give.
//
//   - Up and Down refuse a database of another program (ErrForeign) or of a newer release
//     (ErrNewer), and do not change it.
//   - If two processes start at the same time, one migrates, and the other waits or fails with
//     an *InUseError.
//   - Down reverses one step of Up.
//
// # Endpoints
//
// An endpoint is "sqlite:///absolute/path", "sqlite:relative/path", or a connection string of
// pgx: a URL with the scheme "postgres://" or "postgresql://", or keywords and values
// ("host=... dbname=...").
//
// # SQLite files
//
// One process at a time holds the lock of a database's file (AcquireFile). The lock is an flock on
// a file beside the database, whose name has the suffix ".lock". The kernel releases it when the
// process ends, for whatever reason. SQLite's own locks are not enough: they would let a second
// process write between two transactions, and the revision store keeps counters in memory. The
// sqlite3 shell can read the database while the lock is held. InspectFile recognizes the files of
// byre.
//
// # PostgreSQL connections
//
// ParseDSN configures connections, Connect makes the first one, and Explain tells the operator why
// a connection has failed. Each new connection reads the files that the endpoint names (passfile,
// passwordfile, sslcert, sslkey, sslrootcert), so that credentials rotate without a restart.
//
// Every session is read-write: of several hosts, a connection is made to the primary, and never to
// a standby, nor to Pgpool-II. The kernel ends a connection whose server
// does not answer: by TCP keepalives while the connection is idle, and by TCP_USER_TIMEOUT (on
// Linux) while sent data is unacknowledged.
//
// # Owners of files
//
// A file or directory that root makes with OpenOwned, WriteFileOwned, WriteFilesOwned or
// MkdirAllOwned belongs to the owner of the directory that it is in. Otherwise a command that an
// administrator runs as root beside a server that runs as another user, or a server that was once
// started as root, would leave files that the server can't open.
//
// # What the caller owes
//
// The caller closes a FileLock. The package has no goroutines that outlive a call.
package migrations
