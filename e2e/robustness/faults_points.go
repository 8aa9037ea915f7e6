package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"

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
			Databases: []string{SQLite},
			IsLong:    point != "during a transaction",
			Inject:    func(ctx context.Context, e *Env) error { return e.killAt(ctx, point, "POWER=fails") },
		})
	}
	return all
}

// killAt runs byre with a driver that kills it at a point, again and again, and then byre
// as it is.
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
		if err := r.Start(ctx); err != nil {
			// It may be killed while it starts, which tests the start too.
			continue
		}
		select {
		case <-r.Server.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.Config = asItIs
	return r.Start(ctx)
}
