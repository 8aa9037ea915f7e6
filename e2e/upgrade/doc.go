// Package upgrade has this byre serve the database of an older one, with objects of every kind, and
// the older one again after it.
package upgrade
