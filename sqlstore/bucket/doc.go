// Package bucket reads and writes files where an operator names them: a path, "-" for
// standard input or output, or s3://BUCKET/KEY.
//
// A file appears under its name when it is complete, or not at all. Only to standard output
// does a write that fails leave a part.
//
// The caller closes what Location.Open and Location.Peek return. The package has no goroutines
// that outlive a call.
package bucket
