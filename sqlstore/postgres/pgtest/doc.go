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
// Besides there is what tests of faults need: a Site is a server, perhaps with a standby
// and a disk of its own, that something bad can be done to; a Proxy stands between a
// client and a server, and can do something at a moment of a statement; a Pooler is
// PgBouncer; a Disk is a small file system, which can be full or fail.
package pgtest
