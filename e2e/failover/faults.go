package failover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"byre/e2e/failover/processes"
	"byre/e2e/robustness"
)

// fault is something that happens to a cluster.
type fault struct {
	name string
	// inject breaks something of the primary and returns when it is repaired. It calls lose at
	// the moment from which on an asynchronous standby may lack what is acknowledged.
	inject func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error
	// restarts says that the primary's own server may become a primary again on a new timeline, which byre can't
	// tell from a restore: a new epoch may begin although nothing is lost.
	restarts bool
	// needs reports whether a cluster has what the fault breaks; nil for every cluster.
	needs func(c *cluster) bool
}

// writesAfter is how many writes must be acknowledged while a primary is away, and after it.
const writesAfter = 20

// faults are those of every topology.
var faults = []fault{
	{name: "kill -9 of the primary's PostgreSQL", restarts: true,
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			lose()
			if err := primary.killServer(); err != nil || !c.leavesOld {
				return err
			}
			return c.replace(ctx, e, primary)
		}},
	{name: "kill -9 of the primary and its manager",
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			lose()
			return c.replace(ctx, e, primary)
		}},
	{name: "SIGSTOP of the primary and its manager until another one is written to",
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			lose()
			if err := primary.process.signal(syscall.SIGSTOP); err != nil {
				return err
			}
			_, err := c.awaitReplaced(ctx, primary)
			if err == nil {
				err = e.AwaitWrites(ctx, writesAfter)
			}
			err = errors.Join(err, primary.process.signal(syscall.SIGCONT))
			if err != nil || !c.leavesOld {
				return err
			}
			return c.replace(ctx, e, primary)
		}},
	{name: "switchover",
		inject: func(ctx context.Context, c *cluster, _ *robustness.Env, primary *node, lose func()) error {
			lose()
			if err := c.switchover(ctx, primary); err != nil {
				return err
			}
			_, err := c.awaitReplaced(ctx, primary)
			return err
		}},
	{name: "the standbys are cut off for 1 s; then kill -9 of the primary and its manager",
		inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
			repair, err := c.cutOff(primary)
			if err != nil {
				return err
			}
			err = e.Pause(ctx, time.Second)
			if err == nil {
				lose()
				err = primary.process.kill()
			}
			if err = errors.Join(err, repair()); err != nil {
				return err
			}
			return c.replace(ctx, e, primary)
		}},
	{name: "the standbys replay nothing, until clients have written 100 times", inject: func(
		ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func(),
	) error {
		lose()
		return errors.Join(c.onStandbys(ctx, primary, `SELECT pg_wal_replay_pause()`), e.AwaitWrites(ctx, 100),
			c.onStandbys(ctx, primary, `SELECT pg_wal_replay_resume()`))
	}},
}

// onStandbys executes a statement on all standbys.
func (c *cluster) onStandbys(ctx context.Context, primary *node, statement string) error {
	for _, n := range c.nodes {
		if n == primary {
			continue
		}
		if err := n.execute(ctx, "postgres", statement); err != nil {
			return err
		}
	}
	return nil
}

// cutOff cuts the standbys off from the primary, until repair is called: what the primary has sent
// meanwhile does not reach an asynchronous standby.
func (c *cluster) cutOff(primary *node) (repair func() error, err error) {
	if primary.proxy != nil {
		primary.proxy.Blackhole()
		return func() error {
			primary.proxy.Forward()
			return nil
		}, nil
	}
	if primary.inbound != nil {
		primary.inbound.cut()
		return func() error {
			primary.inbound.mend()
			return nil
		}, nil
	}
	var receivers []processes.Process
	for _, n := range c.nodes {
		all, err := n.process.all()
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			if strings.Contains(p.Title, "walreceiver") {
				receivers = append(receivers, p)
			}
		}
	}
	end := syscall.SIGKILL // what it has not read is lost
	if c.isSynchronous {
		end = syscall.SIGCONT
	}
	return func() error { return processes.Signal(receivers, end) }, processes.Signal(receivers, syscall.SIGSTOP)
}

// replace kills the primary and its manager, if they run, and starts them again when another node is written to.
func (c *cluster) replace(ctx context.Context, e *robustness.Env, primary *node) error {
	if err := primary.process.kill(); err != nil {
		return err
	}
	if _, err := c.awaitReplaced(ctx, primary); err != nil {
		return err
	}
	if err := e.AwaitWrites(ctx, writesAfter); err != nil {
		return err
	}
	return primary.resume()
}

// on turns the fault into one of package robustness.
func (f fault) on(c *cluster) robustness.Fault {
	return robustness.Fault{Name: f.name, Inject: func(ctx context.Context, e *robustness.Env) error {
		primary, err := c.awaitHealthy(ctx)
		if err != nil {
			return err
		}
		before, err := c.epochs(ctx)
		if err != nil {
			return err
		}
		if err := f.inject(ctx, c, e, primary, func() { e.Recorder().Lose() }); err != nil {
			return err
		}
		if _, err := c.awaitHealthy(ctx); err != nil {
			return err
		}
		if err := e.AwaitWrites(ctx, writesAfter); err != nil {
			return err
		}
		after, err := c.epochs(ctx)
		if err != nil {
			return err
		}
		loss := e.Recorder().Loss()
		switch begun := len(after) - len(before); {
		case begun == 0:
			e.Recorder().Keep()
		case begun == 1 && (!c.isSynchronous || f.restarts):
			loss.Common = after[len(before)]
		default:
			return fmt.Errorf("%d epochs have begun", begun)
		}
		return nil
	}}
}
