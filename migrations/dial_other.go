//go:build !linux

package migrations

import "syscall"

// setUserTimeout does nothing, because only Linux has the option TCP_USER_TIMEOUT. The driver's own
// deadlines bound the waits.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
