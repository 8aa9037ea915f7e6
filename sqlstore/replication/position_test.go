package replication_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/storetest"
)

func newHost(t *testing.T) *host {
	t.Helper()
	return &host{path: filepath.Join(t.TempDir(), "byre.db")}
}

// readLease returns the lease.
func readLease(t *testing.T) replication.LeaseState {
	t.Helper()
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	s, exists, err := object.Read(t.Context())
	if err != nil || !exists {
		t.Fatal(exists, err)
	}
	return s
}

// awaitPosition waits until the lease requires a copy with a revision.
func (h *host) awaitPosition(t *testing.T) {
	t.Helper()
	d := <-h.serving
	state, err := d.State(t.Context())
	h.serving <- d
	if err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the lease has the position of the last commit, and its copy", func() bool {
		s := readLease(t)
		return s.Position.Revision == state.Revision && s.Position.TXID > 0
	})
}

// crash ends a host that serves, whose lease no process renews or releases. The other one, which would wait for that
// long, finds that the lease was short.
func (h *host) crash(t *testing.T) {
	t.Helper()
	h.crashed.Store(true)
	h.stop()
	if err := <-h.ended; err == nil {
		t.Fatal("it has not crashed")
	}
	editLease(t, func(s *replication.LeaseState) { s.Milliseconds = 1 })
}

// deleteObjects deletes the objects of the bucket that match.
func deleteObjects(t *testing.T, match func(key string) bool) (deleted int) {
	t.Helper()
	var names []string
	for _, name := range objects(t, "") {
		if match(name) {
			names = append(names, name)
		}
	}
	if err := copies(t).Delete(t.Context(), names...); err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// level0 returns the names of the files of the lowest level in the folder that the lease names.
func level0(t *testing.T) (names []string) {
	t.Helper()
	for _, name := range objects(t, "one/"+readLease(t).Folder+"/ltx/0/") {
		names = append(names, path.Base(name))
	}
	return names
}

// TestRun_TakesOverWithEverythingOrNotAtAll: the bucket loses what it has confirmed, and the holder's machine is lost.
// A host that has not got everything does not take over by itself, and says so; an operator may have it.
func TestRun_TakesOverWithEverythingOrNotAtAll(t *testing.T) {
	for name, loses := range map[string]func(names []string, name string) bool{
		"nothing":   func([]string, string) bool { return false },
		"a hole":    func(names []string, name string) bool { return name == names[len(names)/2] },
		"the tail":  func(names []string, name string) bool { return name == names[len(names)-1] },
		"its start": func([]string, string) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			storetest.ServeS3Here(t, storetest.NewS3(t, "copies"))
			a, b := newHost(t), newHost(t)
			a.waits = true
			a.start(t)
			for i := range 12 {
				a.commit(t, fmt.Sprint("acknowledged-", i))
			}
			a.awaitPosition(t)
			a.crash(t)
			names, s := level0(t), readLease(t)
			if len(names) < 6 {
				t.Fatalf("%d files: the test shows nothing", len(names))
			}
			lost := deleteObjects(t, func(key string) bool {
				isSnapshot := name == "its start" && strings.HasPrefix(key, "one/"+s.Folder+"/ltx/9/")
				return isSnapshot || strings.HasPrefix(key, "one/"+s.Folder+"/ltx/0/") && loses(names, path.Base(key))
			})
			if (lost == 1) != (name != "nothing") {
				t.Fatalf("%d objects are lost", lost)
			}
			b.start(t)
			if name != "nothing" {
				storetest.Eventually(t, "b refuses", func() bool {
					if len(b.serving) > 0 {
						t.Fatal("b serves without what was acknowledged")
					}
					return b.logs("does not serve, and has commits that this server does not have")
				})
				// The machine comes back with everything. Nothing was lost.
				a.crashed.Store(false)
				a.start(t)
				a.commit(t, "after")
				if !a.has(t, "acknowledged-11") {
					t.Error("a has lost its commits")
				}
				return
			}
			b.commit(t, "after")
			for i := range 12 {
				if !b.has(t, fmt.Sprint("acknowledged-", i)) {
					t.Errorf("acknowledged-%d is lost", i)
				}
			}
		})
	}
}

// TestRun_GoesOnWithAHoleIfTold: who deletes the lease has the server go on with what there is.
func TestRun_GoesOnWithAHoleIfTold(t *testing.T) {
	standbyS3(t)
	a, b := newHost(t), newHost(t)
	a.waits = true
	a.start(t)
	for i := range 12 {
		a.commit(t, fmt.Sprint("acknowledged-", i))
	}
	a.awaitPosition(t)
	a.crash(t)
	names := level0(t)
	deleteObjects(t, func(key string) bool { return path.Base(key) == names[len(names)/2] })
	b.start(t)
	storetest.Eventually(t, "b refuses", func() bool { return b.logs("has commits that this server does not have") })
	removeLease(t)
	b.commit(t, "after")
	if !b.has(t, "acknowledged-0") || b.has(t, "acknowledged-11") || !b.logs("goes on with what its copy has") {
		t.Error("b does not go on from what is before the hole")
	}
}

