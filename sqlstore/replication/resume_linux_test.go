package replication_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/superfly/ltx"

	"byre/migrations"
	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
)

// countingS3 serves an S3 with a bucket "copies", and counts the bytes that it receives.
func countingS3(t *testing.T) (uploaded *atomic.Int64) {
	t.Helper()
	uploaded = &atomic.Int64{}
	s3Behind(t, func(_ http.ResponseWriter, r *http.Request) bool {
		uploaded.Add(max(0, r.ContentLength))
		return true
	})
	return uploaded
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
	r := replicate(t, path, nil, s3URL)
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
func crash(t *testing.T, path string) {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestResume_ContinuesTheFolder$")
	process.Env = append(os.Environ(), "BYRE_TEST_REPLICATE_UNTIL_KILLED="+path)
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	var word string
	if _, err := fmt.Fscanln(out, &word); err != nil || word != "copied" {
		t.Errorf("the process says %q, %v", word, err)
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
}

// TestResume_ContinuesTheFolder restarts a process with a database of some megabytes: next to nothing is uploaded, and
// the folder goes on.
func TestResume_ContinuesTheFolder(t *testing.T) {
	if path := os.Getenv("BYRE_TEST_REPLICATE_UNTIL_KILLED"); path != "" {
		r := replicate(t, path, nil, s3URL)
		r.commit(t, fmt.Sprint("before the kill of ", os.Getpid()), 3, 1000)
		r.awaitCopies(t)
		fmt.Println("copied")
		<-t.Context().Done()
		return
	}
	for name, between := range map[string]func(t *testing.T, path string){
		"stop": func(*testing.T, string) {},
		"kill": crash,
		"kill twice": func(t *testing.T, path string) {
			crash(t, path)
			crash(t, path)
		},
		"another program has changed a part of the file": func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=rw")
			if err != nil {
				t.Fatal(err)
			}
			for _, statement := range []string{"CREATE TABLE more (a)", "INSERT INTO more VALUES (randomblob(10000))"} {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"the log of a killed process was copied back": func(t *testing.T, path string) {
			crash(t, path)
			db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=rw")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"the database shrinks and grows": func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", migrations.SQLiteDSN(path)+"?mode=rw")
			if err != nil {
				t.Fatal(err)
			}
			for _, statement := range []string{
				"CREATE TABLE more (a)", "INSERT INTO more VALUES (randomblob(300000))", "DROP TABLE more",
				"PRAGMA incremental_vacuum", "CREATE TABLE less (a)", "INSERT INTO less VALUES (randomblob(100000))",
			} {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			uploaded, path := countingS3(t), migrated(t)
			run(t, path, func(r *replicated) { r.fill(t, "first", 10) })
			between(t, path)
			before := uploaded.Load()
			if before < 2<<20 {
				t.Fatalf("%d bytes were uploaded, want the whole database", before)
			}
			run(t, path, func(r *replicated) {
				r.awaitCopies(t)
				n := uploaded.Load() - before
				if t.Logf("the restart has uploaded %d bytes of %d", n, before); n > 400<<10 {
					t.Error("want only what has changed")
				}
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
		})
	}
}

// TestResume_BeginsAFolderWhereItDoesNotFit has others change the copy, or the database, while the process does not
// run.
func TestResume_BeginsAFolderWhereItDoesNotFit(t *testing.T) {
	for name, between := range map[string]func(t *testing.T, path, older string){
		"the folder has lost its last files, which are not on the disk any more": func(t *testing.T, path, _ string) {
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
		"the folder has a hole": func(t *testing.T, _, _ string) {
			place, last := lastFolder(t)
			remove(t, place, 0, last-1, last-1)
		},
		"the database was replaced by an older copy": func(t *testing.T, path, older string) {
			copyFile(t, older, path)
		},
		"another process has begun a folder": func(t *testing.T, path, _ string) {
			other := filepath.Join(t.TempDir(), "byre.db")
			copyFile(t, path, other)
			run(t, other, func(r *replicated) { r.commit(t, "other", 1, 1000) })
		},
		"a clone of the machine goes on in the folder": func(t *testing.T, _, _ string) {
			place, last := lastFolder(t)
			if _, err := place.Put(t.Context(), fmt.Sprintf("continued-%016x", last), bytes.NewReader(nil)); err != nil {
				t.Fatal(err)
			}
		},
		"a clone of the machine has gone on in the folder": func(t *testing.T, _, _ string) {
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
		"what was kept was lost in part": func(t *testing.T, path, _ string) {
			if err := os.WriteFile(path+".replication/pages", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			uploaded, path := countingS3(t), migrated(t)
			older := filepath.Join(t.TempDir(), "older.db")
			run(t, path, func(r *replicated) { r.fill(t, "first", 10) })
			copyFile(t, path, older)
			run(t, path, func(r *replicated) {
				for i := range 3 {
					r.commit(t, fmt.Sprint("second-", i), 1, 1000)
					r.awaitCopies(t)
				}
			})
			between(t, path, older)
			before, begun := uploaded.Load(), len(copiesThere(t))
			run(t, path, func(r *replicated) { r.commit(t, "third", 1, 1000) })
			if n := uploaded.Load() - before; n < 2<<20 || len(copiesThere(t)) != begun+1 {
				t.Errorf("%d bytes were uploaded, and there are the folders %+v: want a new one", n, copiesThere(t))
			}
			expectRestored(t, s3URL, path)
		})
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
