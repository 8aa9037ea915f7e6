package replication_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/bucket"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/replication"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// replicated is a database that is replicated.
type replicated struct {
	*sqlite.Driver
	*replication.Replicator
	path string
	// stop ends Maintain.
	stop func()
}

// migrated makes an empty database.
func migrated(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	return path
}

// forgotten makes the next process begin a folder.
func forgotten(t *testing.T, path string) string {
	t.Helper()
	if err := replication.Forget(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// replicate opens the database at path. prepare may be nil.
func replicate(t *testing.T, path string, prepare func(*replication.Replicator), urls ...string) *replicated {
	t.Helper()
	r, err := replication.New(urls, bucket.S3{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(r)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{Replication: r})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var maintaining sync.WaitGroup
	maintaining.Go(func() {
		if err := driver.Maintain(ctx); err != nil {
			t.Error(err)
		}
	})
	stop := sync.OnceFunc(func() { cancel(); maintaining.Wait() })
	t.Cleanup(stop)
	return &replicated{Driver: driver, Replicator: r, path: path, stop: stop}
}

// commit creates n objects of size bytes.
func (r *replicated) commit(t *testing.T, prefix string, n, size int) {
	t.Helper()
	for i := range n {
		r.commitValue(t, fmt.Sprintf("%s-%d", prefix, i), `"`+strings.Repeat("x", size)+`"`)
	}
}

func (r *replicated) commitValue(t *testing.T, name, value string) {
	t.Helper()
	outcomes, err := r.Commit(t.Context(), []sqlstore.Write{{
		Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: name}, Value: []byte(value), Grows: true,
	}})
	if err != nil || outcomes[0].Err != nil {
		t.Fatal(err, outcomes)
	}
}

// awaitCopies waits until all destinations have everything.
func (r *replicated) awaitCopies(t *testing.T) {
	t.Helper()
	for i := range r.Status() {
		r.awaitCopy(t, i)
	}
}

func (r *replicated) awaitCopy(t *testing.T, destination int) {
	t.Helper()
	storetest.Eventually(t, "the destination has everything", func() bool {
		s := r.Status()[destination]
		return s.Lag == 0 && s.Err == nil && !s.LastSuccess.IsZero()
	})
}

func digest(t *testing.T, path string) (d backup.Digest) {
	t.Helper()
	if err := sqlite.ReadSnapshot(t.Context(), path, func(s sqlstore.Snapshot) (err error) {
		d, err = backup.DigestOf(s)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return d
}

// latest returns the latest copy in the destination of a URL.
func latest(t *testing.T, url string) replication.Copy {
	t.Helper()
	copies, err := replication.Copies(t.Context(), url, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := replication.Latest(copies)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// restore restores a copy to a new file.
func restore(t *testing.T, url string, c replication.Copy) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "restored.db")
	if err := replication.Restore(t.Context(), url, bucket.S3{}, c, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// expectRestored restores from a URL and compares with the database at path.
func expectRestored(t *testing.T, url, path string) {
	t.Helper()
	if got, want := digest(t, restore(t, url, latest(t, url))), digest(t, path); got != want {
		t.Errorf("%s has %v, want %v", url, got, want)
	}
}

// s3 serves an S3 with a bucket "copies". While away is true it answers 503.
func s3(t *testing.T) (away *atomic.Bool) {
	t.Helper()
	away = &atomic.Bool{}
	s3Behind(t, func(w http.ResponseWriter, _ *http.Request) bool {
		if away.Load() {
			w.WriteHeader(http.StatusForbidden) // minio-go does not repeat it
		}
		return !away.Load()
	})
	return away
}

// s3Behind serves an S3 with a bucket "copies". It answers the requests that pass returns true for.
func s3Behind(t *testing.T, pass func(http.ResponseWriter, *http.Request) bool) {
	t.Helper()
	service := storetest.NewS3(t, "copies")
	storetest.ServeS3Here(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pass(w, r) {
			service.ServeHTTP(w, r)
		}
	}))
}

const s3URL = "s3://copies/clusters/one"

// TestReplicator_CopiesEveryCommit writes more than the log holds between two checkpoints, to a
// directory and to S3.
func TestReplicator_CopiesEveryCommit(t *testing.T) {
	s3(t)
	dir := "file://" + t.TempDir()
	r := replicate(t, migrated(t), nil, dir, s3URL)
	size := 500_000
	if testing.Short() { // the race detector makes SQLite twenty times slower
		size = 100_000
	}
	for i := range 4 {
		r.commit(t, fmt.Sprint("large-", i), 20, size)
		r.awaitCopies(t)
	}
	for _, url := range []string{dir, s3URL} {
		expectRestored(t, url, r.path)
	}
	// A stop loses nothing, whatever was not copied yet.
	r.commit(t, "last", 10, 100)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{dir, s3URL} {
		expectRestored(t, url, r.path)
	}
}

func TestReplicator_GoesOnAfterItsDestinationWasAway(t *testing.T) {
	away := s3(t)
	dir := t.TempDir()
	away.Store(true) // at the start too
	r := replicate(t, migrated(t), nil, s3URL, "file://"+dir)
	r.commit(t, "first", 10, 1000)
	storetest.Eventually(t, "S3 fails", func() bool { return r.Status()[0].Failures > 0 && r.Status()[0].Lag > 0 })
	r.awaitCopy(t, 1) // the other one does not wait
	away.Store(false)
	r.awaitCopies(t)

	away.Store(true)
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	r.commit(t, "second", 10, 1000)
	storetest.Eventually(t, "both fail", func() bool { return r.Status()[0].Err != nil && r.Status()[1].Err != nil })
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a medium that is not mounted was made: %v", err)
	}
	away.Store(false)
	if err := os.Rename(moved, dir); err != nil {
		t.Fatal(err)
	}
	r.awaitCopies(t)
	for _, url := range []string{s3URL, "file://" + dir} {
		expectRestored(t, url, r.path)
	}
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// localBytes returns the size of what replication keeps beside the database.
func localBytes(t *testing.T, path string) (size int64) {
	t.Helper()
	_ = filepath.WalkDir(path+".replication", func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // a file may go meanwhile
		}
		if info, err := entry.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})
	return size
}

// TestReplicator_BoundsItsBacklog has a destination that is away while more is written than the
// backlog may have. It gets a new folder afterwards.
func TestReplicator_BoundsItsBacklog(t *testing.T) {
	away := s3(t)
	r := replicate(t, migrated(t), func(r *replication.Replicator) { r.SetBacklog(1 << 20) }, s3URL)
	r.commit(t, "first", 1, 1000)
	r.awaitCopies(t)
	away.Store(true)
	var seed [32]byte
	content := rand.NewChaCha8(seed)
	for i := range 5 {
		// What LZ4 can't compress.
		value := make([]byte, 300_000)
		_, _ = content.Read(value)
		captured := r.Captured()
		r.commitValue(t, fmt.Sprint("away-", i), fmt.Sprintf(`"%x"`, value))
		storetest.Eventually(t, "it is captured", func() bool { return r.Captured() > captured })
		if size := localBytes(t, r.path); size > 2<<20 {
			t.Errorf("the backlog has %d bytes, want 1 MiB and one file", size)
		}
	}
	away.Store(false)
	r.awaitCopies(t)
	expectRestored(t, s3URL, r.path)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReplicator_BeginsAnewWhenItsFilesAreLost deletes what Litestream goes on from. The database
// is attached again, and keeps its lock.
func TestReplicator_BeginsAnewWhenItsFilesAreLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := replicate(t, migrated(t), nil, "file://"+dir)
	r.commit(t, "first", 10, 1000)
	r.awaitCopies(t)
	if err := replication.Forget(r.path); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "a new folder is begun", func() bool {
		r.Committed(1) // as for a write
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 2
	})
	r.commit(t, "second", 10, 1000)
	r.awaitCopies(t)
	expectRestored(t, "file://"+dir, r.path)
	expectSharedLock(t, r.path)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReplicator_KeepsSnapshotsForADay ages a folder: a new snapshot replaces all before it.
func TestReplicator_KeepsSnapshotsForADay(t *testing.T) {
	s3(t)
	dir := t.TempDir()
	r := replicate(t, migrated(t), nil, "file://"+dir, s3URL)
	for i := range 3 {
		r.commit(t, fmt.Sprint(i), 10, 1000)
		r.awaitCopies(t)
	}
	r.stop()
	if err := r.Age(t.Context()); err != nil {
		t.Fatal(err)
	}
	snapshots, err := filepath.Glob(filepath.Join(dir, "*", "ltx", "9", "*.ltx"))
	if err != nil || len(snapshots) != 2 {
		t.Errorf("%q, %v: want two snapshots, the first of which is not a day old", snapshots, err)
	}
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"file://" + dir, s3URL} {
		expectRestored(t, url, r.path)
	}
}

// TestReplicator_BeginsAFolderEachTime starts processes one after another, one of them without
// replication in between.
func TestReplicator_BeginsAFolderEachTime(t *testing.T) {
	t.Parallel()
	dir, path := t.TempDir(), migrated(t)
	for i := range 8 {
		r := replicate(t, path, nil, "file://"+dir)
		r.commit(t, fmt.Sprint("process-", i), 1, 1000)
		if i == 7 {
			storetest.EventuallyDone(t, "there are the last folder and four before it", func(context.Context) (bool, error) {
				entries, err := os.ReadDir(dir)
				return len(entries) == 5, err
			})
		}
		r.stop()
		if err := r.Driver.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the log stays after a stop: the next start takes it for a crash: %v", err)
		}
		expectRestored(t, "file://"+dir, path)
		driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if localBytes(t, path) > 0 {
			t.Error("a process that does not replicate goes on beside the files of the last one")
		}
		if err := driver.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReplicator_SyncAcknowledgesWhatIsCopied restores after each commit, as if the machine were lost then.
func TestReplicator_SyncAcknowledgesWhatIsCopied(t *testing.T) {
	away := s3(t)
	r := replicate(t, migrated(t), func(r *replication.Replicator) { r.Sync = true }, s3URL)
	began := time.Now()
	r.commit(t, "first", 20, 1000)
	t.Logf("a commit takes %v", time.Since(began)/20)
	for i := range 5 {
		r.commit(t, fmt.Sprint("next-", i), 1, 1000)
		expectRestored(t, s3URL, r.path)
	}
	away.Store(true)
	done := make(chan error, 1)
	write := func(name string) {
		_, err := r.Commit(t.Context(),
			[]sqlstore.Write{{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: name}, Value: []byte(`{}`)}})
		done <- err
	}
	go write("late")
	failures := r.Status()[0].Failures
	storetest.Eventually(t, "the copy fails again and again", func() bool { return r.Status()[0].Failures > failures+1 })
	select {
	case err := <-done:
		t.Fatalf("a commit that is not copied returned: %v", err)
	default:
	}
	away.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expectRestored(t, s3URL, r.path)

	away.Store(true)
	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	late := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "with-a-deadline"},
		Value: []byte(`{}`)}
	if _, err := r.Commit(limited, []sqlstore.Write{late}); !errors.Is(err, sqlstore.ErrUnknown) {
		t.Errorf("a commit with a deadline: %v", err)
	}
	go write("last")
	storetest.Eventually(t, "it waits", func() bool { return r.Status()[0].Err != nil })
	r.stop()
	if err := <-done; !errors.Is(err, sqlstore.ErrUnknown) {
		t.Errorf("a commit during a stop: %v", err)
	}
	away.Store(false)
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
	expectRestored(t, s3URL, r.path)
}

