// Package dbserver says how this program connects to a PostgreSQL server: with
// which defaults, and how a connection that fails is explained to the operator.
// Migrations and the store's driver connect alike.
//
// Every session is read-write: of several hosts the primary is used, and a
// standby is never taken for it. A server that is silent is noticed by the
// kernel: keepalives while a connection is idle, TCP_USER_TIMEOUT (Linux) while
// data waits to be acknowledged.
package dbserver
