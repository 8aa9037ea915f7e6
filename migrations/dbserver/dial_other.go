//go:build !linux

package dbserver

import "syscall"

// setUserTimeout: there is no such option; the driver's own deadlines remain.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
