package sqlstore

import "math/rand/v2"

// NextEpoch returns the revision at which a new epoch begins, after a loss of commits whose extent
// is not known. revision is the last one that is known to have been given.
//
// Commits that were lost may have been shown under later revisions, which must not be given again.
// So the gap is longer than what a failover or a copy of a database can lose. It has no fixed
// length, because the database may lose the beginning of an epoch too, and then begins another one
// at the same revision.
func NextEpoch(revision int64) int64 {
	const shortest, longest = 1_000_000, 1_000_000_000
	return revision + shortest + rand.Int64N(longest-shortest) //nolint:gosec // no secret
}
