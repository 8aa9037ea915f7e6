package replication_test

import (
	"bufio"
	"bytes"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"byre/migrations"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/storetest"
)

// s3Faults is an S3 with a bucket "copies".
type s3Faults struct {
	service http.Handler
	// uploaded counts the bytes that it receives.
	uploaded atomic.Int64
	// While away is true it answers nothing.
	away atomic.Bool
	// While interrupts is true, it does not answer an upload, and sends to interrupted. It stores the file if stores is
	// true.
	interrupts, stores atomic.Bool
	interrupted        chan struct{}
	// dropsClaim has it not answer the next claim, which it stores.
	dropsClaim atomic.Bool
	// ignoresConditions and refusesConditions are those of writes.
	ignoresConditions, refusesConditions atomic.Bool
}

func faultyS3(t *testing.T) *s3Faults {
	t.Helper()
	s := &s3Faults{service: storetest.NewS3(t, "copies"), interrupted: make(chan struct{}, 100)}
	storetest.ServeS3Here(t, s)
	return s
}

// ServeHTTP implements http.Handler.
func (s *s3Faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.away.Load():
		w.WriteHeader(http.StatusForbidden) // minio-go does not repeat it
		return
	case s.interrupts.Load() && r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/ltx/"):
		if s.stores.Load() {
			s.service.ServeHTTP(httptest.NewRecorder(), r)
		}
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is noticed
		s.interrupted <- struct{}{}
		<-r.Context().Done()
		return
	}
	switch {
	case s.ignoresConditions.Load():
		r.Header.Del("If-None-Match")
		r.Header.Del("If-Match")
	case s.refusesConditions.Load() && r.Header.Get("If-None-Match") != "":
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	if strings.Contains(r.URL.Path, "/continued-") && s.dropsClaim.Swap(false) {
		s.service.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	s.uploaded.Add(max(0, r.ContentLength))
	s.service.ServeHTTP(w, r)
}

// killInUpload kills a process in the middle of an upload.
func (s *s3Faults) killInUpload(t *testing.T, path string) {
	t.Helper()
	s.interrupts.Store(true)
	kill, _, _ := startReplicating(t, path, "copied")
	<-s.interrupted
	kill()
	s.interrupts.Store(false)
}

// fill commits n objects of 300 kB that can't be compressed.
func (r *replicated) fill(t *testing.T, prefix string, n int) {
	t.Helper()
	content := rand.NewChaCha8([32]byte{})
	for i := range n {
		value := make([]byte, 150_000)
		_, _ = content.Read(value)
		r.commitValue(t, fmt.Sprint(prefix, "-", i), fmt.Sprintf(`"%x"`, value))
	}
}

// run replicates the database at path while a function runs, and stops cleanly.
func run(t *testing.T, path string, use func(*replicated)) {
	t.Helper()
	r := replicate(t, path, func(r *replication.Replicator) { r.Sync = true }, s3URL) // without pauses
	use(r)
	r.awaitCopies(t)
	r.stop()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
}

func copiesThere(t *testing.T) []replication.Copy {
	t.Helper()
	copies, err := replication.Copies(t.Context(), s3URL, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	return copies
}

// crash replicates the database in a process that is killed when everything is copied.
func crash(t *testing.T, path string) { crashWhen(t, path, "copied") }

// crashWhen replicates the database in a process that is killed when its last commit is "committed", "captured" in a
// file beside the database, or "copied" to the bucket.
func crashWhen(t *testing.T, path, moment string) {
	t.Helper()
	kill, _, out := startReplicating(t, path, moment)
	var word string
	if _, err := fmt.Fscanln(out, &word); err != nil || word != moment {
		t.Errorf("the process says %q, %v", word, err)
	}
	kill()
}

// skipUnderRace skips what takes a minute in the short run under the race detector, which has the kills.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long")
	}
}

