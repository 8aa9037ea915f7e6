package check

import (
	"fmt"
	"time"

	"byre/e2e/robustness/history"
)

// Violation is a promise that the history breaks.
type Violation struct {
	// Promise is a short name of the promise.
	Promise string
	// Detail says what was seen.
	Detail string
	// At is when it was seen, on the history's clock.
	At time.Duration
}

// String is one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s, after %.3f s: %s", v.Promise, v.At.Seconds(), v.Detail)
}

// The names of the promises.
const (
	OneHistory   = "one change at each revision"
	Dense        = "revisions are dense"
	OnlySent     = "nothing is there that nobody sent"
	Once         = "a write takes effect once"
	Acknowledged = "an acknowledged write is kept"
	RealTime     = "revisions follow real time"
	Latest       = "a latest read shows all that was acknowledged"
	Snapshot     = "a list shows one revision, whole"
	Linearizable = "operations on an object are linearizable"
	WatchOrder   = "events come in order, each once"
	WatchWhole   = "a watch leaves nothing out and shows nothing else"
	Bookmarks    = "a bookmark means that all before it was sent"
	Answers      = "no answer is an internal error"
	Equal        = "replicas, caches and database are equal at the end"
)

// judge collects violations.
type judge struct {
	violations []Violation
	counts     map[string]int
}

// mostOfOne bounds how often one promise is reported: one fault breaks a promise often.
const mostOfOne = 5

func (j *judge) report(at time.Duration, promise, format string, args ...any) {
	if j.counts == nil {
		j.counts = map[string]int{}
	}
	if j.counts[promise]++; j.counts[promise] <= mostOfOne {
		j.violations = append(j.violations, Violation{promise, fmt.Sprintf(format, args...), at})
	}
}

// History judges a history. patience bounds the time that porcupine takes for each object.
func History(h *history.History, patience time.Duration) []Violation {
	j := &judge{}
	j.checkAnswers(h)
	if h.Loss != nil {
		return append(j.violations, checkLoss(h, patience)...)
	}
	j.checkHistory(h, newReference(j, h), patience)
	return j.violations
}

func (j *judge) checkHistory(h *history.History, ref *reference, patience time.Duration) {
	j.checkLog(h)
	j.checkSent(h, ref)
	j.checkRealTime(h)
	j.checkReads(h, ref)
	j.checkWatches(h, ref)
	j.checkLinearizable(h, ref, patience)
}

// checkAnswers reports the answers with status 500. A request that met a fault of the database gets 503, or 504
// where it may have taken effect.
func (j *judge) checkAnswers(h *history.History) {
	for _, o := range h.Operations {
		if o.Error == history.Internal {
			j.report(o.End, Answers, "%s of %q on %s: %s", o.Kind, o.Object.Name, o.Replica, o.Detail)
		}
	}
	for _, w := range h.Watches {
		if w.Error == history.Internal {
			j.report(w.End, Answers, "a watch on %s after %d", w.Replica, w.After)
		}
	}
}
