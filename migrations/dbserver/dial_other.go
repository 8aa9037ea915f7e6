//go:build !linux

package dbserver

import "syscall"

// setUserTimeout does nothing, because only Linux has the option TCP_USER_TIMEOUT. The driver's own
// deadlines bound the waits.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
