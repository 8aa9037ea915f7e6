package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Site is a PostgreSQL server of one test, perhaps with a standby. Each replica of byre
// reaches each of the two servers through a proxy of its own. The functions of this file
// inject a fault and return when it is over. Afterwards Primary is the server that takes
// writes.
type Site struct {
	Primary, Standby *Cluster
	// Disk holds the server's data, or with DiskForWAL only its write-ahead log; nil if
	// the site has no disk of its own.
	Disk *Disk
	// Replicas are the proxies of each replica: to the first server and to the second.
	Replicas [][]*Proxy

	config SiteConfig
	// clusters are the servers in the order of each replica's proxies.
	clusters []*Cluster
}

// SiteConfig says what a site has.
type SiteConfig struct {
	// Replicas is the number of replicas, 1 if it is 0.
	Replicas int
	// Standby adds a standby, asynchronous unless Synchronous is set.
	Standby, Synchronous bool
	// Disk is the size in MiB of a file system for the server; 0 means that it has none
	// of its own. With DiskForWAL it holds only the write-ahead log.
	Disk       int64
	DiskForWAL bool
}

// NewSite makes a site, which ends with the test. It skips the test where DSN skips it.
func NewSite(t testing.TB, config SiteConfig) *Site {
	t.Helper()
	DSN(t)
	s := &Site{config: config}
	server := Config{Settings: []string{"wal_log_hints=on"}}
	if config.Standby {
		server.Settings = append(server.Settings, "wal_keep_size=256MB", // pg_rewind reads it
			// What the standby replays waits for a statement, and does not cancel it.
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
			t.Logf("stop: %v", err) // the shell tells of the server's signal
		}
	})
}

// DSN is the URL of the database for a replica: of all servers, through its proxies.
func (s *Site) DSN(replica int) string {
	return s.Replicas[replica][0].DSN(s.Replicas[replica][1:]...)
}

// DirectDSN is the URL of the database past the proxies: of the server that takes writes.
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

// Terminate ends every session of clients, as an administrator does with
// pg_terminate_backend.
func (s *Site) Terminate(ctx context.Context) error {
	return s.Primary.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
}

// KillBackend kills the server's process of one session. The server then ends all
// sessions, and recovers as after a crash.
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

// Delay delays what replicas and servers send by a time, for a while.
func (s *Site) Delay(ctx context.Context, by, during time.Duration) error {
	s.each(func(p *Proxy) { p.Delay(by) })
	defer s.each(func(p *Proxy) { p.Delay(0) })
	return pause(ctx, during)
}

// Blackhole forwards nothing between the replicas and the servers, for a while. The
// connections of that time stay without an answer until they are closed.
func (s *Site) Blackhole(ctx context.Context, during time.Duration) error {
	s.each((*Proxy).Blackhole)
	defer s.each((*Proxy).Forward)
	return pause(ctx, during)
}

// AtCommit waits for the next transaction that writes, and executes an action at a point of
// its COMMIT. do, which may be nil, is called there first, with the number of the replica.
func (s *Site) AtCommit(ctx context.Context, point Point, action Action, do func(replica int)) error {
	return s.AtStatement(ctx, Failpoint{Statement: "COMMIT", After: "INSERT INTO changes", Point: point}, action, do)
}

// AtStatement waits until a replica has triggered a failpoint, whose Do is set here: it calls
// do, which may be nil, with the number of the replica.
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

// FillDisk fills the disk for a while. Where the write-ahead log is on it, the server
// panics and may not come back by itself: it is started again.
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

// FailDisk makes the disk read-only for a while. Then an administrator repairs it and
// starts the server again.
func (s *Site) FailDisk(ctx context.Context, during time.Duration) error {
	if err := s.Disk.Fail(); err != nil {
		return err
	}
	if err := errors.Join(pause(ctx, during), s.Primary.Halt(), s.Disk.Repair()); err != nil {
		return err
	}
	return s.Primary.Resume(ctx)
}

// Failover loses the primary and promotes the standby. What was committed in the time
// before is lost where behind is not 0: the standby is stopped for so long. The old
// primary comes back as the standby of the new one.
func (s *Site) Failover(ctx context.Context, behind time.Duration) error {
	return s.FailoverWith(ctx, behind, FailoverSteps{})
}

// FailoverSteps are called during a failover; each may be nil.
type FailoverSteps struct {
	// Halt is called before the primary is lost.
	Halt func()
	// Promoted is called when the standby, then Primary, is a primary. Nobody has written
	// to it, and nobody can until it returns.
	Promoted func(ctx context.Context) error
}

// FailoverWith is Failover with steps between. Promoted needs a standby that is behind.
func (s *Site) FailoverWith(ctx context.Context, behind time.Duration, steps FailoverSteps) error {
	const readOnly = "default_transaction_read_only"
	if behind > 0 {
		if steps.Promoted != nil {
			// It holds from the standby's next start.
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
		// What the new primary has committed so far waited for no standby: the next failover
		// would lose it.
		return errors.Join(s.Primary.Set(ctx, "synchronous_standby_names", "*"), s.Primary.awaitSynchronous(ctx))
	}
	return nil
}

// SetClock sets the clock that the replicas see forward by a time, or back where that is
// negative. See StartClock.
func (s *Site) SetClock(ctx context.Context, by time.Duration) error {
	return s.Primary.Exec(ctx, fmt.Sprintf(`UPDATE clock SET ahead = make_interval(secs => %f)`, by.Seconds()))
}

// StartClock makes SetClock work for sessions that begin later: functions of the schema
// come before the server's own. The database has been migrated before.
func (s *Site) StartClock(ctx context.Context) error {
	return s.Primary.Exec(ctx, `
CREATE TABLE clock AS SELECT interval '0' AS ahead;
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT pg_catalog.clock_timestamp() + (SELECT ahead FROM public.clock)';
CREATE FUNCTION statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT pg_catalog.statement_timestamp() + (SELECT ahead FROM public.clock)';
ALTER ROLE byre SET search_path = public, pg_catalog`)
}

// pause waits.
func pause(ctx context.Context, during time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(during):
		return nil
	}
}
