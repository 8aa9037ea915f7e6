package robustness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"byre/e2e/programs"
)

// clockFaults set the wall clocks of processes: byre is built with a clock that can be set
// (testdata/clock). Its monotonic clock goes on, as that of a machine does.
func clockFaults() []Fault {
	setTwice := func(by time.Duration) func(ctx context.Context, e *Env) error {
		return func(ctx context.Context, e *Env) error {
			r := e.serving()[0]
			for _, offset := range []time.Duration{by, -by, 0} {
				if err := errors.Join(r.setClock(offset), r.awaitClock(ctx, offset), e.AwaitWrites(ctx, calm)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	all := []Fault{
		{Name: "the clock of a process is set an hour ahead, an hour back, and right", Inject: setTwice(time.Hour)},
		{Name: "the clock of the machine that serves is set ten minutes ahead, ten back, and right", Databases: machineKinds,
			Inject: setTwice(10 * time.Minute)},
		{Name: "the clock of the machine that serves is set an hour ahead, so that S3 refuses its requests",
			Databases: machineKinds,
			Inject: func(ctx context.Context, e *Env) error {
				holder, _, _, _ := e.both()
				var err error
				return errors.Join(e.loseBucket(ctx, func() {
					err = holder.setClock(time.Hour)
				}, func() { err = errors.Join(err, holder.setClock(0)) }), err)
			}},
		{Name: "kill -9 of the machine that serves, whose clock is ten minutes behind; that of the other one is ten ahead",
			Databases: machineKinds,
			Inject: func(ctx context.Context, e *Env) error {
				holder, standby, _, _ := e.both()
				const by = 10 * time.Minute // S3 refuses requests that are a quarter of an hour off
				err := errors.Join(holder.setClock(-by), standby.setClock(by), holder.awaitClock(ctx, -by),
					e.AwaitWrites(ctx, calm))
				return errors.Join(err, e.crash(ctx, func(*Replica) error { return nil }))
			}},
	}
	for i := range all {
		all[i].IsLong, all[i].Prepare = true, withSettableClocks
	}
	return all
}

func withSettableClocks(ctx context.Context, e *Env) error {
	if err := programs.Build(ctx, programs.SettableClock); err != nil {
		return err
	}
	for _, r := range e.Replicas {
		r.Config.Program, r.Config.Env = programs.SettableClock.Path(), append(r.Config.Env, "BYRE_CLOCK="+r.clockFile())
		if err := errors.Join(os.MkdirAll(r.Config.Dir, 0o700), r.setClock(0)); err != nil {
			return err
		}
	}
	return nil
}

func (r *Replica) clockFile() string { return filepath.Join(r.Config.Dir, "clock") }

// setClock sets the wall clock of the process, which notices it within some milliseconds.
func (r *Replica) setClock(offset time.Duration) error {
	temporary := r.clockFile() + ".new"
	if err := os.WriteFile(temporary, []byte(strconv.Itoa(int(offset.Seconds()))), 0o600); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return os.Rename(temporary, r.clockFile())
}

// awaitClock waits until the process tells a time with an offset.
func (r *Replica) awaitClock(ctx context.Context, offset time.Duration) error {
	return await(ctx, "the clock of "+r.Name+" is set", func(ctx context.Context) error {
		response, err := r.get(ctx, "/livez")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		told, err := http.ParseTime(response.Header.Get("Date"))
		if off := time.Since(told) + offset; err == nil && off.Abs() > time.Minute {
			err = fmt.Errorf("it is %v off", off)
		}
		return err
	})
}
