// Package health serves the health endpoints /livez, /readyz and /healthz in upstream's
// formats. Each check has the name that it has in kube-apiserver.
//
// Requests run the checks; the package has no goroutine to shut down, except the one that
// upstream's log check starts (see Log), which lives as long as the process.
package health
