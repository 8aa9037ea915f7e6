// Package storetest defines by tests what a sqlstore.Driver must do. It has a suite, which every
// driver runs, and a Model: a driver in memory that is simple enough to be obviously right. The
// suite compares the other drivers with the Model.
//
// Tests of packages that use a store use the Model too.
package storetest
