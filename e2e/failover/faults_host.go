package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"byre/e2e/robustness"
	"byre/sqlstore/postgres/pgtest"
)

const (
	// diskSize is the size of a small disk in MiB: the write-ahead log takes up to 80.
	diskSize = 400
	// breakage is how long a fault lasts at most on which the manager does not promote a standby. Patroni and
	// pg_auto_failover would have done so by then.
	breakage = 60 * time.Second
)

// hostFaults are those of the network to etcd or the monitor, of disks and of clocks.
var hostFaults = []fault{
	{
		name: "the network between the primary and etcd or the monitor swallows everything", restarts: true,
		needs: func(c *cluster) bool { return c.nodes[0].store != nil },
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			lose()
			primary.store.cut()
			defer primary.store.mend()
			return c.awaitReaction(ctx, e, primary)
		},
	},
	{
		name: "the network between the primary and all but byre swallows everything", restarts: true,
		needs: func(c *cluster) bool {
			return c.nodes[0].store != nil && (c.nodes[0].proxy != nil || c.nodes[0].inbound != nil)
		},
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			lose()
			repair, err := c.cutOff(primary)
			if err != nil {
				return err
			}
			primary.store.cut()
			defer primary.store.mend()
			return errors.Join(c.awaitReaction(ctx, e, primary), repair())
		},
	},
	{
		name: "the primary's disk is full; after 5 s its write-ahead log needs a new file", restarts: true,
		// Without a synchronous standby repmgr does not attach the other standby to the new primary: the old one panics in
		// the middle of a record, and repmgr finds that the timeline began before the page that the standby has received.
		needs: func(c *cluster) bool { return c.nodes[0].disk != nil && (c.isSynchronous || !c.leavesOld) },
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			lose()
			if err := errors.Join(primary.disk.Fill(), e.Pause(ctx, 5*time.Second)); err != nil {
				return err
			}
			// The second one needs a file that there is no room for: the server panics, and the statement fails.
			_ = primary.execute(ctx, "postgres",
				`SELECT pg_switch_wal()`, `CREATE TABLE full_disk ()`, `SELECT pg_switch_wal()`, `DROP TABLE full_disk`)
			_, err := c.awaitReplacedFor(ctx, primary, breakage)
			if err = errors.Join(err, primary.disk.Free()); err != nil || !c.leavesOld {
				return err
			}
			return c.replace(ctx, e, primary)
		},
	},
	{
		name: "the clock of the primary's host is set an hour ahead, an hour back, and right", restarts: true,
		needs: func(c *cluster) bool { return c.nodes[0].clock != "" },
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			lose()
			for _, offset := range []time.Duration{time.Hour, -time.Hour, 0} {
				if err := errors.Join(primary.setClock(ctx, c, offset), e.AwaitWrites(ctx, writesAfter)); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		name: "kill -9 of each member of etcd in turn, for 10 s", restarts: true,
		needs: func(c *cluster) bool { return c.etcd != nil && len(c.etcd.members) > 1 },
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, _ *node, lose func()) error {
			lose()
			for _, m := range c.etcd.members {
				if err := m.process.kill(); err != nil {
					return err
				}
				if err := errors.Join(e.Pause(ctx, 10*time.Second), m.start(), e.AwaitWrites(ctx, writesAfter)); err != nil {
					return err
				}
			}
			return nil
		},
	},
}

// awaitReplacedFor waits until another node is a primary, for a time at most.
func (c *cluster) awaitReplacedFor(ctx context.Context, old *node, limit time.Duration) (isReplaced bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err = c.awaitReplaced(waiting, old)
	if waiting.Err() != nil {
		return false, ctx.Err()
	}
	return err == nil, err
}

// awaitReaction waits until another node is a primary and is written to, or until the manager has had enough time.
func (c *cluster) awaitReaction(ctx context.Context, e *robustness.Env, primary *node) error {
	if _, err := c.awaitReplacedFor(ctx, primary, breakage); err != nil {
		return err
	}
	return e.AwaitWrites(ctx, writesAfter)
}

// addHost gives the node's server a clock of its own, and a small disk where the test may mount one. It returns a
// folder for the data, which does not exist yet, and the one with PostgreSQL's programs.
func (n *node) addHost(s *site) (data, bin string) {
	s.Helper()
	data = filepath.Join(s.dir, n.name)
	if os.Getuid() == 0 {
		named := data // turn-off finds the server there
		data = filepath.Join(n.addDisk(s), "data")
		if err := os.Symlink(data, named); err != nil {
			s.Fatal(err)
		}
	}
	return data, n.addClock(s)
}

// addDisk gives the node a small disk, and returns a folder on it.
func (n *node) addDisk(s *site) (dir string) {
	s.Helper()
	n.disk = pgtest.NewDisk(s, diskSize)
	dir, err := n.disk.Mkdir(n.name)
	if err != nil {
		s.Fatal(err)
	}
	return dir
}

// addClock gives the node's server a clock that a file sets, and returns a folder with PostgreSQL's programs that have
// the server use it.
func (n *node) addClock(s *site) (bin string) {
	s.Helper()
	n.clock = s.write(n.name+".clock", "+0")
	library := filepath.Join(s.tools, "usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
	if !isFile(library) {
		s.Fatal("there is no ", library)
	}
	bin = s.mkdir(n.name + ".bin")
	programs, err := os.ReadDir(s.bin())
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range programs {
		if p.Name() == "postgres" || p.Name() == "pg_config" {
			continue
		}
		if err := os.Symlink(filepath.Join(s.bin(), p.Name()), filepath.Join(bin, p.Name())); err != nil {
			s.Fatal(err)
		}
	}
	s.script(n.name+".bin/postgres", fmt.Sprintf(`export LD_PRELOAD=%s FAKETIME_TIMESTAMP_FILE=%s
export FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_CACHE_DURATION=1
exec %s "$@"`, library, n.clock, filepath.Join(s.bin(), "postgres")))
	s.script(n.name+".bin/pg_config", "echo "+bin) // pg_autoctl asks for --bindir
	return bin
}

// setClock sets the clock of the node's server, and waits until it tells that time.
func (n *node) setClock(ctx context.Context, c *cluster, offset time.Duration) error {
	if err := os.WriteFile(n.clock, fmt.Appendf(nil, "%+d", int(offset.Seconds())), 0o600); err != nil {
		return err
	}
	return c.await(ctx, n.name+" tells another time", func() (bool, error) {
		is, err := n.time(ctx)
		return err == nil && time.Until(is).Round(time.Minute) == offset, err
	})
}
