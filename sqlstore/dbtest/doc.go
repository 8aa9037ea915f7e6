// Package dbtest gives databases to the tests of packages that use a store: empty ones of both
// kinds, with this program's schema (Kinds, SQLite, Postgres). RunStore runs a store with its feed
// on one of them, as a server does, until the test ends.
//
// The caller closes the drivers. The databases are removed when the test ends.
package dbtest
