// Package check judges a history by what byre promises. Writes have dense revisions in
// the order of their commits, so that most of a history can be checked against one
// sequence of changes, put together from all that clients and the database showed. Where
// no revision is known (a failed precondition, an outcome that is unknown), porcupine
// looks for an order that explains what the clients saw.
package check
