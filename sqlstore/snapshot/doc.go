// Package snapshot derives snapshots of a store from others, and compares them. It makes
// the store as it was at an earlier revision, the store with its revision moved forward,
// and a digest of all rows.
//
// It streams: memory is bounded but for At, which keeps a few words for each object that
// was written within the history.
package snapshot
