// Package failover runs byre on PostgreSQL that fails over by real managers, with what users put
// before it, and judges by the checks of e2e/robustness what clients saw. The programs are
// Debian's; .ci/unpack fetches them. Their settings are those of docs/operations/failover.md: the
// tests read them there, and replace names of hosts and folders.
//
// Everything of one test runs on one host, as an unprivileged user, below one folder. A node is
// a server of PostgreSQL with its manager. The other nodes reach it through a proxy, which can swallow
// what passes.
//
// The tests take minutes: "make failover" runs them.
package failover