// startReplicating runs replicateUntilKilled in a process. pause calls a function while the process stands still.
func startReplicating(t *testing.T, path, moment string) (kill func(), pause func(func()), out io.Reader) {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestResume_ContinuesTheFolder$")
	process.Env = append(os.Environ(), "BYRE_TEST_REPLICATE_UNTIL_KILLED="+path, "BYRE_TEST_MOMENT="+moment)
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		if err := process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = process.Wait()
	}
	pause = func(during func()) {
		err := process.Process.Signal(syscall.SIGSTOP)
		if err == nil {
			_, err = syscall.Wait4(process.Process.Pid, nil, syscall.WUNTRACED, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		during()
		if err := process.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	return kill, pause, out
}

// replicateUntilKilled prints the moment after its commits, or the name of each one that is acknowledged.
func replicateUntilKilled(t *testing.T, path, moment string) {
	r := replicate(t, path, func(r *replication.Replicator) { r.Sync = moment == "acknowledged" }, s3URL)
	for i := 0; moment == "acknowledged"; i++ {
		name := fmt.Sprintf("%d-%d", os.Getpid(), i)
		r.commitValue(t, name, `{}`)
		fmt.Println(name)
	}
	r.commit(t, fmt.Sprint("before the kill of ", os.Getpid()), 3, 1000)
	switch moment {
	case "captured":
		storetest.Eventually(t, "the commits are captured", func() bool { return capturedRevision(path) >= r.revision(t) })
	case "copied":
		r.awaitCopies(t)
	}
	fmt.Println(moment)
	<-t.Context().Done()
}

// capturedRevision returns up to which revision the files beside the database have all changes.
func capturedRevision(path string) int64 {
	text, err := os.ReadFile(path + ".replication/pages")
	if err != nil || len(text) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(text))
}

func (r *replicated) revision(t *testing.T) int64 {
	t.Helper()
	state, err := r.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state.Revision
}

// followNewest has a follower go on as a standby does.
func followNewest(t *testing.T, f *replication.Follower) {
	t.Helper()
	folders, err := f.Folders(t.Context())
	if err == nil {
		err = f.CatchUp(t.Context(), folders[len(folders)-1], true)
	}
	if err != nil {
		t.Error(err)
	}
}

// sqlite3 runs statements as another program does.
func sqlite3(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=rw")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(statement, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestResume_ContinuesTheFolder restarts a process with a database of some megabytes: next to nothing is uploaded, the
// folder goes on, and so does a standby's copy of it.
func TestResume_ContinuesTheFolder(t *testing.T) {
	if path := os.Getenv("BYRE_TEST_REPLICATE_UNTIL_KILLED"); path != "" {
		replicateUntilKilled(t, path, os.Getenv("BYRE_TEST_MOMENT"))
		return
	}
	skipUnderRace(t)
	for name, between := range map[string]func(t *testing.T, path string, s *s3Faults){
		"stop": func(*testing.T, string, *s3Faults) {},
		"kill": func(t *testing.T, path string, _ *s3Faults) { crash(t, path) },
		"kill twice": func(t *testing.T, path string, _ *s3Faults) {
			crash(t, path)
			crash(t, path)
		},
		"kill with commits that were not captured": func(t *testing.T, path string, _ *s3Faults) {
			crashWhen(t, path, "committed")
		},
		"kill with commits that were not copied": func(t *testing.T, path string, s *s3Faults) {
			s.away.Store(true)
			crashWhen(t, path, "captured")
			s.away.Store(false)
		},
		"stop without the bucket": func(t *testing.T, path string, s *s3Faults) {
			r := replicate(t, path, nil, s3URL)
			r.awaitCopies(t)
			s.away.Store(true)
			r.commit(t, "away", 3, 1000)
			r.stop()
			if err := r.Driver.Close(); err == nil {
				t.Error("the copy is complete without the bucket")
			}
			s.away.Store(false)
		},
		"start and kill without the bucket after a stop": func(t *testing.T, path string, s *s3Faults) {
			s.away.Store(true)
			crashWhen(t, path, "captured")
			crashWhen(t, path, "captured")
			s.away.Store(false)
		},
		"kill in the middle of an upload": func(t *testing.T, path string, s *s3Faults) {
			s.killInUpload(t, path)
		},
		"the answer to the claim is lost": func(_ *testing.T, _ string, s *s3Faults) { s.dropsClaim.Store(true) },
		"kill before the answer to an upload": func(t *testing.T, path string, s *s3Faults) {
			s.stores.Store(true)
			s.killInUpload(t, path)
		},
		"the bucket has lost the last file, which is on the disk": func(t *testing.T, path string, _ *s3Faults) {
			crash(t, path)
			place, last := lastFolder(t)
			remove(t, place, 0, last, last)
		},
		"another program has changed a part of the file": func(t *testing.T, path string, _ *s3Faults) {
			sqlite3(t, path, "CREATE TABLE more (a)", "INSERT INTO more VALUES (randomblob(10000))")
		},
		"another program has copied the log back": func(t *testing.T, path string, _ *s3Faults) {
			sqlite3(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
		},
		"the log of a killed process was copied back": func(t *testing.T, path string, _ *s3Faults) {
			crash(t, path)
			sqlite3(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
		},
		"the log of a killed process was copied back, and written again": func(t *testing.T, path string, s *s3Faults) {
			s.away.Store(true)
			crashWhen(t, path, "captured")
			s.away.Store(false)
			sqlite3(t, path, "PRAGMA wal_checkpoint(RESTART)", "CREATE TABLE more (a)", "INSERT INTO more VALUES (1)")
		},
		"the database shrinks and grows": func(t *testing.T, path string, _ *s3Faults) {
			sqlite3(t, path, "CREATE TABLE more (a)", "INSERT INTO more VALUES (randomblob(300000))", "DROP TABLE more",
				"PRAGMA incremental_vacuum", "CREATE TABLE less (a)", "INSERT INTO less VALUES (randomblob(100000))")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, path := faultyS3(t), migrated(t)
			run(t, path, func(r *replicated) { r.fill(t, "first", 10) })
			standby := follow(t)
			followNewest(t, standby)
			between(t, path, s)
			before := s.uploaded.Load()
			if before < 2<<20 {
				t.Fatalf("%d bytes were uploaded, want the whole database", before)
			}
			run(t, path, func(r *replicated) {
				r.awaitCopies(t)
				n := s.uploaded.Load() - before
				if t.Logf("the restart has uploaded %d bytes of %d", n, before); n > 400<<10 {
					t.Error("want only what has changed")
				}
				followNewest(t, standby)
				r.fill(t, "second", 2)
				r.awaitCopies(t)
				r.stop()
				if err := r.Merge(t.Context()); err != nil {
					t.Error(err)
				}
			})
			if all := copiesThere(t); len(all) != 1 || all[0].HasHole() {
				t.Errorf("the folders are %+v, want one", all)
			}
			expectRestored(t, s3URL, path)
			followNewest(t, standby)
			expectCopy(t, standby, path)
		})
	}
}

// TestResume_LosesNothingThroughKills kills a process at random moments, again and again, some of them without the
// bucket. The bucket has what was acknowledged each time, and a standby's copy goes on.
func TestResume_LosesNothingThroughKills(t *testing.T) {
	s, path := faultyS3(t), migrated(t)
	run(t, path, func(r *replicated) { r.fill(t, "first", 4) })
	standby := follow(t)
	kills := 12
	if testing.Short() {
		kills = 3
	}
	random := rand.New(rand.NewPCG(1, 2))
	var acknowledged []string
	for i := range kills {
		kill, _, out := startReplicating(t, path, "acknowledged")
		begun, ended := make(chan struct{}), make(chan []string)
		go func() {
			begin := sync.OnceFunc(func() { close(begun) })
			var names []string
			for lines := bufio.NewScanner(out); lines.Scan(); begin() {
				names = append(names, lines.Text())
			}
			begin()
			ended <- names
		}()
		if i%2 == 0 { // otherwise it may not serve yet
			<-begun
		}
		time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
		if i%3 == 2 {
			s.away.Store(true)
			time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		}
		kill()
		s.away.Store(false)
		acknowledged = append(acknowledged, <-ended...)
		followNewest(t, standby)
		there := namesIn(t, restore(t, s3URL, latest(t, s3URL)))
		for _, name := range acknowledged {
			if !there[name] {
				t.Fatalf("kill %d: %s is lost", i, name)
			}
		}
	}
	run(t, path, func(*replicated) {})
	t.Logf("%d commits were acknowledged, %d bytes uploaded, %d folders", len(acknowledged), s.uploaded.Load(),
		len(copiesThere(t)))
	if len(acknowledged) < kills || len(copiesThere(t)) > 2 {
		t.Error("the processes did not serve, or begin folders")
	}
	expectRestored(t, s3URL, path)
	followNewest(t, standby)
	expectCopy(t, standby, path)
}

// namesIn returns the names of the objects in a database.
func namesIn(t *testing.T, path string) map[string]bool {
	t.Helper()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT name FROM current_objects")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}

// TestResume_BeginsAFolderWhereItDoesNotFit has others change the copy, or the database, while the process does not
// run.
func TestResume_BeginsAFolderWhereItDoesNotFit(t *testing.T) {
	skipUnderRace(t)
	for name, between := range map[string]func(t *testing.T, path, older string, s *s3Faults){
		"the folder has lost its last files, which are not on the disk any more": func(
			t *testing.T, path, _ string, _ *s3Faults,
		) {
			run(t, path, func(r *replicated) {
				r.commit(t, "merged", 3, 1000)
				r.awaitCopies(t)
				r.stop()
				if err := r.Merge(t.Context()); err != nil {
					t.Error(err)
				}
			})
			place, last := lastFolder(t)
			for level := range 2 {
				remove(t, place, level, 1, last)
			}
		},
		"the folder has a hole": func(t *testing.T, _, _ string, _ *s3Faults) {
			place, last := lastFolder(t)
			remove(t, place, 0, last-1, last-1)
		},
		"the database was replaced by an older copy": func(t *testing.T, path, older string, _ *s3Faults) {
			copyFile(t, filepath.Join(older, "byre.db"), path)
		},
		"the directory was rolled back to a stop": func(t *testing.T, path, older string, _ *s3Faults) {
			rollBack(t, path, older)
		},
		"the directory was rolled back to a stop, and the folder lacks what came later": func(
			t *testing.T, path, older string, _ *s3Faults,
		) {
			place, last := lastFolder(t)
			rollBack(t, path, older)
			all, err := filepath.Glob(path + ".replication/ltx/0/*.ltx")
			if err != nil || len(all) == 0 {
				t.Fatal(all, err)
			}
			_, left, err := ltx.ParseFilename(filepath.Base(all[len(all)-1]))
			if err != nil || uint64(left) >= last {
				t.Fatal(left, last, err)
			}
			remove(t, place, 0, uint64(left)+1, last)
		},
		"the directory was rolled back to a moment of a process that was killed later": func(
			t *testing.T, path, older string, _ *s3Faults,
		) {
			kill, pause, out := startReplicating(t, path, "acknowledged")
			awaitLines(t, out, 3)
			pause(func() { copyDir(t, filepath.Dir(path), older) })
			awaitLines(t, out, 3)
			kill()
			rollBack(t, path, older)
		},
		"a clone of the disk goes on in the folder": func(t *testing.T, path, _ string, _ *s3Faults) {
			stopped := t.TempDir()
			copyDir(t, filepath.Dir(path), stopped)
			run(t, path, func(r *replicated) { r.commit(t, "clone", 1, 1000) })
			rollBack(t, path, stopped)
		},
		"a clone of the disk goes on in the folder before a process that was killed": func(
			t *testing.T, path, _ string, s *s3Faults,
		) {
			stopped, killed := t.TempDir(), t.TempDir()
			copyDir(t, filepath.Dir(path), stopped)
			s.away.Store(true)
			for range 4 { // so that it has more files than the clone
				crashWhen(t, path, "captured")
			}
			s.away.Store(false)
			copyDir(t, filepath.Dir(path), killed)
			rollBack(t, path, stopped)
			run(t, path, func(r *replicated) { r.commit(t, "clone", 1, 1000) })
			rollBack(t, path, killed)
		},
		"a clone of the directory": func(t *testing.T, path, older string, _ *s3Faults) {
			copyDir(t, filepath.Dir(path), older)
			run(t, filepath.Join(older, "byre.db"), func(r *replicated) { r.commit(t, "clone", 1, 1000) })
		},
		"a process was killed while it began a folder": func(t *testing.T, path, _ string, s *s3Faults) {
			s.killInUpload(t, forgotten(t, path))
		},
		"another program has changed the size of the pages": func(t *testing.T, path, _ string, _ *s3Faults) {
			sqlite3(t, path, "PRAGMA journal_mode = DELETE", "PRAGMA page_size = 8192", "VACUUM", "PRAGMA journal_mode = WAL")
		},
		"another process has begun a folder": func(t *testing.T, path, _ string, _ *s3Faults) {
			other := filepath.Join(t.TempDir(), "byre.db")
			copyFile(t, path, other)
			run(t, other, func(r *replicated) { r.commit(t, "other", 1, 1000) })
		},
		"a clone of the machine has claimed the folder": func(t *testing.T, path, _ string, _ *s3Faults) {
			text, err := os.ReadFile(path + ".replication/resume.json")
			var state struct {
				Folders map[string]struct{ Claim string }
			}
			if err == nil {
				err = json.Unmarshal(text, &state)
			}
			if err != nil || state.Folders[s3URL].Claim == "" {
				t.Fatal(err, state)
			}
			place, _ := lastFolder(t)
			if _, err := place.Put(t.Context(), state.Folders[s3URL].Claim, bytes.NewReader(nil)); err != nil {
				t.Fatal(err)
			}
		},
		"a clone of the machine has gone on in the folder": func(t *testing.T, _, _ string, _ *s3Faults) {
			place, last := lastFolder(t)
			name := "ltx/0/%016[1]x-%016[1]x.ltx"
			file, _, err := place.Get(t.Context(), fmt.Sprintf(name, last), 0, 0)
			var content []byte
			if err == nil {
				content, err = io.ReadAll(file)
			}
			for n := last + 1; err == nil && n < last+5; n++ {
				_, err = place.Put(t.Context(), fmt.Sprintf(name, n), bytes.NewReader(content))
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"the bucket ignores conditions": func(_ *testing.T, _, _ string, s *s3Faults) { s.ignoresConditions.Store(true) },
		"the bucket has no conditions":  func(_ *testing.T, _, _ string, s *s3Faults) { s.refusesConditions.Store(true) },
		"what was kept was lost in part": func(t *testing.T, path, _ string, _ *s3Faults) {
			if err := os.WriteFile(path+".replication/pages", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, path := faultyS3(t), migrated(t)
			older := t.TempDir()
			run(t, path, func(r *replicated) { r.fill(t, "first", 10) })
			standby := follow(t)
			followNewest(t, standby)
			copyDir(t, filepath.Dir(path), older)
			run(t, path, func(r *replicated) {
				for i := range 3 {
					r.commit(t, fmt.Sprint("second-", i), 1, 1000)
					r.awaitCopies(t)
				}
			})
			followNewest(t, standby)
			between(t, path, older, s)
			before, begun := s.uploaded.Load(), len(copiesThere(t))
			run(t, path, func(r *replicated) { r.commit(t, "third", 1, 1000) })
			if n := s.uploaded.Load() - before; n < 2<<20 || len(copiesThere(t)) != begun+1 {
				t.Errorf("%d bytes were uploaded, and there are the folders %+v: want a new one", n, copiesThere(t))
			}
			expectRestored(t, s3URL, path)
			followNewest(t, standby)
			expectCopy(t, standby, path)
		})
	}
}

// awaitLines reads n lines.
func awaitLines(t *testing.T, out io.Reader, n int) {
	t.Helper()
	for range n {
		var line string
		if _, err := fmt.Fscanln(out, &line); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lastFolder returns the last folder, and the last transaction that it has.
func lastFolder(t *testing.T) (place *bucket.Client, last uint64) {
	t.Helper()
	at, err := bucket.S3{}.Open(s3URL)
	if err != nil {
		t.Fatal(err)
	}
	all := copiesThere(t)
	return at.In(all[len(all)-1].Folder), all[len(all)-1].Last
}

// remove removes the files of a level that have a transaction from first to last.
func remove(t *testing.T, place *bucket.Client, level int, first, last uint64) {
	t.Helper()
	files, err := place.List(t.Context(), fmt.Sprintf("ltx/%d/", level), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		begin, end, err := ltx.ParseFilename(filepath.Base(file.Name))
		if err == nil && uint64(begin) <= last && uint64(end) >= first {
			err = place.Delete(t.Context(), file.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
