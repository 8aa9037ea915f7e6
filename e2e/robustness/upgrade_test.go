package robustness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

var isLongUpgrade = flag.Bool("upgrade", false, "upgrade from each older program, and fail without its source")

// TestUpgrade_KeepsPromisesUnderLoad replaces the processes of an older release by those of
// this one and back again, as docs/operations/upgrade.md says, while clients use byre.
func TestUpgrade_KeepsPromisesUnderLoad(t *testing.T) {
	all, err := programs.Older(t.Context(), *isLongUpgrade)
	if errors.Is(err, programs.ErrNoHistory) && !*isLongUpgrade {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, older := range all {
		for _, kind := range []string{SQLite, Postgres} {
			t.Run(kind+" from "+name, func(t *testing.T) {
				t.Parallel()
				testUpgrade(t, kind, older)
			})
		}
	}
}

func testUpgrade(t *testing.T, kind, older string) {
	n := 1
	if kind == Postgres {
		n = 2
	}
	e, err := NewEnv(t, newDatabase(t, kind, pgtest.SiteConfig{Replicas: n}), n)
	if err != nil {
		t.Fatal(err)
	}
	e.NoTouch = true
	for _, r := range e.Replicas {
		r.Config.Program = older
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	u := upgrade{older: older, newer: programs.Byre.Path(), endpoint: e.Replicas[0].Config.Endpoint}
	RunFault(t, e, Fault{Name: "upgrade of each process in turn", Inject: u.up}, *out)
	if t.Failed() {
		return
	}
	back := Fault{Name: "downgrade of each process in turn", Inject: u.downInTurn}
	if isNewer, err := programs.IsNewerSchema(t.Context(), older, u.endpoint); err != nil {
		t.Fatal(err)
	} else if isNewer {
		back = Fault{Name: "downgrade of all processes", Inject: u.down}
	}
	for _, f := range []Fault{back, {Name: "upgrade again", Inject: u.up}} {
		RunFault(t, e, f, *out)
		if t.Failed() {
			return
		}
	}
}

// upgrade replaces one program by another, and back.
type upgrade struct{ older, newer, endpoint string }

// replaceEach replaces one process after the other, so that both programs serve for a while.
func replaceEach(ctx context.Context, e *Env, program string) error {
	for _, r := range e.Replicas {
		if err := r.Stop(); err != nil {
			return err
		}
		r.Config.Program = program
		if err := r.Start(ctx); err != nil {
			return err
		}
		if err := e.AwaitWrites(ctx, 200); err != nil {
			return err
		}
	}
	return nil
}

// up replaces one process after the other. If the schema is newer then, the older program must
// refuse to start, with an error that says so.
func (u upgrade) up(ctx context.Context, e *Env) error {
	if err := replaceEach(ctx, e, u.newer); err != nil {
		return err
	}
	if isNewer, err := programs.IsNewerSchema(ctx, u.older, u.endpoint); err != nil || !isNewer {
		return err
	}
	dir := filepath.Join(e.Dir, "refused")
	if err := os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Join(e.Replicas[0].Config.Dir, "pki"))); err != nil &&
		!errors.Is(err, os.ErrExist) {
		return err
	}
	refused, err := servers.Byre{Dir: dir, Endpoint: u.endpoint, Program: u.older}.Start(ctx)
	if err == nil {
		refused.Kill()
		return errors.New("the older program has started on the newer schema")
	}
	if !strings.Contains(err.Error(), "newer version of byre") && e.Database.Kind == Postgres {
		return fmt.Errorf("the older program on the newer schema: %w", err)
	}
	return nil
}

// downInTurn replaces one process after the other by the older program, which has the same schema.
func (u upgrade) downInTurn(ctx context.Context, e *Env) error { return replaceEach(ctx, e, u.older) }

// down stops all processes, takes the schema back to the older program's, and starts that.
func (u upgrade) down(ctx context.Context, e *Env) error {
	if err := e.onAll((*Replica).Stop); err != nil {
		return err
	}
	if err := programs.RevertSchema(ctx, u.newer, u.older, u.endpoint); err != nil {
		return err
	}
	for _, r := range e.Replicas {
		r.Config.Program = u.older
	}
	return e.onAll(func(r *Replica) error { return r.Start(ctx) })
}
