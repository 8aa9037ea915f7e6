package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"k8s.io/component-base/term"
	"k8s.io/klog/v2"

	"byre/apiserver/server"
	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
)

// usedDatabase is the file below --data-dir that names the database of --endpoint with which the
// last server was started there. It does not exist where that server used the file in --data-dir.
const usedDatabase = "database"

// recordUsedDatabase records the database of a server, for usedEndpoint. A failure, such as
// that of a full disk, is no reason not to serve.
func recordUsedDatabase(store server.StoreOptions, name server.DatabaseName) {
	path := filepath.Join(store.DataDir, usedDatabase)
	var err error
	if store.Endpoint == "" {
		err = os.Remove(path)
	} else if last, _ := os.ReadFile(path); string(last) != name.String()+"\n" {
		var file *os.File
		if file, err = migrations.OpenOwned(path, os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
			_, err = file.WriteString(name.String() + "\n")
			err = errors.Join(err, file.Close())
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // "byre etcd" makes no folder for a database of --endpoint
		klog.ErrorS(err,
			"\"byre status\" can't know which database this server uses while it is stopped: make the file writable")
	}
}

// usedEndpoint returns the endpoint of a database that there is already. It fails if no database is named, and
// the servers of --data-dir use another one than the SQLite file there: that file is what a move to another
// database has left.
func usedEndpoint(store server.StoreOptions) (string, error) {
	if store.Endpoint == "" {
		if name, err := os.ReadFile(filepath.Join(store.DataDir, usedDatabase)); err == nil {
			return "", fmt.Errorf("its servers use %s: name it with --endpoint", bytes.TrimSpace(name))
		}
	}
	return store.DSN()
}

// readDatabase reads the whole store of an endpoint, which may be in use.
func readDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	return readSource(ctx, endpoint, read, sqlite.ReadSnapshot, postgres.ReadSnapshot)
}

// readOpenDatabase is readDatabase of a store that this process may serve: checkSource would release the
// locks that it has on a SQLite file.
func readOpenDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	read = withCluster(ctx, read)
	return withDatabase(endpoint,
		func(path string) error { return sqlite.ReadSnapshot(ctx, path, read) },
		func(dsn string) error { return postgres.ReadSnapshot(ctx, dsn, read) })
}

// readDamagedDatabase is readDatabase, which goes on after a row of SQLite that can't be read: the
// sequences yield a *sqlstore.DamagedRow.
func readDamagedDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	return readSource(ctx, endpoint, read, sqlite.ReadDamaged, postgres.ReadSnapshot)
}

// readIdleDatabase reads the whole store of an endpoint that no process serves.
func readIdleDatabase(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error) error {
	return readSource(ctx, endpoint, read, sqlite.ReadIdle, postgres.ReadIdle)
}

// withCluster sets the Cluster of the snapshot that read gets: the UID of the namespace kube-system, which is that of
// the cluster for as long as there is one.
func withCluster(ctx context.Context, read func(sqlstore.Snapshot) error) func(sqlstore.Snapshot) error {
	return func(s sqlstore.Snapshot) error {
		if s.Get != nil {
			record, _, err := s.Get(ctx, kubeSystem)
			if err != nil && !errors.Is(err, sqlstore.ErrNotFound) {
				return err
			}
			s.Cluster = record.UID
		}
		return read(s)
	}
}

// readSource reads the whole store of an endpoint by a function of its driver.
func readSource(ctx context.Context, endpoint string, read func(sqlstore.Snapshot) error,
	onSQLite, onPostgres func(ctx context.Context, dsn string, read func(sqlstore.Snapshot) error) error,
) error {
	if err := checkSource(endpoint); err != nil {
		return err
	}
	read = withCluster(ctx, read)
	return withDatabase(endpoint,
		func(path string) error { return onSQLite(ctx, path, read) },
		func(dsn string) error { return onPostgres(ctx, dsn, read) })
}

