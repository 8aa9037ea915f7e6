package crd

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// conversions has what webhooks have made of stored values, for all readers of all
// definitions: each value is converted to a version once, while it stays in memory.
// Results are JSON and bounded by their bytes. It is safe for concurrent use.
type conversions struct {
	maxBytes int
	clock    clock.PassiveClock

	mu     sync.Mutex
	byKey  map[conversionKey]*list.Element // of conversionResult
	recent list.List                       // the last used first
	bytes  int
	// calls are under way. A value is in one at most.
	calls map[conversionKey]*conversionCall
}

// conversionKey is a stored value, and what is to be made of it: a view (see viewsOf).
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
	// maxConversionAge is how long a result is used. It bounds how long clients see
	// what a webhook made of a value before it was upgraded: nothing in the definition
	// need change then. (Upstream asks the webhook for every GET, but answers lists from
	// a watch cache that keeps what was converted until the definition changes.)
	maxConversionAge = time.Minute
	// conversionOverhead is about what a result takes beside its bytes.
	conversionOverhead = 256
)

func newConversions(maxBytes int, clock clock.PassiveClock) *conversions {
	return &conversions{
		maxBytes: maxBytes,
		clock:    clock,
		byKey:    map[conversionKey]*list.Element{},
		calls:    map[conversionKey]*conversionCall{},
	}
}

var errConversionPanicked = errors.New("the conversion did not end")

// convertFunc converts values together, and gives a result for each.
type convertFunc func(values [][]byte) ([][]byte, error)

// one returns what is made of a value.
func (c *conversions) one(view string, value []byte, convert convertFunc) ([]byte, error) {
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
		<-call.done // a webhook's answer has a deadline
		if call.err == nil || call.values == 1 {
			return call.results[key], call.err
		}
		// Another value of the call may be what was wrong.
		return c.one(view, value, convert)
	}
	c.run(call, []conversionKey{key}, [][]byte{value}, convert)
	return call.results[key], call.err
}

// ahead converts, together, those values that nobody has converted or is converting,
// and waits for the others. What fails is left to one, which says why.
func (c *conversions) ahead(ctx context.Context, view string, values [][]byte, convert convertFunc) {
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

// begin notes a call. The caller holds mu.
func (c *conversions) begin(keys []conversionKey) *conversionCall {
	call := &conversionCall{values: len(keys), done: make(chan struct{})}
	for _, key := range keys {
		c.calls[key] = call
	}
	return call
}

// run makes a call that was begun, and keeps its results.
func (c *conversions) run(call *conversionCall, keys []conversionKey, values [][]byte, convert convertFunc) {
	call.err = errConversionPanicked
	results := map[conversionKey][]byte{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, key := range keys {
			delete(c.calls, key)
			if data, ok := results[key]; ok {
				c.keep(conversionResult{key, data, c.clock.Now()})
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

// keep keeps a result, and gives up those that were not used for longest. The caller
// holds mu.
func (c *conversions) keep(r conversionResult) {
	c.byKey[r.key] = c.recent.PushFront(r)
	c.bytes += len(r.data) + conversionOverhead
	for c.bytes > c.maxBytes {
		c.remove(c.recent.Back())
	}
}

// remove takes a result out. The caller holds mu.
func (c *conversions) remove(at *list.Element) {
	result := c.recent.Remove(at).(conversionResult)
	delete(c.byKey, result.key)
	c.bytes -= len(result.data) + conversionOverhead
}
