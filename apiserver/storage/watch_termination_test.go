package storage

import (
	"errors"
	"io"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/storage"
)

// A watch that ends after a revision sends every event up to that revision and none after
// it, neither as a change nor among the initial events: later objects belong to the next
// definition.
func TestWatch_EndsAfterARevision(t *testing.T) {
	t.Parallel()
	termination := NewWatchTermination()
	f := newFixture(t, backends()[0], func(c *Config) { c.WatchTermination = termination })
	a := f.create(t, "ns", "a", "")
	start := f.feed.Revision()
	read := func(change ...func(*storage.ListOptions)) string {
		t.Helper()
		w, err := f.WatchEncoded(t.Context(), "/pods/", all(change...), f.Stored())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		var got []string
		for {
			batch, err := w.Next(t.Context())
			for _, ev := range batch {
				got = append(got, string(ev.Type)+" "+podName(ev.Object))
			}
			if errors.Is(err, io.EOF) {
				return strings.Join(got, ", ")
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	f.delete(t, "ns", a.Name)
	last := f.feed.Revision()
	f.create(t, "ns", "next", "")
	termination.After(last)
	for name, test := range map[string]struct {
		change []func(*storage.ListOptions)
		want   string
	}{
		"from before":    {[]func(*storage.ListOptions){from(start)}, "DELETED a"},
		"from the end":   {[]func(*storage.ListOptions){from(last)}, ""},
		"from later":     {[]func(*storage.ListOptions){from(last + 1)}, ""},
		"initial events": {[]func(*storage.ListOptions){withInitialEvents, withBookmarks}, ""},
		"get to recent":  {nil, ""},
	} {
		if got := read(test.change...); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
