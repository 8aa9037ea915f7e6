// Command model computes what clusters of 1,000 to 130,000 nodes ask of byre on one PostgreSQL:
// requests and writes, processors of the servers and of the database, the share of the writers'
// lock, and the growth of the log. `make model` runs it.
//
// Its inputs are measured: the processor time of a request and the database's part of it, from the
// tables that `make bench` has written into docs/performance.md; the writes a second that one
// writers' lock carries, from the table of `make shards` on the same page; and what a cluster asks
// for, from the intervals of a kubelet and from what `make soak` counted of a Pod that a rollout
// replaces (bin/soak/tables.md).
//
// It assumes that costs are linear in the number of requests. `make soak NODES=5000` tries that.
package main
