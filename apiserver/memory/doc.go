// Package memory tells how much memory the process may use, and tunes the Go runtime for
// a server that is busy now and then.
//
// What upstream does: nothing. kube-apiserver leaves GOGC at 100, and returns memory to the
// system by the runtime's scavenger, which takes minutes.
//
// What is done instead, each in one file:
//
//   - release.go gives back what only the start of the process, or a burst of requests,
//     needed;
//   - tuner.go has the garbage collector run by what it scans, half as often while the
//     server is busy, and releases what a burst of requests needed when it is over.
//
// An operator's GOGC and GOMEMLIMIT are left as they are.
package memory