// loadDatabase fills the database of an endpoint, which it makes if there is none.
func loadDatabase(ctx context.Context, endpoint string, s sqlstore.Snapshot) error {
	return explainInUse(withDatabase(endpoint,
		func(path string) error { return sqlite.Load(ctx, path, s) },
		func(dsn string) error { return postgres.Load(ctx, dsn, s) }), "stop it, or name another database")
}

// explainInUse adds to the error of a database that a process uses what to do next.
func explainInUse(err error, remedy string) error {
	if _, inUse := errors.AsType[*migrations.InUseError](err); inUse {
		return fmt.Errorf("%w: %s", err, remedy)
	}
	return err
}

func withDatabase(endpoint string, onSQLite, onPostgres func(dsn string) error) error {
	dialect, dsn, err := migrations.ParseEndpoint(endpoint)
	switch {
	case err != nil:
		return err
	case dialect == migrations.SQLite:
		return onSQLite(dsn)
	default:
		return onPostgres(dsn)
	}
}

// loadVerified fills the database of an endpoint, and then counts and hashes what it
// holds.
func loadVerified(ctx context.Context, p *progress, endpoint string, s sqlstore.Snapshot) (backup.Digest, error) {
	s, loaded := backup.Digested(s)
	if err := loadDatabase(ctx, endpoint, s); err != nil {
		return backup.Digest{}, err
	}
	p.begin("verifying")
	var held backup.Digest
	err := readDatabase(ctx, endpoint, func(h sqlstore.Snapshot) (err error) {
		if h.Revision != s.Revision || h.Compacted != s.Compacted || h.Epoch != s.Epoch {
			return fmt.Errorf("it is at revision %d of epoch %s, want %d of %s", h.Revision, h.Epoch, s.Revision, s.Epoch)
		}
		h = p.follow(h)
		p.total = loaded.Objects + loaded.Changes
		held, err = backup.DigestOf(h)
		return err
	})
	switch {
	case err != nil:
		return held, fmt.Errorf("verify what was loaded: %w", err)
	case held != *loaded:
		return held, fmt.Errorf("the database holds %v, and was given %v: do not use it", held, *loaded)
	}
	return held, nil
}

// checkSource fails if the endpoint of a database that is to be read names a file that does not
// exist, or that is no database of byre.
func checkSource(endpoint string) error {
	dialect, path, err := migrations.ParseEndpoint(endpoint)
	if err != nil || dialect != migrations.SQLite {
		return err
	}
	isFresh, err := migrations.InspectFile(path)
	switch {
	case errors.Is(err, migrations.ErrForeign):
		return explainFile(path, byreDatabase, fmt.Errorf("%w: name a database that \"byre serve\" has made", err))
	case err != nil:
		return err
	case isFresh:
		return fmt.Errorf(
			"there is no database in %s: name its directory with --data-dir, or another database with --endpoint", path)
	}
	return nil
}

// explainFile returns err, which a command that takes files of the kind want got of the file at
// path. If the file is of another kind, explainFile returns the command that takes it.
func explainFile(path, want string, err error) error {
	if kind, command := recognize(path); kind != "" && kind != want {
		return fmt.Errorf("%s is %s: use \"byre %s\"", path, kind, command)
	}
	return err
}

// The kinds of recognize.
const (
	compressed   = "a compressed file, as backups of byre are" // RFC 8878
	byreDatabase = "a database of byre"
	etcdSnapshot = "a snapshot of etcd"
	otherSQLite  = "another program's SQLite database"
)

// recognize tells by the first bytes of a file what it is, and which command takes it. kind is
// empty if it is nothing that byre knows.
func recognize(path string) (kind, command string) {
	file, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer file.Close()
	header := make([]byte, 100)
	if n, err := io.ReadFull(file, header); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || n < 20 {
		return "", ""
	}
	switch {
	case bytes.HasPrefix(header, []byte("\x28\xb5\x2f\xfd")):
		return compressed, "restore " + path
	case binary.NativeEndian.Uint32(header[16:]) == 0xED0CDAED: // bbolt's page header, and its magic
		return etcdSnapshot, "import etcd " + path
	case !bytes.HasPrefix(header, []byte("SQLite format 3\x00")):
		return "", ""
	case binary.BigEndian.Uint32(header[68:]) == migrations.ApplicationID:
		return byreDatabase, "restore --from sqlite://" + path
	}
	return otherSQLite, "import kine sqlite://" + path
}

