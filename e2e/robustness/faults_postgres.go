package robustness

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"byre/e2e/robustness/history"
	"byre/e2e/robustness/tables"
	"byre/migrations"
	"byre/sqlstore/postgres/pgtest"
)

// outage is how long a fault lasts that has no length by itself.
const outage = time.Second

// postgresFaults are those of PostgreSQL and of the way to it.
func postgresFaults() []Fault {
	all := slices.Concat(
		inGroup("the network to PostgreSQL", connectionFaults()),
		inGroup(killsAtAPoint, killFaults()),
		inGroup("PostgreSQL or PgBouncer is killed, restarted", serverFaults()),
		inGroup("PostgreSQL's disk is full, read-only", diskFaults()),
		failoverFaults(),
		inGroup("VACUUM FULL, pg_dump, PostgreSQL's clock", operatorFaults()),
	)
	for i := range all {
		all[i].Databases = []string{Postgres}
	}
	return all
}

// site turns a function of pgtest.Site into a fault.
func site(inject func(context.Context, *pgtest.Site) error) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error { return inject(ctx, e.Database.Site) }
}

// connectionFaults are those of the network between byre and the server.
func connectionFaults() []Fault {
	atCommit := func(point pgtest.Point, action pgtest.Action) func(context.Context, *Env) error {
		return site(func(ctx context.Context, s *pgtest.Site) error { return s.AtCommit(ctx, point, action, nil) })
	}
	return []Fault{
		{Name: "all connections to PostgreSQL are dropped", Inject: site(func(ctx context.Context, s *pgtest.Site) error {
			return s.DropConnections(ctx)
		})},
		{Name: "the network to PostgreSQL is slow: 50 ms in each direction for 2 s", IsLong: true,
			Inject: site(func(ctx context.Context, s *pgtest.Site) error {
				return s.Delay(ctx, 50*time.Millisecond, 2*outage)
			})},
		{Name: "the network to PostgreSQL swallows everything for 1 s", IsLong: true,
			Inject: site(func(ctx context.Context, s *pgtest.Site) error {
				return s.Blackhole(ctx, outage)
			})},
		{Name: "the network from one process to PostgreSQL swallows everything for 8 s", IsLong: true,
			Inject: func(ctx context.Context, e *Env) error {
				proxies := e.Database.Site.Replicas[0]
				for _, p := range proxies {
					p.Blackhole()
					defer p.Forward()
				}
				return e.Pause(ctx, 8*time.Second)
			}},
		{Name: "the connection breaks before COMMIT has arrived", IsLong: true, Inject: atCommit(pgtest.Sent, pgtest.Drop)},
		{Name: "the connection breaks before COMMIT is answered", Inject: atCommit(pgtest.Answered, pgtest.Drop)},
		{Name: "the network swallows COMMIT, and what follows on that connection", IsLong: true,
			Inject: atCommit(pgtest.Sent, pgtest.Swallow)},
		{Name: "the network swallows the answer of COMMIT, and what follows on that connection", IsLong: true,
			Inject: atCommit(pgtest.Answered, pgtest.Swallow)},
	}
}

// killFaults end a process of byre, or stop it, at a named point.
func killFaults() []Fault {
	kill := func(name string, isLong bool, failpoint pgtest.Failpoint) Fault {
		return Fault{Name: "kill -9 " + name, IsLong: isLong, Inject: func(ctx context.Context, e *Env) error {
			var killed *Replica
			err := e.Database.Site.AtStatement(ctx, failpoint, pgtest.Drop, func(replica int) {
				killed = e.Replicas[replica]
				killed.Kill()
			})
			if err != nil {
				return err
			}
			return killed.Start(ctx)
		}}
	}
	const write, compact = "INSERT INTO undo_log", "DELETE FROM undo_log"
	return []Fault{
		kill("before COMMIT", true, pgtest.Failpoint{Statement: "COMMIT", After: write, Point: pgtest.Sent}),
		kill("after COMMIT, before its answer", false,
			pgtest.Failpoint{Statement: "COMMIT", After: write, Point: pgtest.Answered}),
		kill("between the answer of COMMIT and the publishing of its changes", true,
			pgtest.Failpoint{Statement: "COMMIT", After: write, Point: pgtest.Delivered}),
		kill("in a compaction, before it deletes", true, pgtest.Failpoint{Statement: compact, Point: pgtest.Sent}),
		kill("in a compaction, after it has deleted", true, pgtest.Failpoint{Statement: compact, Point: pgtest.Answered}),
		kill("in a compaction, after it has moved the compacted revision", true,
			pgtest.Failpoint{Statement: "UPDATE store", After: compact, Point: pgtest.Answered}),
		kill("in a compaction, before COMMIT", true,
			pgtest.Failpoint{Statement: "commit", After: compact, Point: pgtest.Sent}),
		kill("in a compaction, after COMMIT", true,
			pgtest.Failpoint{Statement: "commit", After: compact, Point: pgtest.Answered}),
		{Name: "SIGSTOP of the process that holds the writers' lock, until the other has written 20 times", IsLong: true,
			Inject: func(ctx context.Context, e *Env) error {
				var stopErr error
				err := e.Database.Site.AtCommit(ctx, pgtest.Sent, pgtest.Forward, func(replica int) {
					stopErr = e.Replicas[replica].Suspend()
					stopErr = errors.Join(stopErr, e.AwaitWrites(ctx, 20), e.Replicas[replica].Resume())
				})
				return errors.Join(err, stopErr)
			}},
	}
}

