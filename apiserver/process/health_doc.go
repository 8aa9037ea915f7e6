// Package health serves the health endpoints /livez, /readyz and /healthz in upstream's
// formats. Each check has the name that it has in kube-apiserver.
//
// Requests run the checks; the package has no goroutine to shut down. The first request of
// upstream's log check starts one that flushes the log every minute until the process ends.
package process