const (
	// rowsOnTerminal and secondsOnTerminal are how often a terminal shows how many rows were
	// read, and how many seconds have passed. It has one line, which is replaced; elsewhere
	// each time adds a line, every sqlstore.ReportInLog.
	rowsOnTerminal, secondsOnTerminal = 200 * time.Millisecond, time.Second
	progressBarWidth                  = 30
)

// progress tells an operator how far a command is that reads or writes a whole store, or
// migrates it.
type progress struct {
	out        io.Writer
	isTerminal bool
	clock      func() time.Time
	start      time.Time
	last       time.Time

	work        string
	rows, total int64
	bytes       int64
}

// newProgress returns a progress that writes to out how far the work is. It writes nothing
// in the first sqlstore.ReportAfter. work is a phrase such as "backing up".
func newProgress(out io.Writer, work string) *progress {
	p := &progress{out: out, work: work, clock: time.Now}
	_, _, err := term.TerminalSize(out)
	p.isTerminal = err == nil
	p.start = p.clock()
	return p
}

// begin begins another part of the work.
func (p *progress) begin(work string) { p.work, p.rows, p.total, p.bytes = work, 0, 0, 0 }

// follow returns the snapshot and counts the rows that are read from it.
func (p *progress) follow(s sqlstore.Snapshot) sqlstore.Snapshot {
	p.total = max(s.ObjectCount, 0) + s.Revision - s.Compacted
	s.Objects = countRows(p, s.Objects, func(r *sqlstore.ObjectRow) int { return len(r.Value) })
	s.Changes = countRows(p, s.Changes, func(r *sqlstore.ChangeRow) int { return len(r.Value) })
	return s
}

func countRows[T any](p *progress, rows iter.Seq2[*T, error], size func(*T) int) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for row, err := range rows {
			if err == nil {
				p.add(size(row))
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// add counts one row.
func (p *progress) add(bytes int) {
	p.rows++
	p.bytes += int64(bytes)
	p.showDue(p.line)
}

// showDue shows a line if it is time for one.
func (p *progress) showDue(line func() string) {
	now := p.clock()
	pause := sqlstore.ReportInLog
	if p.isTerminal {
		pause = rowsOnTerminal
	}
	if now.Sub(p.start) < sqlstore.ReportAfter || now.Sub(p.last) < pause {
		return
	}
	p.show(line(), now)
}

func (p *progress) show(line string, now time.Time) {
	p.last = now
	if p.isTerminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}

// showElapsed shows what work returns, and how long the command has worked, until stop is called.
// It is for work whose rows are not counted: nothing else of p is called meanwhile.
func (p *progress) showElapsed(work func() string) (stop func()) {
	every := sqlstore.ReportInLog
	if p.isTerminal {
		every = secondsOnTerminal
	}
	return sqlstore.ReportElapsed(sqlstore.ReportAfter-p.clock().Sub(p.start), every, func(time.Duration) {
		now := p.clock()
		p.show(fmt.Sprintf("%s, %d s", work(), now.Sub(p.start)/time.Second), now)
	})
}

// line returns the progress as text, such as
// "backing up [####......] 41%, 120000 rows, 310 MiB".
func (p *progress) line() string {
	return fmt.Sprintf("%s %s%d rows, %d MiB", p.work, progressBar(p.rows, p.total), p.rows, p.bytes>>20)
}

// progressBar returns text such as "[####......] 41%, "; it is empty if total is not known.
func progressBar(done, total int64) string {
	if total <= 0 {
		return ""
	}
	share := min(float64(done)/float64(total), 1)
	full := int(share * progressBarWidth)
	return fmt.Sprintf("[%-*s] %.0f%%, ", progressBarWidth, "##############################"[:full], share*100)
}

// end removes the line from a terminal.
func (p *progress) end() {
	if p.isTerminal && !p.last.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