// serverFaults are those of the server's processes, and of PgBouncer before it.
func serverFaults() []Fault {
	return []Fault{
		{Name: "pg_terminate_backend of all sessions", Inject: site(func(ctx context.Context, s *pgtest.Site) error {
			return s.Terminate(ctx)
		})},
		{Name: "kill -9 of one of PostgreSQL's processes", IsLong: true,
			Inject: site(func(ctx context.Context, s *pgtest.Site) error {
				return s.KillBackend(ctx)
			})},
		{Name: "pg_ctl restart -m immediate", Inject: site(func(ctx context.Context, s *pgtest.Site) error {
			return s.Restart(ctx)
		})},
		{Name: "pg_ctl stop -m immediate for 5 s", IsLong: true, Inject: func(ctx context.Context, e *Env) error {
			primary := e.Database.Site.Primary
			if err := errors.Join(primary.Halt(), e.Pause(ctx, 5*time.Second)); err != nil {
				return err
			}
			return primary.Resume(ctx)
		}},
		poolerFault(),
		behindPoolerFault(),
	}
}

// behindPoolerFault breaks the connections between PgBouncer and the server when the server has
// executed a batch, and its answers have not reached PgBouncer.
func behindPoolerFault() Fault {
	return Fault{
		Name: "PgBouncer loses its connection before COMMIT is answered, three times",
		Prepare: func(_ context.Context, e *Env) error {
			pooler := pgtest.NewPooler(e.TB, e.Database.Site.DSN(0))
			for _, r := range e.Replicas {
				r.Config.Endpoint = pooler.DSN()
			}
			return nil
		},
		Inject: site(func(ctx context.Context, s *pgtest.Site) error {
			for range 3 {
				batch := pgtest.Failpoint{Statement: "FOR UPDATE", Point: pgtest.Answered}
				if err := s.AtStatement(ctx, batch, pgtest.Drop, nil); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

// poolerFault has every process reach the server through PgBouncer.
func poolerFault() Fault {
	var pooler *pgtest.Pooler
	return Fault{
		Name: "PgBouncer in transaction mode is killed and comes back after 1 s", IsLong: true,
		Prepare: func(_ context.Context, e *Env) error {
			pooler = pgtest.NewPooler(e.TB, e.Database.Site.Primary.DSN("postgres"))
			for _, r := range e.Replicas {
				r.Config.Endpoint = pooler.DSN()
			}
			return nil
		},
		Inject: func(ctx context.Context, e *Env) error {
			pooler.Kill()
			if err := e.Pause(ctx, outage); err != nil {
				return err
			}
			return pooler.Start(ctx)
		},
	}
}

// diskFaults are those of the server's file system.
func diskFaults() []Fault {
	return []Fault{
		{
			Name: "PostgreSQL's disk is full for 1 s", IsLong: true, Site: pgtest.SiteConfig{Disk: 80},
			Inject: site(func(ctx context.Context, s *pgtest.Site) error { return s.FillDisk(ctx, outage) }),
		},
		{
			Name: "the disk of PostgreSQL's write-ahead log is full for 2 s", IsLong: true,
			Site:   pgtest.SiteConfig{Disk: 24, DiskForWAL: true},
			Inject: site(func(ctx context.Context, s *pgtest.Site) error { return s.FillDisk(ctx, 2*outage) }),
		},
		{
			Name: "PostgreSQL's file system becomes read-only for 1 s", IsLong: true, Site: pgtest.SiteConfig{Disk: 80},
			Inject: site(func(ctx context.Context, s *pgtest.Site) error { return s.FailDisk(ctx, outage) }),
		},
	}
}

// failoverFaults lose the primary.
func failoverFaults() []Fault {
	return append(inGroup("failover to a synchronous standby", synchronousFailovers()),
		inGroup("failover to an asynchronous standby that is 1 s behind", asynchronousFailovers())...)
}

func synchronousFailovers() []Fault {
	return []Fault{
		{
			Name: "failover to a synchronous standby; the old primary comes back as a standby", IsLong: true,
			Site:   pgtest.SiteConfig{Standby: true, Synchronous: true},
			Inject: site(func(ctx context.Context, s *pgtest.Site) error { return s.Failover(ctx, 0) }),
		},
		{
			Name: "failover to a synchronous standby, and back", IsLong: true,
			Site: pgtest.SiteConfig{Standby: true, Synchronous: true},
			Inject: site(func(ctx context.Context, s *pgtest.Site) error {
				if err := s.Failover(ctx, 0); err != nil {
					return err
				}
				return s.Failover(ctx, 0)
			}),
		},
	}
}

func asynchronousFailovers() []Fault {
	return []Fault{
		{
			Name: "failover to an asynchronous standby that is 1 s behind", IsLong: true,
			Site:   pgtest.SiteConfig{Standby: true},
			Inject: func(ctx context.Context, e *Env) error { return loseCommits(ctx, e, nil) },
		},
		{
			Name:   "failover to an asynchronous standby that is 1 s behind; all processes are killed with the primary",
			IsLong: true,
			Site:   pgtest.SiteConfig{Standby: true},
			Inject: func(ctx context.Context, e *Env) error {
				err := loseCommits(ctx, e, func() {
					for _, r := range e.Replicas {
						r.Kill()
					}
				})
				return errors.Join(err, e.onAll(func(r *Replica) error { return r.Start(ctx) }))
			},
		},
		{
			Name: "failover to an asynchronous standby that is 1 s behind; the process that has seen the lost commits is killed with the primary, " +
				"the other one has not seen them", IsLong: true,
			Site: pgtest.SiteConfig{Standby: true},
			Inject: func(ctx context.Context, e *Env) error {
				ahead, survivor := e.Replicas[0], e.Replicas[1]
				err := errors.Join(survivor.Suspend(), loseCommits(ctx, e, ahead.Kill), survivor.Resume())
				if err == nil {
					err = e.AwaitWrites(ctx, calm) // those of the survivor
				}
				return errors.Join(err, ahead.Start(ctx))
			},
		},
	}
}

// loseCommits fails over to a standby that is behind. It calls meanwhile, which may be nil,
// when the primary is about to end.
func loseCommits(ctx context.Context, e *Env, meanwhile func()) error {
	s := e.Database.Site
	var loss *history.Loss
	return s.FailoverWith(ctx, outage, pgtest.FailoverSteps{
		Halt: func() {
			loss = e.recorder.Lose()
			if meanwhile != nil {
				meanwhile()
			}
		},
		Promoted: func(ctx context.Context) error {
			conn, err := tables.Connect(ctx, Postgres, s.Primary.DSN("postgres"))
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			loss.Common, _, err = conn.Counters(ctx)
			return err
		},
	})
}

// operatorFaults are what administrators do, and the clock.
func operatorFaults() []Fault {
	return []Fault{
		{Name: "VACUUM FULL three times", IsLong: true, Inject: func(ctx context.Context, e *Env) error {
			for range 3 {
				if err := e.Database.Exec(ctx, `VACUUM FULL`); err != nil {
					return err
				}
			}
			return nil
		}},
		{Name: "pg_dump three times", IsLong: true, Inject: func(ctx context.Context, e *Env) error {
			program, err := pgtest.Program("pg_dump")
			if err != nil {
				return err
			}
			for range 3 {
				dump := exec.CommandContext(ctx, program, "--file="+filepath.Join(e.Dir, "dump.sql"), e.Database.DSN)
				if out, err := dump.CombinedOutput(); err != nil {
					return errors.Join(err, errors.New(string(out)))
				}
			}
			return nil
		}},
		{
			Name: "PostgreSQL's clock jumps two days forward, three days back, and to the right time", IsLong: true,
			Prepare: func(ctx context.Context, e *Env) error {
				if _, err := migrations.Up(ctx, e.Database.DSN); err != nil {
					return err
				}
				return e.Database.Site.StartClock(ctx)
			},
			Inject: func(ctx context.Context, e *Env) error {
				const day = 24 * time.Hour
				for _, ahead := range []time.Duration{2 * day, -day, 0} {
					if err := errors.Join(e.Database.Site.SetClock(ctx, ahead), e.AwaitWrites(ctx, calm)); err != nil {
						return err
					}
				}
				return nil
			},
		},
	}
}
