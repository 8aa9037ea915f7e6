package instances

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestConversions_AreBounded(t *testing.T) {
	t.Parallel()
	const size = 1000
	c := newConversions(10 * (size + conversionOverhead))
	calls := 0
	convert := func(values [][]byte) ([][]byte, error) {
		calls++
		results := make([][]byte, len(values))
		for i, value := range values {
			results[i] = append(bytes.Repeat([]byte("x"), size-len(value)), value...)
		}
		return results, nil
	}
	var values [][]byte
	for i := range 25 {
		values = append(values, fmt.Appendf(nil, "%d", i))
	}
	c.convertAhead(t.Context(), "v", values, convert)
	if calls != 1 || len(c.byKey) != 10 || c.recent.Len() != 10 || c.bytes != c.maxBytes || len(c.calls) != 0 {
		t.Errorf("%d calls, %d results of %d bytes, %d under way", calls, len(c.byKey), c.bytes, len(c.calls))
	}
	for i, wantCalls := range map[int]int{24: 0, 3: 1} {
		calls = 0
		got, err := c.convertOne("v", values[i], convert)
		if err != nil || !bytes.HasSuffix(got, values[i]) || calls != wantCalls {
			t.Errorf("value %d: %.5s…, %v, %d calls", i, got, err, calls)
		}
	}
	calls = 0
	if _, err := c.convertOne("w", values[24], convert); err != nil || calls != 1 {
		t.Errorf("in another view: %v, %d calls", err, calls)
	}
}

// TestConversions_AreShared: a request for a value that is being converted waits for that
// conversion. If the conversion fails in a batch, the value is converted alone.
func TestConversions_AreShared(t *testing.T) {
	t.Parallel()
	c := newConversions(1 << 20)
	begun, finish := make(chan struct{}), make(chan error)
	var mu sync.Mutex
	calls := 0
	convert := func(values [][]byte) ([][]byte, error) {
		mu.Lock()
		calls++
		mu.Unlock()
		if len(values) == 1 {
			return values, nil
		}
		close(begun)
		return values, <-finish
	}
	var readers sync.WaitGroup
	readers.Go(func() { c.convertAhead(t.Context(), "v", [][]byte{[]byte("a"), []byte("b"), []byte("a")}, convert) })
	<-begun
	for range 3 {
		readers.Go(func() {
			if got, err := c.convertOne("v", []byte("a"), convert); err != nil || string(got) != "a" {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
	finish <- errors.New("not together")
	readers.Wait()
	if calls != 2 {
		t.Errorf("%d calls, want one for both and one for the first", calls)
	}
}

// TestConversions_Expire: a webhook may be upgraded without a change of the definition.
// What the earlier webhook converted is therefore used for a bounded time only.
func TestConversions_Expire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newConversions(1 << 20)
		w := &upgradedWebhook{answer: "old"}
		values := [][]byte{[]byte("a"), []byte("b")}
		c.convertAhead(t.Context(), "v", values, w.convert)
		w.answer = "new"
		time.Sleep(maxConversionAge + 1)
		for _, value := range values {
			if got, err := c.convertOne("v", value, w.convert); err != nil || string(got) != "new" {
				t.Errorf("%s: %s, %v", value, got, err)
			}
		}
		if len(c.byKey) != len(values) || c.recent.Len() != len(values) {
			t.Errorf("%d results, %d in the list, of %d values", len(c.byKey), c.recent.Len(), len(values))
		}
	})
}

// upgradedWebhook is a webhook whose answers change.
type upgradedWebhook struct{ answer string }

func (w *upgradedWebhook) convert(values [][]byte) ([][]byte, error) {
	results := make([][]byte, len(values))
	for i := range values {
		results[i] = []byte(w.answer)
	}
	return results, nil
}