// copyDir copies a directory with its files as they are.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(to, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// TestRun_DoesNotServeADirectoryThatWasRolledBack: the directory is an earlier snapshot of itself. The host goes on
// from the bucket, with everything, and gives no revision twice.
func TestRun_DoesNotServeADirectoryThatWasRolledBack(t *testing.T) {
	standbyS3(t)
	h := newHost(t)
	dir, snapshot := filepath.Dir(h.path), t.TempDir()
	h.start(t)
	h.commit(t, "before")
	h.end(t)
	copyDir(t, dir, snapshot)
	h.start(t)
	h.commit(t, "after-1")
	h.commit(t, "after-2")
	last := h.revision(t)
	h.end(t)
	// The snapshot is put back in place, so that the file is the same one.
	for _, name := range []string{"byre.db", "byre.db.lineage"} {
		text, err := os.ReadFile(filepath.Join(snapshot, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.start(t)
	h.commit(t, "again")
	if !h.has(t, "after-2") || h.revision(t) <= last {
		t.Errorf("after-2 is there: %v; revision %d after %d", h.has(t, "after-2"), h.revision(t), last)
	}
	if !h.logs(fmt.Sprintf("database=%d acknowledged=%d", last-2, last)) {
		t.Errorf("it does not say both revisions: %s", h.logged.text.String())
	}
}

// rollBack puts the files of a directory back in place, so that each is the same one.
func rollBack(t *testing.T, path, older string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(path+".replication"), os.Truncate(path, 0)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path + "-wal", path + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(older)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		to := filepath.Join(filepath.Dir(path), entry.Name())
		if entry.IsDir() {
			if err := os.CopyFS(to, os.DirFS(filepath.Join(older, entry.Name()))); err != nil {
				t.Fatal(err)
			}
			continue
		}
		copyFile(t, filepath.Join(older, entry.Name()), to)
	}
}

// TestRun_LosesNothingToTwoAdversaries: the holder crashes, its directory is kept or put back to an earlier moment, and
// the bucket lies. When the holder is started again, it serves everything that was acknowledged, or refuses because
// neither the directory nor the bucket has it; then the other host takes over with everything.
func TestRun_LosesNothingToTwoAdversaries(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	for _, isRolledBack := range []bool{false, true} {
		for _, bucketFault := range []string{"nothing", "a hole", "the tail", "stale lists", "refused writes"} {
			t.Run(fmt.Sprintf("rolled back %v, %s", isRolledBack, bucketFault), func(t *testing.T) {
				l := &liar{
					service: storetest.NewS3(t, "copies"), lists: map[string]*httptest.ResponseRecorder{},
					staleLists: bucketFault == "stale lists", refuses: bucketFault == "refused writes",
				}
				storetest.ServeS3Here(t, l)
				a, b, earlier := newHost(t), newHost(t), t.TempDir()
				a.waits, b.waits = true, true
				a.start(t)
				a.commit(t, "before")
				a.awaitPosition(t)
				copyDir(t, filepath.Dir(a.path), earlier)
				for i := range 8 {
					a.commit(t, fmt.Sprint("acknowledged-", i))
				}
				a.awaitPosition(t)
				a.crash(t)
				names, s := level0(t), readLease(t)
				lost := map[string]string{"a hole": names[len(names)/2], "the tail": names[len(names)-1]}[bucketFault]
				deleteObjects(t, func(key string) bool { return lost != "" && key == "one/"+s.Folder+"/ltx/0/"+lost })
				if isRolledBack {
					rollBack(t, a.path, earlier)
				}
				a.crashed.Store(false)
				a.start(t)
				if isRolledBack && lost != "" {
					storetest.Eventually(t, "it refuses", func() bool {
						if len(a.serving) > 0 {
							t.Fatal("it serves without what was acknowledged")
						}
						return a.logs("does not serve, and has commits that this server does not have")
					})
					return
				}
				a.commit(t, "again")
				b.start(t)
				storetest.Eventually(t, "b has a copy", func() bool { return b.logs("has a copy") })
				a.commit(t, "last")
				a.awaitPosition(t)
				a.crash(t)
				b.commit(t, "by-b")
				for _, name := range []string{"before", "acknowledged-0", "acknowledged-7", "again", "last"} {
					if !b.has(t, name) {
						t.Errorf("%s is lost", name)
					}
				}
			})
		}
	}
}

// TestRun_FollowsWithACloneOfALivingHolder: the directory of the host that serves was copied to the other one, as the
// disk of a virtual machine is cloned. The clone has everything that the lease requires, and lacks what comes after.
func TestRun_FollowsWithACloneOfALivingHolder(t *testing.T) {
	standbyS3(t)
	a, clone := newHost(t), newHost(t)
	a.waits = true
	a.start(t)
	a.commit(t, "before")
	a.awaitPosition(t)
	copyDir(t, filepath.Dir(a.path), filepath.Dir(clone.path))
	clone.start(t)
	storetest.Eventually(t, "the clone follows", func() bool { return clone.logs("and this server has a copy") })
	a.commit(t, "after")
	a.crash(t)
	clone.commit(t, "by-the-clone")
	if !clone.has(t, "after") || !clone.logs("a snapshot or a clone of it") {
		t.Error("the clone serves its own database")
	}
	clone.end(t)
	a.crashed.Store(false)
	a.start(t)
	a.commit(t, "again")
	if !a.has(t, "by-the-clone") {
		t.Error("a does not go on from what the other one has served")
	}
}

// TestRun_ACloneOfADeadHolderBeginsAnEpoch: what the holder has acknowledged after the clone was made, and before it
// has crashed, can't be known.
func TestRun_ACloneOfADeadHolderBeginsAnEpoch(t *testing.T) {
	standbyS3(t)
	a := newHost(t)
	a.start(t)
	a.commit(t, "before")
	last := a.revision(t)
	a.crash(t)
	editLease(t, func(s *replication.LeaseState) { s.Lock = "another" }) // the file is the same one, as on a cloned disk
	a.crashed.Store(false)
	a.start(t)
	a.commit(t, "after")
	if !a.has(t, "before") || a.revision(t) < last+1000 {
		t.Errorf("revision %d after %d, without a new epoch", a.revision(t), last)
	}
}

// TestRun_TwoSwappedDirectoriesServeWhatWasServedLast: each machine starts on the directory of the other one.
func TestRun_TwoSwappedDirectoriesServeWhatWasServedLast(t *testing.T) {
	standbyS3(t)
	a, b := newHost(t), newHost(t)
	a.start(t)
	a.commit(t, "by-a")
	b.start(t)
	storetest.Eventually(t, "b has a copy", func() bool { return b.logs("has a copy") })
	a.end(t)
	b.commit(t, "by-b")
	b.end(t)
	a.path, b.path = b.path, a.path
	a.start(t)
	b.start(t)
	serving := a
	storetest.Eventually(t, "one serves", func() bool {
		if len(b.serving) > 0 {
			serving = b
		}
		return len(serving.serving) > 0
	})
	serving.commit(t, "after")
	if !serving.has(t, "by-a") || !serving.has(t, "by-b") {
		t.Error("it serves an older database")
	}
}

// TestRun_TellsOfItsCopy: the object standby.json.
func TestRun_TellsOfItsCopy(t *testing.T) {
	standbyS3(t)
	a, b := newHost(t), newHost(t)
	object, err := replication.LeaseOf(place, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	a.start(t)
	a.commit(t, "first")
	a.awaitPosition(t)
	b.start(t)
	storetest.EventuallyDone(t, "b tells of its copy", func(ctx context.Context) (bool, error) {
		s, err := object.ReadStandby(ctx)
		required := readLease(t)
		return s.Name != "" && s.Folder == required.Folder && s.Position.Revision == a.revision(t) &&
			required.IsReachedBy(s.Position), err
	})
}

func (h *host) revision(t *testing.T) int64 {
	t.Helper()
	d := <-h.serving
	defer func() { h.serving <- d }()
	state, err := d.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state.Revision
}

// A directory that was rolled back has the lineage of what was acknowledged, and less of it.
func TestLeaseState_IsReachedByWhatHasEverything(t *testing.T) {
	t.Parallel()
	served := replication.LeaseState{Holder: "b", Position: replication.Position{Lineage: "a", Revision: 7, TXID: 3}}
	for p, want := range map[replication.Position]bool{
		{Lineage: "a", Revision: 7}: true, {Lineage: "a", Revision: 8, TXID: 3}: true, {Lineage: "b", Revision: 7}: true,
		{Lineage: "a", Revision: 6}: false, {Lineage: "a", Revision: 6, TXID: 3}: false,
		{Lineage: "a", Revision: 7, TXID: 2}: false, {Lineage: "c", Revision: 9}: false, {}: false,
	} {
		if got := served.IsReachedBy(p); got != want {
			t.Errorf("%+v: %v", p, got)
		}
	}
	if first := (&replication.LeaseState{Holder: "a"}); !first.IsReachedBy(replication.Position{}) {
		t.Error("nobody has served, and something is required")
	}
}
