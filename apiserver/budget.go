package apiserver

import (
	"math"

	"byre/watch/representation"
)

// stateFraction is the divisor of the memory limit: the values of resources that nobody
// watches may take a quarter of it (watch.Options.StateBytes). The rest is for what is
// derived from the values, for requests, and for garbage that has not been collected
// yet.
const stateFraction = 4

// stateBytes is this quarter of limit, in bytes. Where an int has 32 bits, it is at
// most the largest int.
func stateBytes(limit int64) int { return int(min(limit/stateFraction, math.MaxInt)) }

// The cache of representations gets a sixteenth of the memory limit, within bounds in
// bytes.
const (
	representationFraction = 16
	minRepresentationBytes = 32 << 20
	maxRepresentationBytes = 128 << 20
)

// representationBytes is the budget of the cache of representations, in bytes: flag
// where it is set, and otherwise a part of limit, the memory limit. A limit of 0 means
// that there is none.
func representationBytes(flag, limit int64) int64 {
	switch {
	case flag > 0:
		return flag
	case limit == 0:
		return representation.DefaultBytes
	}
	return min(max(limit/representationFraction, minRepresentationBytes), maxRepresentationBytes)
}
