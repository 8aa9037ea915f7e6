package apiserver

import (
	"math"

	"byre/watch/representation"
)

// stateFraction is the part of the memory limit that the values of resources may
// take that nobody watches (watch.Options.StateBytes). The rest is for what is derived
// from them, for requests, and for garbage that has not been collected yet.
const stateFraction = 4

// stateBytes is that part, in bytes. An int of 32 bits does not hold a quarter of every limit.
func stateBytes(limit int64) int { return int(min(limit/stateFraction, math.MaxInt)) }

// The representations of objects get a part of the memory limit, within bounds.
const (
	representationFraction = 16
	minRepresentationBytes = 32 << 20
	maxRepresentationBytes = 128 << 20
)

// representationBytes is the budget of the cache of representations, in bytes: the value
// of the flag, or a part of the memory limit, which is 0 where there is none.
func representationBytes(flag, limit int64) int64 {
	switch {
	case flag > 0:
		return flag
	case limit == 0:
		return representation.DefaultBytes
	}
	return min(max(limit/representationFraction, minRepresentationBytes), maxRepresentationBytes)
}
