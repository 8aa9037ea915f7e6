// Package options holds the flags of "byre serve".
//
// Options are plain data: New gives the defaults, Flags declares the flags in the sections
// of kube-apiserver's --help, Apply sets what upstream keeps process-wide, and Complete
// validates the flags and derives what follows from them. Nothing is opened, made or
// started before all flags were found right; a wrong flag is one line.
//
// Flags of one part of the server are declared by that part (auth.Options,
// filters.Options, ...). Those of kube-apiserver that mean nothing here are refused with
// what to use instead (refused.go).
package options
