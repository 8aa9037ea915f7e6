package replication_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
)

// A copy tells up to where it has all of its files. What is before a hole can be restored, and so can an older copy.
func TestCopies_TellWhatIsMissing(t *testing.T) {
	s3(t)
	dir, path := t.TempDir(), migrated(t)
	var revisions []int64 // of the copies
	for i := range 2 {
		r := replicate(t, forgotten(t, path), nil, "file://"+dir, s3URL)
		for n := range 4 {
			r.commit(t, fmt.Sprintf("process-%d-%d", i, n), 1, 1000)
			r.awaitCopies(t)
		}
		state, err := r.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, state.Revision)
		r.stop()
		if err := r.Driver.Close(); err != nil {
			t.Fatal(err)
		}
	}
	copies := func(url string) []replication.Copy {
		t.Helper()
		all, err := replication.Copies(t.Context(), url, bucket.S3{})
		if err != nil || len(all) != 2 {
			t.Fatalf("%v, %v", all, err)
		}
		return all
	}
	revision := func(url string, c replication.Copy) (revision int64) {
		t.Helper()
		if err := sqlite.ReadSnapshot(t.Context(), restore(t, url, c), func(s sqlstore.Snapshot) error {
			revision = s.Revision
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return revision
	}
	for _, url := range []string{"file://" + dir, s3URL} {
		for i, c := range copies(url) {
			if c.Hole() != "" || c.Last != c.Seen || c.Time.IsZero() || c.SizeBytes == 0 || revision(url, c) != revisions[i] {
				t.Errorf("%s: %+v is at revision %d, want %d", url, c, revision(url, c), revisions[i])
			}
		}
	}

	url, whole := "file://"+dir, copies("file://"+dir)
	lose := func(level, name string) {
		t.Helper()
		if err := os.Remove(filepath.Join(dir, whole[1].Folder, "ltx", level, name)); err != nil {
			t.Fatal(err)
		}
	}
	lose("0", fmt.Sprintf("%016x-%016x.ltx", whole[1].Last-1, whole[1].Last-1))
	hole := copies(url)[1]
	if hole.Last != whole[1].Last-2 || hole.Seen != whole[1].Seen ||
		hole.Hole() != fmt.Sprintf("files are missing after transaction %d, of %d", hole.Last, hole.Seen) {
		t.Errorf("one file is missing: %+v, %q", hole, hole.Hole())
	}
	if is := revision(url, hole); is != revisions[1]-2 {
		t.Errorf("what is before the hole reaches revision %d, want %d", is, revisions[1]-2)
	}
	if is := revision(url, copies(url)[0]); is != revisions[0] {
		t.Errorf("the older copy reaches revision %d, want %d", is, revisions[0])
	}
	snapshots, err := filepath.Glob(filepath.Join(dir, whole[1].Folder, "ltx", "9", "*"))
	if err != nil || len(snapshots) != 1 {
		t.Fatal(snapshots, err)
	}
	lose("9", filepath.Base(snapshots[0]))
	if begin := copies(url)[1]; begin.Last != 0 ||
		!strings.HasPrefix(begin.Hole(), "the copy of the whole database is missing") {
		t.Errorf("the snapshot is missing: %+v, %q", begin, begin.Hole())
	}
}
