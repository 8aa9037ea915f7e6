// Package pgtest gives tests databases on a throwaway PostgreSQL server, one
// server a test process, made when the first test asks.
//
// It needs initdb and postgres in PATH or where Debian and others put them. The
// server listens on a Unix socket in its own temporary folder. It syncs like a
// real one. A shell stands between the test and the server: when the test
// process ends, in whatever way, the shell's standard input ends; it stops the
// server and removes the folder. PostgreSQL refuses to run as root, so under
// root it runs as "postgres" or "nobody".
//
// For tests of faults there are four more: a Site is a server, perhaps with a standby and
// a disk of its own, that a test can stop, break or promote; a Proxy stands between a
// client and a server, and can act at a chosen moment of a statement; a Pooler is
// PgBouncer; a Disk is a small file system that can be full or fail.
package pgtest
