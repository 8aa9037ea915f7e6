// Package memory finds how much memory the process may use, and tunes the Go runtime for a server with
// bursts of requests: release.go returns what only the start, or a burst, needed, and tuner.go paces the
// garbage collector. An operator's GOGC and GOMEMLIMIT are left as they are.
package process
