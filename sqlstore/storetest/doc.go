// Package storetest says in tests what a sqlstore.Driver has to do: one suite
// that every driver runs, and a Model, which is a driver in memory, simple
// enough to be believed and the measure of the others.
//
// The Model is also of use to the tests of the layers above.
package storetest
