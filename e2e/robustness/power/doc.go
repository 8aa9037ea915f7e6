// Package power tests that a database in SQLite survives power failures: thousands of them,
// each at one change of a file, with part of what was not synced lost. It runs in one
// process and by one seed; robustness does the same to whole processes under traffic. It also tests that
// a copy of the database has every acknowledged commit after one whose sync failed.
package power
