// Command bench drives API servers through their public API and prints what it
// measured as a table: byre on SQLite, byre on PostgreSQL, and a stock
// kube-apiserver with its etcd, side by side in one run.
//
// All servers are up at the same time and each phase is run on one after the
// other, so that a machine that is slow for a minute is slow for all of them.
// Before each turn all servers come to rest: none pays for what another left undone.
// The client shares the processors with the server. What a figure means:
//
//   - rates are requests answered with success in a second, over all clients;
//   - CPU is the user and system time of the server's processes (with etcd, or
//     without PostgreSQL's backends) a request;
//   - times of lists are medians, to the last byte of the body;
//   - memory is resident memory (VmRSS) of the server's own process, with etcd's
//     beside it where there is one.
//
// -aggregated measures something else: what it takes to reach an API server (the
// sample one of Kubernetes) behind each server rather than directly. Requests that
// go either way are sent in turn by one client, and "added" is the difference of
// the medians. A bare proxy, which only passes requests on by Go's ReverseProxy over
// TLS and HTTP/2, is asked in the same rounds: what it adds is what the machine takes
// for one more process on the way. Events are those that 100 watchers got together, a second.
//
// -short gives a first impression in about a minute.
package main
