package robustness

import (
	"context"
	"slices"

	"byre/sqlstore/postgres/pgtest"
)

// Fault is something that breaks while clients use byre.
type Fault struct {
	// Name says what happens, in a few words.
	Name string
	// Group is its row in docs/reliability.md, which it shares with other faults.
	Group string
	// Databases are the kinds that it concerns; none means SQLite and Postgres.
	Databases []string
	// Site is what the fault needs of PostgreSQL: a standby, a disk. A fault with one has
	// an Env of its own.
	Site pgtest.SiteConfig
	// Prepare changes an Env before its processes are started the first time: another
	// program, flags, a proxy before the database. A fault with Prepare has an Env of
	// its own; the others share one. It may register t.Cleanup by Env.TB.
	Prepare func(ctx context.Context, e *Env) error
	// Inject breaks something while clients are active, and returns when it is repaired:
	// processes that it ended have been started again. An error fails the test. If the database may forget
	// acknowledged writes, as an asynchronous standby does that takes over, Inject calls
	// Recorder.Lose, and the history before and that after are judged apart.
	Inject func(ctx context.Context, e *Env) error
	// IsLong keeps the fault out of the short form.
	IsLong bool
}

// isAlone reports whether the fault has an Env of its own.
func (f Fault) isAlone() bool { return f.Prepare != nil || f.Site != (pgtest.SiteConfig{}) }

// concerns reports whether the fault applies to a database.
func (f Fault) concerns(database string) bool {
	return len(f.Databases) == 0 && !isMachines(database) || slices.Contains(f.Databases, database)
}

// Faults are all faults, in the order in which they run.
func Faults() []Fault {
	return slices.Concat(
		inGroup("processes are killed, stopped, restarted", processFaults()),
		inGroup(killsAtAPoint, pointFaults()),
		inGroup("SQLite's files fail, are locked, are read short", vfsFaults()),
		postgresFaults(),
		inGroup("machines and the way to the bucket", machineFaults()),
		inGroup("clocks are set", clockFaults()),
	)
}

const killsAtAPoint = "kill -9 or SIGSTOP at a point of a write or a compaction"

// inGroup puts those faults into a group that are in none.
func inGroup(name string, faults []Fault) []Fault {
	for i := range faults {
		if faults[i].Group == "" {
			faults[i].Group = name
		}
	}
	return faults
}
