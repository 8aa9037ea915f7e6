// Package early raises the timer slack of a server when a tenth of the program's packages is
// initialized: it executes itself again after some milliseconds, instead of after the 35 to 55 that
// all packages take.
//
// Of the packages whose imports are initialized, the one with the first path comes next (Go's
// specification, "Program initialization"). This package imports only the standard library and
// golang.org/x, and its path sorts before those of other modules.
// TestServe_InitializesItsPackagesOnce fails where that is not enough.
package early

import (
	"os"

	"byre/apiserver/process/timerslack"
)

func init() { //nolint:gochecknoinits // nothing else runs before other packages are initialized
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		timerslack.Raise()
	}
}
