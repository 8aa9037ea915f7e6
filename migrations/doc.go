// Package migrations brings a database to the schema of this program.
//
// The steps are numbered SQL files, one folder for each dialect. They are embedded in the
// program, and golang-migrate runs them. The package does not use golang-migrate's database
// drivers. Its own drivers run all steps, and write the version, in one transaction that holds
// the lock of the migration. So a migration happens completely or not at all, and never leaves a
// database "dirty". The lock needs no session of its own, which a connection pooler in
// transaction mode could not give.
//
// # What is promised
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
package migrations
