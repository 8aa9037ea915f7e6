// Package storetest defines by its own tests what a sqlstore.Driver must do: a suite that runs on every driver and on a
// Model, a driver in memory that is simple enough to be obviously right. The suite compares the other drivers with the
// Model. Tests of packages that use a store use the Model too, and what else is exported here.
//
// # Waiting
//
// Eventually, EventuallyDone and EventuallySucceeds poll for a condition that another goroutine,
// process or server brings about without telling. Where there is a channel, a watch or the exit of
// a process to wait for, a test waits for that instead.
//
// # S3
//
// NewS3, ServeS3 and ServeS3Here serve S3 to tests, in their process.
package storetest
