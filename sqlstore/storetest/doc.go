// Package storetest defines by tests what a sqlstore.Driver must do. It has one suite
// that every driver runs, and a Model: a driver in memory that is simple enough to be
// obviously right, and with which the suite compares the others.
//
// The tests of the layers above use the Model too.
package storetest
