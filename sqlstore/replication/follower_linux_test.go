package replication_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/storetest"
)

// follow returns a new follower.
func follow(t *testing.T) *replication.Follower {
	t.Helper()
	f, err := replication.NewFollower(s3URL, bucket.S3{}, filepath.Join(t.TempDir(), "copy.db"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// expectCopy closes a follower and compares its copy with the database at path.
func expectCopy(t *testing.T, f *replication.Follower, path string) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := digest(t, f.Path()), digest(t, path); got != want {
		t.Errorf("the copy has %v, want %v", got, want)
	}
}

// deleteFiles deletes the files of a level of all folders.
func deleteFiles(t *testing.T, level string) {
	t.Helper()
	deleteObjects(t, func(name string) bool { return strings.Contains(name, "/ltx/"+level+"/") })
}

// TestFollower_HasWhatTheFolderHas follows each change, misses files that were merged, and then files that
// are in a snapshot alone.
func TestFollower_HasWhatTheFolderHas(t *testing.T) {
	s3(t)
	began := make(chan string, 2)
	r := replicate(t, migrated(t), func(r *replication.Replicator) {
		r.Began = func(_ context.Context, folder string) error { began <- folder; return nil }
	}, s3URL)
	folder := <-began
	r.commit(t, "first", 20, 100_000)
	r.awaitCopies(t)
	each, merged, late := follow(t), follow(t), follow(t)
	catchUp := func(f *replication.Follower, all bool) {
		t.Helper()
		if err := f.CatchUp(t.Context(), folder, all); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []*replication.Follower{each, merged, late} {
		catchUp(f, false)
	}
	r.commit(t, "second", 20, 50_000)
	r.awaitCopies(t)
	catchUp(each, false)
	r.commit(t, "third", 1, 10)
	r.awaitCopies(t)
	catchUp(each, false)
	r.stop()
	expectCopy(t, each, r.path)
	if err := r.Age(t.Context()); err != nil {
		t.Fatal(err)
	}
	deleteFiles(t, "0")
	catchUp(merged, true)
	expectCopy(t, merged, r.path)
	for _, level := range []string{"1", "2", "3"} {
		deleteFiles(t, level)
	}
	catchUp(late, true)
	expectCopy(t, late, r.path)
	deleteFiles(t, "9")
	if err := follow(t).CatchUp(t.Context(), folder, true); !errors.Is(err, replication.ErrEmpty) {
		t.Errorf("a folder without a snapshot: %v", err)
	}
	if err := r.Driver.Close(); err != nil && !r.IsComplete() {
		t.Log(err) // its folder is gone
	}
}

// TestFollower_CatchesUpBesideCommits commits before each listing, as on a bucket that takes longer to
// list than a commit takes.
func TestFollower_CatchesUpBesideCommits(t *testing.T) {
	var r *replicated
	var isFollowing atomic.Bool
	listings := 0
	s3Behind(t, func(_ http.ResponseWriter, q *http.Request) bool {
		if isFollowing.Load() && strings.HasSuffix(q.URL.Query().Get("prefix"), "/ltx/0/") {
			listings++
			r.commit(t, fmt.Sprintf("beside-%d-", listings), 1, 10)
			r.awaitCopies(t)
		}
		return true
	})
	began := make(chan string, 2)
	r = replicate(t, migrated(t), func(r *replication.Replicator) {
		r.Began = func(_ context.Context, folder string) error { began <- folder; return nil }
	}, s3URL)
	folder := <-began
	r.commit(t, "first", 20, 1000)
	r.awaitCopies(t)
	f := follow(t)
	isFollowing.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	defer cancel()
	if err := f.CatchUp(ctx, folder, false); err != nil {
		t.Errorf("after %d listings: %v", listings, err)
	}
	isFollowing.Store(false)
	r.stop()
	if err := f.CatchUp(t.Context(), folder, true); err != nil {
		t.Fatal(err)
	}
	expectCopy(t, f, r.path)
}

// TestFollower_GoesOnInTheNextFolder follows a process, and the next one, which began when the clock was set
// back.
func TestFollower_GoesOnInTheNextFolder(t *testing.T) {
	s3(t)
	path, f := migrated(t), follow(t)
	var last string
	for i := range 2 {
		began := make(chan string, 2)
		r := replicate(t, path, func(r *replication.Replicator) {
			r.Began = func(_ context.Context, folder string) error { began <- folder; return nil }
		}, s3URL)
		r.commit(t, string(rune('a'+i)), 10, 1000)
		folder := <-began
		if folder <= last {
			t.Errorf("folder %s after %s", folder, last)
		}
		last = folder
		r.stop()
		if err := r.Driver.Close(); err != nil || !r.IsComplete() {
			t.Fatalf("complete %v, %v", r.IsComplete(), err)
		}
		if err := f.CatchUp(t.Context(), folder, true); err != nil {
			t.Fatal(err)
		}
		if all, err := f.Folders(t.Context()); err != nil || all[len(all)-1] != folder {
			t.Errorf("the folders are %s, %v; want %s last", all, err, folder)
		}
		if i == 0 {
			aheadFolder(t, folder)
			last = "20990101T000000.000000Z"
		}
	}
	expectCopy(t, f, path)
}

// aheadFolder copies a folder to one of the year 2099.
func aheadFolder(t *testing.T, folder string) {
	t.Helper()
	for _, name := range objects(t, "") {
		body, _, err := copies(t).Get(t.Context(), name, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = copies(t).Put(t.Context(), strings.Replace(name, folder, "20990101T000000.000000Z", 1), body)
		if err := errors.Join(err, body.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
