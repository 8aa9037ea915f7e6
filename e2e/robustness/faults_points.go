package robustness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"syscall"

	"byre/e2e/programs"
)

// pointFaults end a process on SQLite at named points: e2e/robustness/faulty has them. On
// PostgreSQL a proxy sees at which statement the process is.
func pointFaults() []Fault {
	var all []Fault
	for _, point := range []string{
		"before a transaction", "during a transaction", "between COMMIT and publishing", "between COMMIT and the answers",
		"before a compaction", "during a compaction", "after a compaction",
	} {
		all = append(all, Fault{
			Name:      "kill -9 " + point + ", three times",
			Databases: []string{SQLite},
			IsLong:    point != "between COMMIT and publishing",
			Inject:    func(ctx context.Context, e *Env) error { return e.killAt(ctx, point) },
		})
	}
	for _, point := range []string{"during a transaction", "between COMMIT and the answers", "during a compaction"} {
		all = append(all, Fault{
			Name:      "the power fails " + point + ", three times: what was not synced is lost in part",
			Group:     "the power fails in a write or a compaction",
			Databases: []string{SQLite},
			IsLong:    point != "during a transaction",
			Inject:    func(ctx context.Context, e *Env) error { return e.killAt(ctx, point, "POWER=fails") },
		})
	}
	return all
}

var errEndedWell = errors.New("exit status 0")

// killAt runs byre three times with a driver that kills it at a point, and then byre without
// that driver.
func (e *Env) killAt(ctx context.Context, point string, env ...string) error {
	r := e.Replicas[0]
	asItIs := r.Config
	defer func() { r.Config = asItIs }()
	if err := r.Stop(); err != nil {
		return err
	}
	r.Config.Program = programs.Faulty.Path()
	for range 3 {
		r.Config.Env = append(env, "KILL_AT="+point, fmt.Sprintf("KILL_AFTER=%d", 5+rand.IntN(20)))
		// It may be killed while it starts, which tests the start too.
		err := r.Start(ctx)
		if err == nil {
			select {
			case <-r.Server.Done():
				err = r.Stop()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !wasKilled(err) {
			return fmt.Errorf("byre ended %s, but not by a kill -9: %w\n%s", point, cmp.Or(err, errEndedWell),
				r.Server.LogTail())
		}
	}
	r.Config = asItIs
	return r.Start(ctx)
}

// wasKilled reports whether a process ended as by kill -9.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
