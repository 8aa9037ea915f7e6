package instances

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// conversions caches the results of conversion webhooks, for the readers of all
// definitions. Results are JSON. maxBytes bounds their size, maxConversionAge their age.
// It is safe for concurrent use.
//
// Invariant: no value is in two calls of a webhook at a time. convertOne and convertAhead
// keep this: they enter a call in calls before they make it, and a reader of a value that
// is being converted waits for that call. Otherwise every reader of a list would have the
// whole list converted.
type conversions struct {
	maxBytes int
	clock    clock.PassiveClock

	mu     sync.Mutex
	byKey  map[conversionKey]*list.Element // of conversionResult
	recent list.List                       // the most recently used first
	bytes  int
	// calls has the call that each value is in.
	calls map[conversionKey]*conversionCall
}

// conversionKey names a stored value and the view (see viewsOf) to make of it.
type conversionKey struct {
	view  string
	value [sha256.Size]byte
}

type conversionResult struct {
	key  conversionKey
	data []byte
	made time.Time
}

// conversionCall is one call of a webhook.
type conversionCall struct {
	values  int
	done    chan struct{}
	results map[conversionKey][]byte // set before done is closed
	err     error                    // the same
}

const (
	// maxConversions is how much memory the results may take, in bytes.
	maxConversions = 32 << 20
	// maxConversionAge is how long a result is used for new reads of a value: a webhook
	// may be upgraded while nothing in the definition changes. The bytes that reads share
	// (package representation) have no such bound. (Upstream asks the webhook for every
	// GET, but answers lists from a watch cache that keeps what was converted until the
	// definition changes.)
	maxConversionAge = time.Minute
	// conversionOverhead is about the memory of a result beside its data, in bytes.
	conversionOverhead = 256
)

func newConversions(maxBytes int, passive clock.PassiveClock) *conversions {
	return &conversions{
		maxBytes: maxBytes,
		clock:    passive,
		byKey:    map[conversionKey]*list.Element{},
		calls:    map[conversionKey]*conversionCall{},
	}
}

var errConversionPanicked = errors.New("the conversion did not end")

// convertFunc converts values in one call. It returns one result for each value.
type convertFunc func(values [][]byte) ([][]byte, error)

// convertOne returns the result for a value.
func (c *conversions) convertOne(view string, value []byte, convert convertFunc) ([]byte, error) {
	key := conversionKey{view, sha256.Sum256(value)}
	c.mu.Lock()
	if data, ok := c.result(key); ok {
		c.mu.Unlock()
		return data, nil
	}
	call, ok := c.calls[key]
	if !ok {
		call = c.begin([]conversionKey{key})
	}
	c.mu.Unlock()
	if ok {
		<-call.done // a call of a webhook has a deadline
		if call.err == nil || call.values == 1 {
			return call.results[key], call.err
		}
		// Another value of the call may have caused the error.
		return c.convertOne(view, value, convert)
	}
	c.run(call, []conversionKey{key}, [][]byte{value}, convert)
	return call.results[key], call.err
}

// convertAhead converts, in one call, the values that are neither converted nor being
// converted, and waits for the calls that others of them are in. It returns no error: a
// value that failed is converted again by convertOne, which returns the error.
func (c *conversions) convertAhead(ctx context.Context, view string, values [][]byte, convert convertFunc) {
	var keys []conversionKey
	var mine [][]byte
	others := map[*conversionCall]bool{}
	c.mu.Lock()
	seen := map[conversionKey]bool{}
	for _, value := range values {
		key := conversionKey{view, sha256.Sum256(value)}
		if _, ok := c.result(key); ok || seen[key] {
			continue
		}
		seen[key] = true
		if call, ok := c.calls[key]; ok {
			others[call] = true
			continue
		}
		keys, mine = append(keys, key), append(mine, value)
	}
	var call *conversionCall
	if len(keys) > 1 {
		call = c.begin(keys)
	}
	c.mu.Unlock()
	if call != nil {
		c.run(call, keys, mine, convert)
	}
	for call := range others {
		select {
		case <-call.done:
		case <-ctx.Done():
			return
		}
	}
}

// begin enters a call. The caller holds mu.
func (c *conversions) begin(keys []conversionKey) *conversionCall {
	call := &conversionCall{values: len(keys), done: make(chan struct{})}
	for _, key := range keys {
		c.calls[key] = call
	}
	return call
}

// run makes a call that was entered, and adds its results.
func (c *conversions) run(call *conversionCall, keys []conversionKey, values [][]byte, convert convertFunc) {
	call.err = errConversionPanicked
	results := map[conversionKey][]byte{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, key := range keys {
			delete(c.calls, key)
			if data, ok := results[key]; ok {
				c.add(conversionResult{key, data, c.clock.Now()})
			}
		}
		call.results = results
		close(call.done)
	}()
	converted, err := convert(values)
	if call.err = err; err != nil {
		return
	}
	for i, key := range keys {
		results[key] = converted[i]
	}
}

// result returns what was made of a value at most maxConversionAge ago. The caller
// holds mu.
func (c *conversions) result(key conversionKey) ([]byte, bool) {
	at, ok := c.byKey[key]
	if !ok {
		return nil, false
	}
	result := at.Value.(conversionResult)
	if c.clock.Since(result.made) > maxConversionAge {
		c.remove(at)
		return nil, false
	}
	c.recent.MoveToFront(at)
	return result.data, true
}

// add adds a result, and evicts the least recently used ones beyond maxBytes. The caller
// holds mu.
func (c *conversions) add(r conversionResult) {
	c.byKey[r.key] = c.recent.PushFront(r)
	c.bytes += len(r.data) + conversionOverhead
	for c.bytes > c.maxBytes {
		c.remove(c.recent.Back())
	}
}

// remove removes a result. The caller holds mu.
func (c *conversions) remove(at *list.Element) {
	result := c.recent.Remove(at).(conversionResult)
	delete(c.byKey, result.key)
	c.bytes -= len(result.data) + conversionOverhead
}
