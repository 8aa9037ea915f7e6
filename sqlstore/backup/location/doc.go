// Package location reads and writes files where an operator names them: a path, "-" for
// standard input or output, or s3://BUCKET/KEY.
//
// What is written appears under its name when it is complete, or not at all; only standard
// output has what was written before a failure.
package location
