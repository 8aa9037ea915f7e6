package sqlite_test

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
)

// A backup of the file is restored while a log of later writes is still beside it. SQLite would
// copy the pages of that log into the file. InspectAfterCrash or Open refuses the file, however
// many writes are between the backup and the log, and in the log.
func TestInspectAfterCrash_RefusesALaterLog(t *testing.T) {
	t.Parallel()
	for _, between := range []int{1, 3, 20, 200} {
		for _, inLog := range []int{1, 5, 50} {
			t.Run(strconv.Itoa(between)+" and "+strconv.Itoa(inLog), func(t *testing.T) {
				t.Parallel()
				driver, path := open(t)
				write := func(prefix string, n int) {
					t.Helper()
					for i := range n {
						if err := commits(t, driver, prefix+strconv.Itoa(i), 3000); err != nil {
							t.Fatal(err)
						}
					}
				}
				reopen := func() {
					t.Helper()
					err := driver.Close()
					if err == nil {
						driver, err = sqlite.Open(t.Context(), path, sqlite.Options{})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				read := func(name string) []byte {
					t.Helper()
					content, err := os.ReadFile(name)
					if err != nil {
						t.Fatal(err)
					}
					return content
				}
				write("before", 30)
				reopen()
				backup := read(path)
				write("between", between)
				reopen() // copies the log back and begins a new one
				write("log", inLog)
				log := read(path + "-wal")
				if err := driver.Close(); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(os.WriteFile(path, backup, 0o600), os.WriteFile(path+"-wal", log, 0o600)); err != nil {
					t.Fatal(err)
				}
				_, err := sqlite.InspectAfterCrash(t.Context(), path, true, time.Minute, slog.New(slog.NewTextHandler(io.Discard, nil)))
				if err == nil {
					if driver, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err == nil {
						err = driver.Close()
					}
				}
				if !errors.Is(err, sqlstore.ErrDamaged) {
					t.Errorf("a later log: %v", err)
				}
			})
		}
	}
}
