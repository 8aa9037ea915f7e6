// Package pgtest gives tests databases on a PostgreSQL server that it starts. There is one
// server for each test process; the first test that asks for a database starts it.
//
// The package needs initdb and postgres in PATH or in a folder of a common distribution. The
// server listens on a Unix socket in a temporary folder, and syncs its files as a production
// server does. A shell is its parent process. When the test process ends, for whatever
// reason, the standard input of the shell ends, and the shell stops the server and removes
// the folder. PostgreSQL refuses to run as root; if the tests run as root, it runs as
// "postgres" or "nobody".
//
// For tests of faults there are four more types. A Site is a server, perhaps with a standby
// and a disk of its own, that a test can stop, break or promote. A Proxy stands between
// clients and a server, and can act at a chosen moment of a statement. A Pooler is PgBouncer.
// A Disk is a small file system that can be full or fail.
package pgtest