// TestReplicator_DeletesOldFoldersBesideCommits has the bucket not answer what deletes: folders of a day have
// thousands of files. A commit is copied and acknowledged meanwhile.
func TestReplicator_DeletesOldFoldersBesideCommits(t *testing.T) {
	var isBlocking atomic.Bool
	answer, deleting := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s3Behind(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete || !isBlocking.Load() {
			return true
		}
		once.Do(func() { close(deleting) })
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		return r.Context().Err() == nil
	})
	path := migrated(t)
	waits := func(r *replication.Replicator) { r.Sync = true }
	for i := range 5 {
		r := replicate(t, forgotten(t, path), waits, s3URL)
		r.commit(t, fmt.Sprint("process-", i), 1, 1000)
		r.stop()
		if err := r.Driver.Close(); err != nil {
			t.Fatal(err)
		}
	}
	isBlocking.Store(true)
	r := replicate(t, forgotten(t, path), waits, s3URL)
	committed := make(chan struct{})
	go func() {
		defer close(committed)
		r.commit(t, "beside", 1, 1000)
	}()
	<-deleting
	select {
	case <-committed:
	case <-time.After(time.Minute):
		t.Error("a commit waits for the deletion of old folders")
	}
	close(answer)
	<-committed
	storetest.Eventually(t, "the oldest folder is deleted", func() bool { return len(folders(t)) == 5 })
	expectRestored(t, s3URL, r.path)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// folders returns the folders in S3.
