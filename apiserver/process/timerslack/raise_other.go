//go:build !linux

package timerslack

// Raise does nothing: other systems have no timer slack that a program can set.
func Raise() {}
