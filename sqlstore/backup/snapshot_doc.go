// Package snapshot derives snapshots from others and compares them. At returns the store as it
// was at an earlier revision, Restored the store with its revision moved forward, and DigestOf
// a digest of all rows.
//
// All of them stream rows. They need little memory, except for At, which holds the author of
// each object that was written within the history.
package backup
