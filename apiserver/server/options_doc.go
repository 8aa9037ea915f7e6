// Package options holds the flags of "byre serve".
//
// Options are plain data. Complete validates the flags and derives what follows from them. Nothing
// is opened, made or started before all flags are validated. The error of an invalid flag is one
// line. Flags of one part of the server are declared by that part (auth.Options, filters.Options,
// ...). Flags of kube-apiserver that have no meaning here are refused with a line that says what to
// use instead (refused.go).
package server
