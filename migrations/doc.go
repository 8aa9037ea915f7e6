// Package migrations brings a database to the schema that this program knows.
//
// The steps are numbered SQL files, one folder a dialect, embedded in the program and run
// by golang-migrate. Its own database drivers are not used: byre's drivers run all steps,
// and write the version, in one transaction that holds the lock. So a migration happens
// wholly or not at all, no database is ever left "dirty", and the lock needs no session
// of its own, which a connection pooler in transaction mode could not give.
//
// # What is promised
//
//   - A database of another program, or of a newer version of this one, is
//     refused and left as it is (ErrForeign, ErrNewer).
//   - Two programs that start at once migrate one after the other.
//   - Down reverses Up.
//
// # Endpoints
//
// An endpoint is "sqlite:///absolute/path", "sqlite:relative/path", or anything
// that pgx takes as a connection string, by its scheme "postgres://" or
// "postgresql://" or by its keywords ("host=... dbname=...").
package migrations
