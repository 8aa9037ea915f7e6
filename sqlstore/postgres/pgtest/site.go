package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Site is a PostgreSQL server of one test, perhaps with a standby. Each replica of byre
// connects to each of the two servers through a proxy of its own. The methods that inject a
// fault return when the fault is over. Then Primary is the server that takes writes.
type Site struct {
	Primary, Standby *Cluster
	// Disk holds the server's data, or with DiskForWAL only its write-ahead log; nil if
	// the site has no disk of its own.
	Disk *Disk
	// Replicas are the proxies of each replica, in the order of the servers.
	Replicas [][]*Proxy

	config SiteConfig
	// clusters are the servers in the order of each replica's proxies.
	clusters []*Cluster
}

// SiteConfig says what a site consists of.
type SiteConfig struct {
	// Replicas is the number of replicas; 0 means 1.
	Replicas int
	// Standby adds a standby, which is asynchronous unless Synchronous is set.
	Standby, Synchronous bool
	// Disk is the size in MiB of the Disk that holds the server's data, or with
	// DiskForWAL only its write-ahead log; 0 means no Disk.
	Disk       int64
	DiskForWAL bool
}

// NewSite makes a site, which ends with the test. It skips the test if DSN would.
func NewSite(t testing.TB, config SiteConfig) *Site {
	t.Helper()
	DSN(t)
	s := &Site{config: config}
	server := Config{Settings: []string{"wal_log_hints=on"}}
	if config.Standby {
		server.Settings = append(server.Settings, "wal_keep_size=256MB", // pg_rewind reads it
			// The standby's replay waits for running statements instead of cancelling them.
			"max_standby_streaming_delay=-1", "max_standby_archive_delay=-1")
	}
	if config.Disk > 0 {
		s.Disk = NewDisk(t, config.Disk)
		folder, err := s.Disk.Mkdir("server")
		if err != nil {
			t.Fatal(err)
		}
		server.WALSegment = 1
		server.Settings = append(server.Settings, "max_wal_size=8MB", "min_wal_size=2MB")
		server.Data = folder
		if config.DiskForWAL {
			server.Data, server.WAL = "", folder
		}
	}
	var err error
	if s.Primary, err = server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, s.Primary)
	s.clusters = []*Cluster{s.Primary}
	if config.Standby {
		if s.Standby, err = s.Primary.Standby(t.Context()); err != nil {
			t.Fatal(err)
		}
		stopAtEnd(t, s.Standby)
		s.clusters = append(s.clusters, s.Standby)
	}
	if config.Synchronous {
		if err := s.Primary.Set(t.Context(), "synchronous_standby_names", "*"); err != nil {
			t.Fatal(err)
		}
	}
	for range max(config.Replicas, 1) {
		var proxies []*Proxy
		for _, c := range s.clusters {
			proxies = append(proxies, NewProxy(t, c.DSN("postgres")))
		}
		s.Replicas = append(s.Replicas, proxies)
	}
	return s
}

func stopAtEnd(t testing.TB, c *Cluster) {
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Logf("stop: %v", err) // it may only say that a signal ended the server
		}
	})
}

// DSN returns the URL of the database for a replica. Its hosts are the replica's proxies.
func (s *Site) DSN(replica int) string {
	return s.Replicas[replica][0].DSN(s.Replicas[replica][1:]...)
}

// DirectDSN returns the URL of the database without proxies. It leads to the server that takes
// writes.
func (s *Site) DirectDSN() string {
	var folders []string
	for _, c := range s.clusters {
		folders = append(folders, c.dir)
	}
	u := url.URL{Scheme: "postgres", User: url.User("byre"), Path: "/postgres", RawQuery: url.Values{
		"host": {strings.Join(folders, ",")}, "target_session_attrs": {"read-write"},
	}.Encode()}
	return u.String()
}

// each calls f for each proxy.
func (s *Site) each(f func(*Proxy)) {
	for _, proxies := range s.Replicas {
		for _, p := range proxies {
			f(p)
		}
	}
}

// Terminate terminates the sessions of all clients by pg_terminate_backend.
func (s *Site) Terminate(ctx context.Context) error {
	return s.Primary.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
}

// KillBackend kills the server process of one session. The server then ends all sessions and
// recovers as after a crash.
func (s *Site) KillBackend(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.Primary.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return syscall.Kill(int(conn.PgConn().PID()), syscall.SIGKILL)
}

// Restart restarts the server as "pg_ctl restart -m immediate" does.
func (s *Site) Restart(ctx context.Context) error { return s.Primary.Restart(ctx) }

