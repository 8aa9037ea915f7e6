// Package tables reads byre's tables by SQL, without byre, so that a test knows what the
// database holds.
package tables
