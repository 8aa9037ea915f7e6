// Command bench measures API servers through their public API, side by side in one
// run: byre on SQLite, byre on PostgreSQL, and a stock kube-apiserver with its etcd.
//
// A suite is a list of phases on servers of its own: "standard" has the figures that the
// goals are about; "fresh" has the first minute of servers with empty databases, new ones in
// each round; "aggregation" puts an aggregated API server behind each server; "replicas" has three
// byre processes on one PostgreSQL; "definitions" has CustomResourceDefinitions; "large"
// has 100,000 Pods on 4,000 nodes; "etcd" has a stock kube-apiserver on etcd, on byre etcd and on
// kine; "wear" looks at the disk under clusters that have
// nothing to do, with kine beside them. A phase measures one thing on one server after
// the other. Phases are repeated in rounds, and the order of the servers changes from
// phase to phase, so that a machine that is slow for a minute is slow for all of them.
// Before each server's turn all servers become idle, so that no measurement includes
// another server's work.
//
// A ratio is the median of the rounds' ratios. The client shares the processors with
// the servers. What a measurement means:
//
//   - rates are requests answered with success in a second, over all clients;
//   - CPU is the processor time of the server's process and its store's processes
//     (etcd, all of PostgreSQL) a request, "of the store" that of the latter alone;
//   - a restart is a stop by SIGTERM and a start, a crash is SIGKILL and a start. The time of
//     either is that of the start, from the process to /readyz; etcd is started before;
//   - times of lists are medians, to the last byte of the body. The client asks for
//     gzip, as client-go does, unless the name says otherwise;
//   - a page is one of the 500 objects that a list by continue tokens reads at a time;
//   - the delay of an event is the time from sending a patch to having read the event;
//   - the CPU of a delivery includes that of the patches; without the patches it is less by what
//     as many patches take while nobody watches;
//   - memory is resident memory (VmRSS) of the server's process; of PostgreSQL's
//     processes it is the sum of their proportional shares (Pss);
//   - the ordinary user is in no privileged group: RBAC and priority and fairness
//     apply to it.
//
// Beside the servers stands an empty one: Go's net/http over TLS and HTTP/2, which
// reads a request and answers with 5 kB. What it takes is the limit of the machine. In
// the suite "aggregation" a bare proxy, Go's ReverseProxy in a process of its own,
// takes the same place.
//
// A run writes results.json, tables.md and the plots into ../bin/bench; -docs writes
// the tables and plots into the documentation too, and -report makes them from the
// results of earlier runs.
//
//	make bench BENCH='-short'                       # a first impression in a minute
//	make bench BENCH='-large -docs ../docs'         # everything that docs/performance.md has
//	make bench BENCH='-suites standard -only sqlite,stock -phases "list|set"'
//	make bench BENCH='-only sqlite -rounds 1 -profile -phases "patch|set"'
//
// What is measured is written after every suite: -resume goes on with the suites that are
// not complete. -limit bounds the time of a suite by leaving out repetitions. A server that
// fails is left out of the rest of its suite, and the run ends with its error.
package main
