package vfs

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	engine "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The tests run this program again, since a process has one VFS and ends when its power
// fails. role is the environment variable that says what the process does.
const role = "BYRE_VFS_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "ignores sync":
		IgnoreSync()
		fallthrough
	case "syncs":
		LoseUnsynced()
		os.Exit(status(insertUntilPowerFails(context.Background(), os.Args[1])))
	case "fails when told":
		LoseUnsynced()
		os.Exit(status(failPowerWhenTold(context.Background(), os.Args[1])))
	case "faults":
		os.Exit(status(meetFaults(context.Background(), os.Args[1])))
	}
}

// status is the exit status for an error, which it prints.
func status(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func openWAL(ctx context.Context, path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite",
		"file:"+path+
			"?_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=wal_autocheckpoint(20)&_pragma=busy_timeout(100)")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY, filler TEXT)`)
	return db, err
}

// insertUntilPowerFails inserts 1, 2, 3, ... and prints each number once it is committed.
func insertUntilPowerFails(ctx context.Context, path string) error {
	if err := Register(); err != nil {
		return err
	}
	db, err := openWAL(ctx, path)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		if n == 30 {
			time.AfterFunc(time.Duration(time.Now().UnixNano()%int64(20*time.Millisecond)), PowerFails)
		}
		if _, err := db.ExecContext(ctx,
			`INSERT INTO numbers VALUES ((SELECT coalesce(max(n), 0) + 1 FROM numbers), hex(randomblob(1500)))`); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// again runs this program in a role, and returns the last number that it printed.
func again(t *testing.T, as, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], path)
	cmd.Env = append(os.Environ(), role+"="+as)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil || stderr.Len() > 0 {
		t.Fatal(err, stderr.String())
	}
	last := 0
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// inspect returns how many numbers there are; the file must be whole.
func inspect(t *testing.T, path string) (int, error) {
	t.Helper()
	db, err := openWAL(t.Context(), path)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(t.Context(), `PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		return 0, fmt.Errorf("integrity_check: %s, %w", verdict, err)
	}
	var n int
	err = db.QueryRowContext(t.Context(), `SELECT count(*) FROM numbers`).Scan(&n)
	return n, err
}

// TestPowerFails_LosesWhatWasNotSynced: SQLite keeps all acknowledged rows if the VFS syncs
// files, and loses some if the VFS ignores syncs.
func TestPowerFails_LosesWhatWasNotSynced(t *testing.T) {
	t.Parallel()
	const rounds = 10
	t.Run("synced", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "numbers.db")
		total := 0
		for range rounds {
			total += again(t, "syncs", path)
			n, err := inspect(t, path)
			// The last number may have been committed and not printed.
			if err != nil || n != total && n != total+1 {
				t.Fatalf("%d acknowledged, %d there, %v", total, n, err)
			}
			total = n
		}
	})
	t.Run("sync does nothing", func(t *testing.T) {
		t.Parallel()
		for range rounds {
			path := filepath.Join(t.TempDir(), "numbers.db")
			said := again(t, "ignores sync", path)
			if n, err := inspect(t, path); err != nil || n < said {
				t.Logf("%d acknowledged, %d there, %v", said, n, err)
				return
			}
		}
		t.Errorf("nothing was lost in %d rounds", rounds)
	})
}

// failPowerWhenTold makes the power fail when it reads a line from standard input.
func failPowerWhenTold(ctx context.Context, path string) error {
	if err := Register(); err != nil {
		return err
	}
	if _, err := openWAL(ctx, path); err != nil {
		return err
	}
	fmt.Println("open")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	PowerFails()
	return nil
}

// TestPowerFails_WaitsForOtherProcesses: the power must not fail while another process has
// the database open, since that process would keep an index of the write-ahead log that does
// not match the disk.
func TestPowerFails_WaitsForOtherProcesses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "numbers.db")
	cmd := exec.CommandContext(t.Context(), os.Args[0], path)
	cmd.Env = append(os.Environ(), role+"=fails when told")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	reader, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(1000)")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var n int
	if err := reader.QueryRowContext(t.Context(), `SELECT count(*) FROM numbers`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(stdin); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, _ = out.ReadByte() // until the process ends
		ended <- cmd.Wait()
	}()
	select {
	case err := <-ended:
		t.Fatal("the power failed while another process had the database open", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.Exited() {
		t.Error("ended otherwise than by a power failure:", err)
	}
}

// TestFail_FailsOperations runs in a process of its own.
func TestFail_FailsOperations(t *testing.T) {
	t.Parallel()
	again(t, "faults", filepath.Join(t.TempDir(), "numbers.db"))
}

// meetFaults checks that each fault fails the operations it should, and none after them.
func meetFaults(ctx context.Context, path string) error {
	if err := Register(); err != nil {
		return err
	}
	db, err := openWAL(ctx, path)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	insert := func() error {
		_, err := db.ExecContext(ctx, `INSERT INTO numbers (filler) VALUES (hex(randomblob(1500)))`)
		return err
	}
	count := func() error {
		var n int
		if _, err := db.ExecContext(ctx, `PRAGMA shrink_memory`); err != nil {
			return err
		}
		return db.QueryRowContext(ctx, `SELECT count(filler || '') FROM numbers WHERE filler <> ''`).Scan(&n)
	}
	for range 20 {
		if err := insert(); err != nil {
			return err
		}
	}
	for _, test := range []struct {
		fault Fault
		do    func() error
		codes []int
	}{
		{Write, insert, []int{sqlite3.SQLITE_IOERR_WRITE}},
		{Sync, insert, []int{sqlite3.SQLITE_IOERR_FSYNC}},
		{Busy, insert, []int{sqlite3.SQLITE_BUSY}},
		{Read, count, []int{sqlite3.SQLITE_IOERR_READ}},
		{ShortRead, count, []int{sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_CORRUPT}},
	} {
		Fail(test.fault)
		err := test.do()
		failed := Clear()
		var e *engine.Error
		if !errors.As(err, &e) || !slices.Contains(test.codes, e.Code()) || failed == 0 {
			return fmt.Errorf("%s: %w after %d failures", test.fault, err, failed)
		}
		if err := errors.Join(insert(), count()); err != nil {
			return fmt.Errorf("after %s: %w", test.fault, err)
		}
	}
	return db.Close()
}
