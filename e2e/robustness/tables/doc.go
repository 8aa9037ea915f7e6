// Package tables reads byre's tables past byre, so that a test knows what the database
// has, whatever byre says.
package tables
