package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A kept snapshot is found by its revision, and by each revision at which its resource was the
// same, until its lifetime is over or the records leave memory.
func TestKeep_FindsTheSnapshotOfARevision(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	other := pod("a", "x")
	other.Resource = "others"
	at := func(revision int64) string {
		s, ok := f.SnapshotAt(pods, revision)
		if !ok {
			return "none"
		}
		if s.Revision() != revision {
			t.Errorf("the snapshot at %d says %d", revision, s.Revision())
		}
		return f.keys(s, "", nil)
	}
	first := f.write(pod("a", "x"), "1").Revision
	f.Keep(f.snapshot(), time.Hour)
	same := f.write(other, "1").Revision
	again := f.snapshot()
	f.write(other, "2")
	f.write(pod("a", "x"), "2")
	f.Keep(again, time.Hour)
	third := f.write(pod("a", "y"), "3").Revision
	unkept := f.snapshot()
	f.write(pod("a", "y"), "4")
	for revision, want := range map[int64]string{
		first - 1: "none", first: "[a/x=1]", same: "[a/x=1]", same + 1: "none",
		third: "none", third + 1: "[a/x=2 a/y=4]",
	} {
		if got := at(revision); got != want {
			t.Errorf("at %d: %s, want %s", revision, got, want)
		}
	}
	f.Keep(unkept, -time.Second) // a lifetime that is over
	if got := at(third); got != "[a/x=2 a/y=3]" {
		t.Errorf("before a check: %s", got)
	}
	f.Keep(unkept, -time.Second)
	f.snapshot()
	f.unload()
	if got := at(first); got != "[a/x=1]" {
		t.Errorf("after a check: %s", got)
	}
	if got := at(third); got != "none" {
		t.Errorf("after its lifetime: %s", got)
	}
	f.Forget(pods)
	f.Keep(unkept, time.Hour) // its records have left memory
	f.snapshot()
	if got := at(first); got != "none" || f.kept.bytes != 0 {
		t.Errorf("after the records have left memory: %s, %d bytes", got, f.kept.bytes)
	}
}

// Kept snapshots are bounded by number and by the memory that only they hold. The oldest go
// first.
func TestKeep_IsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ snapshots, size int }{
		"number": {2 * maxKept, 10}, "bytes": {64, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, Options{})
			f.write(pod("a", "x"), "1")
			var revisions []int64
			for i := range test.snapshots {
				s := f.snapshot()
				f.Keep(s, time.Hour)
				revisions = append(revisions, s.Revision())
				f.write(pod("a", "x"), fmt.Sprint(i, strings.Repeat("x", test.size)))
			}
			found, total := 0, 0
			for i, revision := range revisions {
				_, ok := f.SnapshotAt(pods, revision)
				if ok {
					found++
				} else if found > 0 {
					t.Errorf("snapshot %d is dropped, and an earlier one is kept", i)
				}
			}
			for _, k := range f.kept.byCache[f.caches[pods]] {
				total += k.bytes
			}
			if total != f.kept.bytes || total > maxKeptBytes {
				t.Errorf("%d bytes are kept, counted %d", total, f.kept.bytes)
			}
			if found < 16 || found > min(maxKept, test.snapshots-1) {
				t.Errorf("%d of %d snapshots are kept", found, test.snapshots)
			}
		})
	}
}
