package watch

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"byre/sqlstore"
)

// long is a value that can be compressed.
func long(text string) string { return strings.Repeat(text+" and its text; ", 200) }

// held returns how many bytes each value takes in memory.
func (f *fixture) held() map[string]int {
	held := map[string]int{}
	for e := range f.snapshot().All("", nil) {
		held[e.Name] = len(e.value.Load().held)
	}
	return held
}

// Values that nobody reads are compressed; readers see no difference.
func TestValues_ThatNobodyReadsAreCompressed(t *testing.T) {
	t.Parallel()
	f := start(t, Options{CheckInterval: never})
	f.awaitUsage()
	f.snapshot()
	random := make([]byte, 4000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	values := map[string]string{"unread": long("u"), "read": long("r"), "random": string(random),
		"small": strings.Repeat("s", minCompressed-1), "empty": ""}
	for name, value := range values {
		f.write(pod("a", name), value)
	}
	usage, _ := f.Usage(pods)
	_, before := f.size()
	earlier := f.snapshot()
	kept := earlier.Get("a", "unread").Value()
	for range unreadChecks {
		f.compressUnread(t.Context())
		f.snapshot().Get("a", "read").Value()
	}
	if held := f.held(); held["unread"] > 500 || held["read"] != len(values["read"]) || held["random"] != 4000 ||
		held["small"] != minCompressed-1 {
		t.Errorf("they take %v bytes", held)
	}
	if _, now := f.size(); now > before-len(values["unread"])+500 {
		t.Errorf("%d of %d bytes are in memory", now, before)
	}
	for _, s := range []Snapshot{earlier, f.snapshot()} {
		for e := range s.All("", nil) {
			if got := e.Value(); string(got) != values[e.Name] || e.Size() != len(got) {
				t.Errorf("%s is %.20q of %d bytes", e.Name, got, e.Size())
			}
		}
	}
	if e := earlier.Get("a", "unread"); string(kept) != values["unread"] || e.Holds(e.Value()) || e.Holds(kept) {
		t.Error("what a reader has got is not its own")
	}
	if now, _ := f.Usage(pods); now != usage {
		t.Errorf("used are %v, and were %v", now, usage)
	}
	sub := f.subscribe(Interest{}, f.Revision())
	f.remove(pod("a", "unread"))
	f.Publish(f.changesAfter(f.Revision()))
	if ev := f.next(sub, 1)[0]; string(ev.Old.Value()) != values["unread"] {
		t.Error("the event of a delete has lost the value that was there")
	}
	for name := range values {
		if name != "unread" {
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
			f.compressUnread(ctx)
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

// BenchmarkValue compares reads of a value that is held as it is, and of one that is held compressed, and tells how
// many bytes of 100 are held.
func BenchmarkValue(b *testing.B) {
	var text strings.Builder
	for i := range 70 { // the size of a Pod
		fmt.Fprintf(&text, `{"name":"VARIABLE_%d","value":"%x"},"f:field-%d":{".":{},"f:name":{},"f:value":{}},`, i,
			rand.Uint64(), i)
	}
	for name, checks := range map[string]int{"held": 0, "compressed": unreadChecks} {
		b.Run(name, func(b *testing.B) {
			e := NewEntry(sqlstore.Record{Value: []byte(text.String())})
			var buffer []byte
			for range checks {
				e.check(&buffer)
			}
			b.SetBytes(int64(e.Size()))
			b.ReportAllocs()
			for b.Loop() {
				e.Value()
			}
			b.ReportMetric(100*float64(len(e.value.Load().held))/float64(e.Size()), "%")
		})
	}
}
