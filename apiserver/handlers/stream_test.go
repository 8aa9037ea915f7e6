package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"byre/apiserver/apitest"
	"byre/sqlstore"
)

// discard is a client that reads everything and stores nothing.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(p []byte) (int, error) {
	d.bytes += len(p)
	return len(p), nil
}

// TestList_Streams: a list of any length allocates only a small part of what it sends.
func TestList_Streams(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 20 MB")
	}
	s := newServer(t, nil)
	const count, size = 400, 50_000
	body := strings.Repeat("x", size)
	for i := range count {
		s.create(t, configMaps, fmt.Sprintf(`{"metadata":{"name":"m%03d"},"data":{"k":%q}}`, i, body))
	}
	list := func() (sent int, allocated uint64) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, configMaps, nil)
		if err != nil {
			t.Fatal(err)
		}
		to := &discard{header: http.Header{}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		apitest.WithContext(s.api, someone).ServeHTTP(to, req)
		runtime.ReadMemStats(&after)
		return to.bytes, after.TotalAlloc - before.TotalAlloc
	}
	list() // fills the caches
	sent, allocated := list()
	for range 4 { // other goroutines of the process allocate too, now and then
		_, again := list()
		allocated = min(allocated, again)
	}
	t.Logf("sent %d kB, allocated %d kB", sent/1000, allocated/1000)
	if sent < count*size {
		t.Fatalf("only %d bytes were sent", sent)
	}
	if limit := uint64(sent / 20); allocated > limit {
		t.Errorf("allocated %d bytes, more than %d", allocated, limit)
	}
}

var errBroken = errors.New("the disk is gone")

// breaking is a driver whose lists fail after some records once they are told to.
type breaking struct {
	sqlstore.Driver
	after int // the number of records that a list still returns; negative for all
}

func (b *breaking) List(ctx context.Context, q sqlstore.Query, each func(sqlstore.Record) error) (sqlstore.ListResult, error) {
	given := 0
	return b.Driver.List(ctx, q, func(r sqlstore.Record) error {
		if b.after >= 0 && given >= b.after {
			return errBroken
		}
		given++
		return each(r)
	})
}

// TestList_BrokenListIsAnError: a list that cannot be read to its end is never answered as
// a shorter list. Before the first byte was sent the answer is an error status; after it
// the connection breaks.
func TestList_BrokenListIsAnError(t *testing.T) {
	t.Parallel()
	driver := &breaking{after: -1}
	s := newServer(t, func(d sqlstore.Driver) sqlstore.Driver {
		driver.Driver = d
		return driver
	})
	const count = 1200 // more than one read returns
	body := strings.Repeat("x", 1000)
	for i := range count {
		s.create(t, configMaps, fmt.Sprintf(`{"metadata":{"name":"m%04d"},"data":{"k":%q}}`, i, body))
	}
	// A list of an older state is read from the database.
	old := call{method: http.MethodGet, path: fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", configMaps, count-1)}
	if resp, text := old.answer(t, s.bytes); resp.StatusCode != http.StatusOK || strings.Count(text, `"uid"`) != count-1 {
		t.Fatalf("whole: %d, %d bytes", resp.StatusCode, len(text))
	}

	driver.after = 0
	if resp, text := old.answer(t, s.bytes); resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("broken before the first: %d %s", resp.StatusCode, text)
	}
	driver.after = 250
	resp := old.do(t, s.bytes)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusOK && err == nil {
		t.Errorf("broken in the middle: a list of %d bytes without an error", len(text))
	}
}
