// Package memory finds how much memory the process may use, and tunes the Go runtime for
// a server with bursts of requests.
//
// kube-apiserver leaves GOGC at 100, and returns memory to the system by the runtime's
// scavenger, which takes minutes. This package does two things instead, each in one file:
//
//   - release.go returns the memory that only the start of the process, or a burst of
//     requests, needed;
//   - tuner.go paces the garbage collector by what it scans, halves its frequency while
//     the server is busy, and calls the release after a burst.
//
// An operator's GOGC and GOMEMLIMIT are left as they are.
package memory
