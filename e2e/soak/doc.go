// Command soak runs byre and a stock kube-apiserver with etcd for a long time under the
// same cluster, one after the other, and compares what they take.
//
// The suite "cluster" has upstream's kube-controller-manager and kube-scheduler, and kwok
// for the kubelets: nodes that renew their Leases every 10 s and report their status every
// 5 minutes, a watch of each node for its Pods, Deployments that are rolled out one after
// the other, and a client that reads, patches and measures how long a watch takes to show
// a write. While that goes on it samples processor time, memory and goroutines of the
// server, and what its database takes. The processes that make the load are not counted.
//
// The suite "k0smotron" has the two loads that k0smotron published to compare stores
// (https://blog.k0sproject.io/posts/k0smotron-big-bang-benchmark/, bench/perf.go in its
// repository): creating and listing ConfigMaps by 50 to 1,000 clients, and 25 watches of
// ConfigMaps that are created, updated twice and deleted. A stock kube-apiserver with kine
// stands beside it.
//
// What is measured and how:
//
//   - requests are those of apiserver_request_total, and p99 is taken from the buckets of
//     apiserver_request_sli_duration_seconds as histogram_quantile does, of both servers;
//   - CPU is the processor time of the server's process and its database's processes;
//   - memory is VmRSS of the server and of etcd, and the sum of Pss of PostgreSQL's
//     processes;
//   - the database is the file of SQLite or etcd, or pg_database_size;
//   - a trend is the slope of the line by least squares through the samples of the second
//     half, times the length of that half. It may be a twentieth of their mean and a
//     little (10 MB, 20 goroutines).
//
// A run writes results.json and tables.md into ../bin/soak and ends with exit status 1 if
// byre fails a judgement. -docs writes the tables into the documentation too. What is
// measured is written after every server.
//
//	make soak                                                 # 30 minutes a server
//	make soak SOAK_DURATION=5m SOAK_NODES=50 SOAK_PODS=1000
//	make soak SOAK='-suites k0smotron'
package main
