// Package snapshot makes other snapshots of snapshots of a store, and compares them: the
// store as it was at an earlier revision, the store with its revision moved forward, and
// a digest of all rows.
//
// It streams: memory is bounded but for At, which keeps a few words for each object that
// was written within the history.
package snapshot
