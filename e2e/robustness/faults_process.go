package robustness

import (
	"context"
	"errors"
	"sync"
	"time"
)

// processFaults are those of byre's own processes.
func processFaults() []Fault {
	return []Fault{
		{Name: "nothing breaks", Inject: func(ctx context.Context, e *Env) error { return e.AwaitWrites(ctx, 200) }},
		{Name: "kill -9 of a process", Inject: func(ctx context.Context, e *Env) error {
			e.Replicas[0].Kill()
			return e.Replicas[0].Start(ctx)
		}},
		{Name: "kill -9 of all processes at once", Databases: []string{Postgres},
			Inject: func(ctx context.Context, e *Env) error {
				return e.onAll(func(r *Replica) error {
					r.Kill()
					return r.Start(ctx)
				})
			}},
		{Name: "kill -9 five times, each during the next start's first writes", IsLong: true,
			Inject: func(ctx context.Context, e *Env) error {
				for range 5 {
					e.Replicas[0].Kill()
					if err := e.Replicas[0].Start(ctx); err != nil {
						return err
					}
					if err := e.AwaitWrites(ctx, 5); err != nil {
						return err
					}
				}
				return nil
			}},
		{Name: "SIGSTOP of a process for 3 s", Inject: func(ctx context.Context, e *Env) error {
			return e.suspend(ctx, e.Replicas[0], 3*time.Second)
		}},
		{Name: "SIGSTOP of each process in turn, twenty times for 0.2 s", IsLong: true,
			Inject: func(ctx context.Context, e *Env) error {
				for i := range 20 {
					if err := e.suspend(ctx, e.Replicas[i%len(e.Replicas)], 200*time.Millisecond); err != nil {
						return err
					}
					if err := e.AwaitWrites(ctx, 5); err != nil {
						return err
					}
				}
				return nil
			}},
		{Name: "restart of each process in turn (SIGTERM)", Inject: func(ctx context.Context, e *Env) error {
			for _, r := range e.Replicas {
				if err := r.Stop(); err != nil {
					return err
				}
				if err := r.Start(ctx); err != nil {
					return err
				}
			}
			return nil
		}},
		{
			Name: "compaction every 10 ms down to 100 changes",
			Prepare: func(_ context.Context, e *Env) error {
				for _, r := range e.Replicas {
					r.Config.Args = append(r.Config.Args[:len(r.Config.Args):len(r.Config.Args)], "--retention-changes=100",
						"--compaction-interval=10ms")
				}
				return nil
			},
			Inject: func(ctx context.Context, e *Env) error { return e.AwaitWrites(ctx, 300) },
		},
	}
}

// onAll does something to all replicas at once.
func (e *Env) onAll(do func(*Replica) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(e.Replicas))
	for i, r := range e.Replicas {
		all.Go(func() { errs[i] = do(r) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// suspend stops a process for a while.
func (e *Env) suspend(ctx context.Context, r *Replica, d time.Duration) error {
	if err := r.Suspend(); err != nil {
		return err
	}
	err := e.Pause(ctx, d)
	return errors.Join(err, r.Resume())
}
