// Package bucket reads and writes files where an operator names them: a path, "-" for
// standard input or output, or s3://BUCKET/KEY.
//
// A file appears under its name when it is complete, or not at all. Only to standard output
// does a write that fails leave a part.
//
// Client is the only client of S3 in the program: Location and Directory are over it, and so are the
// copies and the lease of package replication.
//
// The caller closes what Location.Open and Location.Peek, and Get and Seek of a Client, return. The
// package has no goroutines that outlive a call.
package bucket