// DropConnections closes all connections of all replicas.
func (s *Site) DropConnections(context.Context) error {
	s.each((*Proxy).Drop)
	return nil
}

// Delay delays what replicas and servers send to each other, for a while.
func (s *Site) Delay(ctx context.Context, by, during time.Duration) error {
	s.each(func(p *Proxy) { p.Delay(by) })
	defer s.each(func(p *Proxy) { p.Delay(0) })
	return pause(ctx, during)
}

// Blackhole drops what replicas and servers send to each other, for a while. Connections of
// that time stay open and get no answer.
func (s *Site) Blackhole(ctx context.Context, during time.Duration) error {
	s.each((*Proxy).Blackhole)
	defer s.each((*Proxy).Forward)
	return pause(ctx, during)
}

// AtCommit waits for the next transaction that writes. At a point of its COMMIT it calls do,
// which may be nil, with the number of the replica, and then executes an action.
func (s *Site) AtCommit(ctx context.Context, point Point, action Action, do func(replica int)) error {
	return s.AtStatement(ctx, Failpoint{Statement: "COMMIT", After: "INSERT INTO undo_log", Point: point}, action, do)
}

// AtStatement waits until a replica triggers a failpoint. Then it calls do, which may be nil,
// with the number of the replica, and executes an action. It sets the failpoint's Do itself.
func (s *Site) AtStatement(ctx context.Context, failpoint Failpoint, action Action, do func(replica int)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	triggered := make(chan struct{})
	var isTriggered atomic.Bool
	server := slices.Index(s.clusters, s.Primary)
	for replica, proxies := range s.Replicas {
		failpoint.Do = func() Action {
			if isTriggered.Swap(true) {
				return Forward
			}
			defer close(triggered)
			if do != nil {
				do(replica)
			}
			return action
		}
		proxies[server].Set(failpoint)
	}
	defer s.each((*Proxy).Unset)
	select {
	case <-triggered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no statement like %q: %w", failpoint.Statement, ctx.Err())
	}
}

// FillDisk fills the disk for a while. If the write-ahead log is on it, the server panics and
// may not start by itself; FillDisk then restarts it.
func (s *Site) FillDisk(ctx context.Context, during time.Duration) error {
	if err := s.Disk.Fill(); err != nil {
		return err
	}
	if err := errors.Join(pause(ctx, during), s.Disk.Free()); err != nil {
		return err
	}
	if s.config.DiskForWAL {
		return s.Restart(ctx)
	}
	return nil
}

// FailDisk makes the disk read-only for a while. Then it stops the server, repairs the disk
// and starts the server again, as an administrator would.
func (s *Site) FailDisk(ctx context.Context, during time.Duration) error {
	if err := s.Disk.Fail(); err != nil {
		return err
	}
	if err := errors.Join(pause(ctx, during), s.Primary.Halt(), s.Disk.Repair()); err != nil {
		return err
	}
	return s.Primary.Resume(ctx)
}

// Failover stops the primary as a crash would, and promotes the standby. If behind is not 0,
// Failover stops the standby for that time before, so that commits of that time are lost. The
// old primary becomes the standby of the new one.
func (s *Site) Failover(ctx context.Context, behind time.Duration) error {
	return s.FailoverWith(ctx, behind, FailoverSteps{})
}

// FailoverSteps are functions that FailoverWith calls; each may be nil.
type FailoverSteps struct {
	// Halt is called before the primary is stopped.
	Halt func()
	// Promoted is called when the standby has been promoted and is Site.Primary. It is
	// read-only until Promoted returns, so that nobody has written to it.
	Promoted func(ctx context.Context) error
}

// FailoverWith is Failover with steps. Promoted is allowed only if behind is not 0.
func (s *Site) FailoverWith(ctx context.Context, behind time.Duration, steps FailoverSteps) error {
	const readOnly = "default_transaction_read_only"
	if behind > 0 {
		if steps.Promoted != nil {
			// The setting takes effect at the standby's next start.
			if err := s.Standby.Set(ctx, readOnly, "on"); err != nil {
				return err
			}
		}
		if err := errors.Join(s.Standby.Halt(), pause(ctx, behind)); err != nil {
			return err
		}
	}
	if steps.Halt != nil {
		steps.Halt()
	}
	if err := s.Primary.Halt(); err != nil {
		return err
	}
	if behind > 0 {
		if err := s.Standby.Resume(ctx); err != nil {
			return err
		}
	}
	if err := s.Standby.Promote(ctx); err != nil {
		return err
	}
	s.Primary, s.Standby = s.Standby, s.Primary
	if steps.Promoted != nil {
		if err := errors.Join(steps.Promoted(ctx), s.Primary.Set(ctx, readOnly, "off")); err != nil {
			return err
		}
	}
	if err := s.Standby.Rewind(ctx, s.Primary); err != nil {
		return err
	}
	if s.config.Synchronous {
		// So far the new primary's commits have not waited for a standby. awaitSynchronous
		// waits until the standby has them; the next failover would lose them otherwise.
		return errors.Join(s.Primary.Set(ctx, "synchronous_standby_names", "*"), s.Primary.awaitSynchronous(ctx))
	}
	return nil
}

