package robustness

import (
	"context"
	"errors"
	"os/exec"
	"time"

	"byre/e2e/programs"
)

// machineFaults are those of two machines that share a bucket. Each has one takeover or none.
func machineFaults() []Fault {
	all := []Fault{
		{Name: "kill -9 of the machine that serves; it comes back", Inject: func(ctx context.Context, e *Env) error {
			return e.crash(ctx, func(*Replica) error { return nil })
		}},
		{Name: "kill -9 of the machine that serves; it is started again at once", Inject: func(ctx context.Context, e *Env) error {
			holder, _, _, _ := e.both()
			holder.Kill()
			return errors.Join(holder.Start(ctx), e.awaitHolder(ctx, holder))
		}},
		{Name: "kill -9 of the machine that serves; it comes back with an empty disk", Inject: func(ctx context.Context, e *Env) error {
			return e.crash(ctx, (*Replica).wipe)
		}},
		{Name: "SIGSTOP of the machine that serves, until the other one does", Inject: func(ctx context.Context, e *Env) error {
			holder, _, _, _ := e.both()
			if err := holder.Suspend(); err != nil {
				return err
			}
			err := e.takesOver(ctx, e.recorder.Lose())
			return errors.Join(err, e.AwaitWrites(ctx, calm), holder.Resume(), holder.ended(ctx), holder.follow(ctx))
		}},
		{Name: "the network from the machine that serves to the bucket swallows everything", Inject: func(ctx context.Context, e *Env) error {
			_, _, path, _ := e.both()
			return e.loseBucket(ctx, path.Cut, path.Mend)
		}},
		{Name: "the network from both machines to the bucket swallows everything", Inject: func(ctx context.Context, e *Env) error {
			_, _, one, other := e.both()
			return e.loseBucket(ctx, func() { one.Cut(); other.Cut() }, func() { one.Mend(); other.Mend() })
		}},
		{Name: "the network from the standby to the bucket swallows everything for 20 s", Inject: func(ctx context.Context, e *Env) error {
			_, _, _, path := e.both()
			path.Cut()
			defer path.Mend()
			return e.Pause(ctx, 20*time.Second)
		}},
		{Name: "each request to the bucket takes 0.5 s for 20 s", Inject: func(ctx context.Context, e *Env) error {
			_, _, one, other := e.both()
			one.Slow(500 * time.Millisecond)
			other.Slow(500 * time.Millisecond)
			defer one.Mend()
			defer other.Mend()
			return e.Pause(ctx, 20*time.Second)
		}},
		{Name: "kill -9 of the standby; it comes back with an empty disk", Inject: func(ctx context.Context, e *Env) error {
			_, standby, _, _ := e.both()
			standby.Kill()
			return errors.Join(standby.wipe(), standby.follow(ctx))
		}},
		{Name: "SIGTERM of the machine that serves", Inject: func(ctx context.Context, e *Env) error {
			holder, _, _, _ := e.both()
			if err := holder.Stop(); err != nil {
				return err
			}
			err := e.takesOver(ctx, e.recorder.Lose())
			return errors.Join(err, holder.follow(ctx))
		}},
		{Name: "byre takeover", Inject: func(ctx context.Context, e *Env) error {
			holder, _, path, _ := e.both()
			command := exec.CommandContext(ctx, programs.Byre.Path(), "takeover", "--replicate-to", bucketURL, "--yes")
			command.Env = append(command.Environ(), path.Env...)
			if err := command.Start(); err != nil {
				return err
			}
			err := holder.ended(ctx)
			loss := e.recorder.Lose()
			return errors.Join(err, command.Wait(), e.takesOver(ctx, loss), holder.follow(ctx))
		}},
	}
	for i := range all {
		all[i].Databases, all[i].IsLong = machineKinds, true
	}
	return all
}

// crash kills the machine that serves, and starts it again when the other one serves. It does something to its
// disk before.
func (e *Env) crash(ctx context.Context, disk func(*Replica) error) error {
	holder, _, _, _ := e.both()
	loss := e.recorder.Lose()
	holder.Kill()
	err := e.takesOver(ctx, loss)
	return errors.Join(err, disk(holder), holder.follow(ctx))
}

// loseBucket cuts the machine that serves off the bucket until it has ended. Then the other one serves.
func (e *Env) loseBucket(ctx context.Context, cut, mend func()) error {
	holder, _, _, _ := e.both()
	cut()
	err := holder.ended(ctx)
	loss := e.recorder.Lose()
	mend()
	return errors.Join(err, e.takesOver(ctx, loss), holder.follow(ctx))
}
