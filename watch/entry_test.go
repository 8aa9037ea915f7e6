package watch

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"byre/sqlstore"
)

// long is a value that can be compressed.
func long(text string) string { return strings.Repeat(text+" and its text; ", 200) }

// isHeld reports whether readers get what the entry holds, and not a copy.
func isHeld(e *Entry) bool {
	first, second := e.Value(), e.Value()
	return &first[0] == &second[0]
}

// held returns how many bytes each value takes in memory.
func (f *fixture) held() map[string]int {
	held := map[string]int{}
	for e := range f.snapshot().All("", nil) {
		held[e.Name] = len(e.value.Load().held)
	}
	return held
}

// Values are compressed; readers see no difference.
func TestValues_AreCompressed(t *testing.T) {
	t.Parallel()
	f := start(t, Options{CheckInterval: never})
	f.awaitUsage()
	f.snapshot()
	random := make([]byte, 4000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	values := map[string]string{"long": long("u"), "random": string(random),
		"small": strings.Repeat("s", minCompressed-1), "empty": ""}
	for name, value := range values {
		f.write(pod("a", name), value)
	}
	usage, _ := f.Usage(pods)
	_, before := f.size()
	earlier := f.snapshot()
	kept := earlier.Get("a", "long").Value()
	f.compress(t.Context())
	if held := f.held(); held["long"] > 500 || held["random"] != 4000 || held["small"] != minCompressed-1 {
		t.Errorf("they take %v bytes", held)
	}
	if _, now := f.size(); now > before-len(values["long"])+500 {
		t.Errorf("%d of %d bytes are in memory", now, before)
	}
	for _, s := range []Snapshot{earlier, f.snapshot()} {
		for e := range s.All("", nil) {
			if got := e.Value(); string(got) != values[e.Name] || e.Size() != len(got) {
				t.Errorf("%s is %.20q of %d bytes", e.Name, got, e.Size())
			}
		}
	}
	if e := earlier.Get("a", "long"); string(kept) != values["long"] || isHeld(e) {
		t.Error("what a reader has got is not its own")
	}
	if now, _ := f.Usage(pods); now != usage {
		t.Errorf("used are %v, and were %v", now, usage)
	}
	sub := f.subscribe(Interest{}, f.Revision())
	f.remove(pod("a", "long"))
	f.Publish(f.changesAfter(f.Revision()))
	if ev := f.next(sub, 1)[0]; string(ev.Old.Value()) != values["long"] {
		t.Error("the event of a delete has lost the value that was there")
	}
	for name := range values {
		if name != "long" {
			f.remove(pod("a", name))
		}
	}
	f.Publish(f.changesAfter(f.Revision()))
	f.next(sub, len(values)-1)
	if _, n := f.size(); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
}

// changesAfter returns all changes of the store after a revision.
func (f *fixture) changesAfter(revision int64) []sqlstore.Change {
	f.t.Helper()
	changes, err := f.source.Model.Changes(f.t.Context(), sqlstore.ChangesQuery{After: revision, Limit: 1000})
	if err != nil {
		f.t.Fatal(err)
	}
	return changes
}

// Readers, writers and checks go on at once.
func TestValues_AreCompressedBesideReaders(t *testing.T) {
	t.Parallel()
	f := start(t, Options{CheckInterval: never})
	names := strings.Split("abcdefgh", "")
	for _, name := range names {
		f.write(pod("a", name), long(name))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for ctx.Err() == nil {
			f.compress(ctx)
		}
	})
	for range 3 {
		others.Go(func() {
			for ctx.Err() == nil {
				for e := range f.snapshot().All("", nil) {
					if !bytes.Equal(e.Value(), []byte(long(e.Name))) {
						t.Errorf("%s is %.20q", e.Name, e.Value())
					}
				}
			}
		})
	}
	for range 50 {
		for _, name := range names {
			f.write(pod("a", name), long(name))
		}
	}
	cancel()
	others.Wait()
}
