// Package robustness runs byre under traffic like that of a Kubernetes cluster, injects
// faults, and checks what the clients saw against what byre promises.
//
// An Env is byre on one database: its processes, the database, and whatever a fault
// needs around them. The faults run one after another, each in an episode of its own:
// traffic begins, the fault is injected, the clients go on until every replica answers
// again, traffic ends, and the whole history is judged. What a fault did to the clients
// becomes a row of tables.md, and counts for the row of its group in docs/reliability.md.
//
// The method is that of etcd's tests/robustness; the watches and lists are Kubernetes'.
package robustness
