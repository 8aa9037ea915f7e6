package server

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The limit of warnings and errors that one place in the source writes: so many at once, and
// then one in each repeatInterval. What fails at every request (a webhook, a client without
// a valid token) then takes a few lines a minute, and does not fill the disk.
const (
	repeatBurst    = 20
	repeatInterval = 10 * time.Second
)

// callSite is a line of the source that logs.
type callSite struct {
	file string
	line int
}

// repeats limits each call site by itself, so that a message that is repeated
// displaces no other one. It has as many entries as the program has call sites.
type repeats struct {
	mu        sync.Mutex
	callSites map[callSite]*repeat
}

type repeat struct {
	limiter *rate.Limiter
	// suppressed counts the lines that were left out since the last one that was written.
	suppressed int
}

func newRepeats() *repeats { return &repeats{callSites: map[callSite]*repeat{}} }

// admit reports whether a call site may write a line now, and then how many were left out since
// its last one.
func (r *repeats) admit(p callSite) (suppressed int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.callSites[p]
	if at == nil {
		at = &repeat{limiter: rate.NewLimiter(rate.Every(repeatInterval), repeatBurst)}
		r.callSites[p] = at
	}
	if !at.limiter.Allow() {
		at.suppressed++
		return 0, false
	}
	suppressed, at.suppressed = at.suppressed, 0
	return suppressed, true
}

// suppressedKey is the key of the number of lines that were left out.
const suppressedKey = "suppressed"

func appendSuppressed(keysAndValues []any, suppressed int) []any {
	if suppressed == 0 {
		return keysAndValues
	}
	// A copy: the array behind may be the caller's.
	return append(keysAndValues[:len(keysAndValues):len(keysAndValues)], suppressedKey, suppressed)
}

func appendSuppressedText(line []byte, suppressed int) []byte {
	if suppressed == 0 {
		return line
	}
	return fmt.Appendf(nil, "%s %s=%d\n", bytes.TrimSuffix(line, []byte("\n")), suppressedKey, suppressed)
}
