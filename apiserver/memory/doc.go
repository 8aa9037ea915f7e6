// Package memory tells how much memory the process may use, and tunes the Go runtime for
// a server that is busy now and then.
//
// What upstream does: nothing. kube-apiserver leaves GOGC at 100, and returns memory to the
// system by the runtime's scavenger, which takes minutes.
//
// What is done instead, each in one file:
//
//   - startup.go gives back what only the start of the process needed;
//   - tuner.go has the garbage collector run half as often while the server is busy, and
//     returns the heap of a burst of requests when the burst is over.
//
// An operator's GOGC and GOMEMLIMIT are left as they are.
package memory
