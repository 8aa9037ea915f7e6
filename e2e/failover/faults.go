package failover

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

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
}

// writesAfter is how many writes must be acknowledged while a primary is away, and after it.
const writesAfter = 20

// faults are those of every topology.
var faults = []fault{
	{name: "kill -9 of the primary's PostgreSQL", restarts: true, inject: func(_ context.Context, _ *cluster, _ *robustness.Env, primary *node, lose func()) error {
		lose()
		return primary.killServer()
	}},
	{name: "kill -9 of the primary and its manager", inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
		lose()
		return c.replace(ctx, e, primary)
	}},
	{name: "SIGSTOP of the primary and its manager until another one is written to", inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
		lose()
		if err := primary.process.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		_, err := c.awaitReplaced(ctx, primary)
		if err == nil {
			err = e.AwaitWrites(ctx, writesAfter)
		}
		return errors.Join(err, primary.process.signal(syscall.SIGCONT))
	}},
	{name: "switchover", inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
		lose()
		if err := c.switchover(ctx, primary); err != nil {
			return err
		}
		_, err := c.awaitReplaced(ctx, primary)
		return err
	}},
	{name: "the standbys are cut off for 1 s; then kill -9 of the primary and its manager", inject: func(ctx context.Context, c *cluster, e *robustness.Env, primary *node, lose func()) error {
		primary.proxy.Blackhole()
		defer primary.proxy.Forward()
		if err := e.Pause(ctx, time.Second); err != nil {
			return err
		}
		lose()
		return c.replace(ctx, e, primary)
	}},
}

// replace kills the primary and its manager, and starts them again when another node is written to.
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
	return robustness.Fault{Name: f.name, LosesCommits: !c.isSynchronous, Inject: func(ctx context.Context, e *robustness.Env) error {
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