// SetClock sets how far the server's clock, as the replicas see it, is ahead of the right
// time; negative means behind. It needs StartClock.
func (s *Site) SetClock(ctx context.Context, by time.Duration) error {
	return s.Primary.Exec(ctx, fmt.Sprintf(`UPDATE clock SET ahead = make_interval(secs => %f)`, by.Seconds()))
}

// StartClock makes SetClock work for sessions that begin later: it defines functions of time
// in the schema, which is before pg_catalog in their search_path. The database must have been
// migrated.
func (s *Site) StartClock(ctx context.Context) error {
	return s.Primary.Exec(ctx, `
CREATE TABLE clock AS SELECT interval '0' AS ahead;
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT pg_catalog.clock_timestamp() + (SELECT ahead FROM public.clock)';
CREATE FUNCTION statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT pg_catalog.statement_timestamp() + (SELECT ahead FROM public.clock)';
ALTER ROLE byre SET search_path = public, pg_catalog`)
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, during time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(during):
		return nil
	}
}

// Disk is a small file system in a file. A test can fill it, or make it fail, as a real disk
// does.
type Disk struct {
	// Dir is the folder where it is mounted.
	Dir   string
	image string
}

// NewDisk makes and mounts an ext4 file system, which is removed when the test ends. It skips
// the test if it can't mount a file system, which takes root and a loop device.
func NewDisk(t testing.TB, megabytes int64) *Disk {
	t.Helper()
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("mounts a file system, which takes root on Linux")
	}
	dir, err := os.MkdirTemp("", "byre-disk")
	if err != nil {
		t.Fatal(err)
	}
	d := &Disk{Dir: filepath.Join(dir, "mounted"), image: filepath.Join(dir, "image")}
	t.Cleanup(func() {
		_ = run("umount", "--lazy", d.Dir) // it fails if the disk was never mounted
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	image, err := os.Create(d.image)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(image.Truncate(megabytes<<20), image.Close(),
		os.Chmod(dir, 0o755), os.Mkdir(d.Dir, 0o755)) //nolint:gosec // another user goes through it
	if err != nil {
		t.Fatal(err)
	}
	// -m 0: no blocks are reserved for root, so that a full disk is full for every user.
	if err := run("mkfs.ext4", "-q", "-m", "0", d.image); err != nil {
		t.Fatal(err)
	}
	if err := d.mount(); err != nil {
		t.Skip(err)
	}
	return d
}

func (d *Disk) mount() error { return run("mount", "-o", "loop", d.image, d.Dir) }

// Mkdir makes a folder that the server's user owns.
func (d *Disk) Mkdir(name string) (string, error) {
	path := filepath.Join(d.Dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	credential, err := Unprivileged()
	if err != nil {
		return "", err
	}
	return path, folder{d.Dir, credential}.give(path)
}

// Fill writes a file that takes all free space.
func (d *Disk) Fill() error {
	ballast, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	for _, size := range []int{1 << 20, 4 << 10} {
		for block := make([]byte, size); err == nil; {
			_, err = ballast.Write(block)
		}
		err = nil
	}
	return errors.Join(ballast.Sync(), ballast.Close())
}

// Free removes the file of Fill.
func (d *Disk) Free() error { return os.Remove(d.ballast()) }

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Fail makes the file system read-only at once, also for open files: ext4 aborts its journal,
// as it does after an I/O error of the device.
func (d *Disk) Fail() error { return run("mount", "-o", "remount,abort", d.Dir) }

// Repair checks the file system and mounts it again, writable. No process may use it.
func (d *Disk) Repair() error {
	if err := run("umount", d.Dir); err != nil {
		return err
	}
	// Status 1 of fsck means that it has found errors and repaired them.
	var exit *exec.ExitError
	if err := run("fsck.ext4", "-p", d.image); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return err
	}
	return d.mount()
}

func run(program string, arguments ...string) error {
	out, err := exec.Command(program, arguments...).CombinedOutput() //nolint:noctx,gosec // it ends by itself
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}