func folders(t *testing.T) (names []string) {
	t.Helper()
	all, err := copies(t).List(t.Context(), "clusters/one/", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range all {
		names = append(names, folder.Name)
	}
	return names
}

// TestReplicator_MergesBesideCommits has the bucket not answer what merges files: a commit is copied and
// acknowledged meanwhile. Then the files are merged, without reading them from the bucket.
func TestReplicator_MergesBesideCommits(t *testing.T) {
	answer, merging, read := make(chan struct{}), make(chan struct{}), &atomic.Int64{}
	var once sync.Once
	s3Behind(t, func(_ http.ResponseWriter, r *http.Request) bool {
		prefix := r.URL.Query().Get("prefix")
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/ltx/0/") {
			read.Add(1)
		}
		if !strings.Contains(prefix, "/ltx/") {
			return true
		}
		once.Do(func() { close(merging) })
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		return r.Context().Err() == nil
	})
	r := replicate(t, migrated(t), func(r *replication.Replicator) {
		r.Sync = true
		r.SetMergePause(10 * time.Millisecond)
	}, s3URL)
	r.commit(t, "first", 5, 1000)
	<-merging
	r.commit(t, "beside", 5, 1000)
	before := localFiles(t, r.path)
	read.Store(0)
	close(answer)
	n := 0
	storetest.Eventually(t, "merging lets go of the files", func() bool {
		n++
		r.commit(t, fmt.Sprint("more-", n), 1, 1000)
		return localFiles(t, r.path) < before
	})
	if n := read.Load(); n > 0 {
		t.Errorf("%d files were read from the bucket", n)
	}
	expectRestored(t, s3URL, r.path)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// localFiles returns how many files the backlog has.
func localFiles(t *testing.T, path string) int {
	t.Helper()
	files, err := filepath.Glob(path + ".replication/ltx/0/*.ltx")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestRestore_NamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	copies, err := replication.Copies(t.Context(), "file://"+t.TempDir(), bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replication.Latest(copies); !errors.Is(err, replication.ErrEmpty) {
		t.Errorf("an empty directory: %v", err)
	}
	for _, url := range []string{
		"file://host/path", "file:relative", "file:///", "s3://bucket", "s3:///path", "http://example.com/path",
		"s3://key:secret@bucket/path", "s3://bucket/path?a=b", "s3://bucket//",
	} {
		if err := replication.Check(url, bucket.S3{}); err == nil ||
			!strings.Contains(err.Error(), "want file:///PATH or s3://BUCKET/PATH") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestReplicator_BeginsAnewWhenItsCopyIsDeleted deletes all that was copied, the snapshot, and all but that. No commit
// is needed to notice it.
func TestReplicator_BeginsAnewWhenItsCopyIsDeleted(t *testing.T) {
	s3(t)
	r := replicate(t, migrated(t), func(r *replication.Replicator) { r.SetMergePause(10 * time.Millisecond) }, s3URL)
	for i, parts := range [][]string{{""}, {"ltx/9/"}, {"ltx/0/", "ltx/1/"}} {
		r.commit(t, fmt.Sprint("a-", i), 3, 1000)
		r.awaitCopies(t)
		r.commit(t, fmt.Sprint("b-", i), 3, 1000)
		r.awaitCopies(t)
		all := folders(t)
		current := all[len(all)-1]
		failures := r.Status()[0].Failures
		for _, part := range parts {
			if err := copies(t).Delete(t.Context(), objects(t, current+part)...); err != nil {
				t.Fatal(err)
			}
		}
		storetest.Eventually(t, "another folder is begun", func() bool {
			all, status := folders(t), r.Status()[0]
			return len(all) > 0 && all[len(all)-1] != current && status.Lag == 0 && status.Err == nil
		})
		if n := r.Status()[0].Failures - failures; n != 1 {
			t.Errorf("%q is deleted: %d failures are counted, want 1", parts, n)
		}
		expectRestored(t, s3URL, r.path)
	}
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// objects returns the keys in S3 with a prefix.
func objects(t *testing.T, prefix string) (keys []string) {
	t.Helper()
	all, err := copies(t).List(t.Context(), prefix, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range all {
		keys = append(keys, object.Name)
	}
	return keys
}

// copies returns a client of the bucket.
func copies(t *testing.T) *bucket.Client {
	t.Helper()
	client, err := bucket.S3{}.Open("s3://copies")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// commitLarge creates n objects of 1.4 MB, which LZ4 can't compress, in one transaction. It returns the bytes of
// the values.
func (r *replicated) commitLarge(t *testing.T, prefix string, n int) (bytes int64) {
	t.Helper()
	content := rand.NewChaCha8([32]byte{})
	batch := make([]sqlstore.Write, n)
	for i := range batch {
		value := make([]byte, 1<<20)
		_, _ = content.Read(value)
		text := `"` + base64.StdEncoding.EncodeToString(value) + `"`
		batch[i] = sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(prefix, i)},
			Value: []byte(text), Grows: true}
		bytes += int64(len(text))
	}
	if outcomes, err := r.Commit(t.Context(), batch); err != nil || outcomes[0].Err != nil {
		t.Fatal(err, outcomes)
	}
	return bytes
}

// TestReplicator_PutsNewValuesTwice measures what new values put into a place before anything of it is deleted:
// files of the captures, and what they are merged into.
func TestReplicator_PutsNewValuesTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := replicate(t, migrated(t), nil, "file://"+dir)
	values := r.commitLarge(t, "large-", 20)
	r.awaitCopies(t)
	r.commit(t, "small", 3, 1000)
	r.awaitCopies(t)
	r.stop()
	if err := r.Merge(t.Context()); err != nil {
		t.Fatal(err)
	}
	var put int64
	if err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		put += info.Size()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	merged, err := filepath.Glob(filepath.Join(dir, "*", "ltx", "1", "*.ltx"))
	share := float64(put) / float64(values)
	t.Logf("values of %d bytes put %.2f times as much", values, share)
	if err != nil || share > 2.2 || len(merged) == 0 {
		t.Errorf("that is more than 2.2 times, or nothing is merged: %q, %v", merged, err)
	}
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
	expectRestored(t, "file://"+dir, r.path)
}

// onSmallDisk makes a database of 28 MB on a disk of a given size.
func onSmallDisk(t *testing.T, megabytes int64) (disk *pgtest.Disk, path string) {
	t.Helper()
	disk = pgtest.NewDisk(t, megabytes)
	path = filepath.Join(disk.Dir, "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	(&replicated{Driver: driver}).commitLarge(t, "large-", 20)
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	return disk, path
}

// TestReplicator_BeginsOnASmallDisk has a disk with space for one copy of the database. An attempt without it
// counts as a failure of the destination.
func TestReplicator_BeginsOnASmallDisk(t *testing.T) {
	disk, path := onSmallDisk(t, 112)
	ballast := filepath.Join(disk.Dir, "other")
	if err := os.WriteFile(ballast, make([]byte, 68<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := replicate(t, path, nil, "file://"+dir)
	storetest.Eventually(t, "the attempts count", func() bool { return r.Status()[0].Failures > 1 })
	if s := r.Status()[0]; s.Err == nil || !strings.Contains(s.Err.Error(), "needs ") || !s.LastSuccess.IsZero() {
		t.Errorf("%+v", s)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.awaitCopies(t)
	r.commit(t, "small", 3, 1000)
	r.awaitCopies(t)
	expectRestored(t, "file://"+dir, path)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReplicator_SaysThatThereIsNoSpaceForAnotherCopy has a disk with space for commits, and none for the copy with
// which another folder begins after the first one was lost: who waits for a copy is told so.
func TestReplicator_SaysThatThereIsNoSpaceForAnotherCopy(t *testing.T) {
	disk, path := onSmallDisk(t, 224)
	s3(t)
	spare := filepath.Join(disk.Dir, "spare") // what commits and their captures have
	if err := os.WriteFile(spare, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r := replicate(t, path, func(r *replication.Replicator) {
		r.Sync = true
		r.SetMergePause(10 * time.Millisecond)
	}, s3URL)
	r.awaitCopies(t)
	for n := 0; localBytes(t, path) > 1<<20; n++ { // the first file of the backlog goes with the next captures
		r.commit(t, fmt.Sprint("first-", n), 1, 1000)
	}
	dir, err := os.Open(disk.Dir)
	if err != nil {
		t.Fatal(err)
	}
	// Before Syncfs, ext4 has not freed the blocks of files that were removed.
	if err := errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close(), disk.Fill(), os.Remove(spare)); err != nil {
		t.Fatal(err)
	}
	if err := copies(t).Delete(t.Context(), objects(t, "clusters/one/")...); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the copy fails for lack of space", func() bool {
		err := r.Status()[0].Err
		return err != nil && strings.Contains(err.Error(), "the disk is full")
	})
	done := make(chan error, 1)
	go func() {
		_, err := r.Commit(t.Context(),
			[]sqlstore.Write{{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: "small"}, Value: []byte(`{}`)}})
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, sqlstore.ErrUnknown) || !strings.Contains(err.Error(), "the disk is full") {
			t.Errorf("the commit: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a commit waits for a copy that nobody can make")
	}
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	r.awaitCopies(t)
	expectRestored(t, s3URL, path)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}
