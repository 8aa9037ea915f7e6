package robustness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

var isLongUpgrade = flag.Bool("upgrade", false, "upgrade from each older schema, and fail without an older program")

// olderSteps are migrations, the newest last. The tests begin with the program of the commit
// before the one that added each. Still older programs lack flags that the tests use.
var olderSteps = []string{
	"migrations/postgres/0004_archive.up.sql",
	"migrations/postgres/0005_trigger_schemas.up.sql",
}

// TestUpgrade_KeepsPromisesUnderLoad replaces the processes of an older release by those of
// this one and back again, as docs/operations.md says, while clients use byre.
func TestUpgrade_KeepsPromisesUnderLoad(t *testing.T) {
	steps := olderSteps
	if !*isLongUpgrade {
		steps = steps[:1]
	}
	for _, step := range steps {
		older, err := programs.BuildOlder(t.Context(), step)
		if errors.Is(err, programs.ErrNoHistory) && !*isLongUpgrade {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{SQLite, Postgres} {
			t.Run(kind+" from before "+filepath.Base(step), func(t *testing.T) {
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
	e, err := newEnv(t, newDatabase(t, kind, pgtest.SiteConfig{Replicas: n}), n)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range e.Replicas {
		r.Config.Program = older
	}
	if err := e.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	u := upgrade{older: older, newer: programs.Byre.Path(), endpoint: e.Replicas[0].Config.Endpoint}
	for _, f := range []Fault{
		{Name: "upgrade of each process in turn", Inject: u.up},
		{Name: "downgrade of all processes", Inject: u.down},
		{Name: "upgrade again", Inject: u.up},
	} {
		runFault(t, e, f)
		if t.Failed() {
			return
		}
	}
}

// upgrade replaces one program by another, and back.
type upgrade struct{ older, newer, endpoint string }

// up replaces one process after the other, so that both programs serve for a while. During
// that time the older program must refuse to start, with an error that names the newer
// schema.
func (u upgrade) up(ctx context.Context, e *Env) error {
	for _, r := range e.Replicas {
		if err := r.Stop(); err != nil {
			return err
		}
		r.Config.Program = u.newer
		if err := r.Start(ctx); err != nil {
			return err
		}
		if err := e.AwaitWrites(ctx, 200); err != nil {
			return err
		}
	}
	dir := filepath.Join(e.Dir, "refused")
	if err := os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Join(e.Replicas[0].Config.Dir, "pki"))); err != nil && !errors.Is(err, os.ErrExist) {
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

// down stops all processes, takes the schema back to the older program's, and starts that.
func (u upgrade) down(ctx context.Context, e *Env) error {
	if err := e.onAll((*Replica).Stop); err != nil {
		return err
	}
	for n := 0; ; n++ {
		out, err := exec.CommandContext(ctx, u.older, "migrate", "status", "--endpoint", u.endpoint).CombinedOutput()
		if err == nil {
			break
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 4 || n > 10 {
			return fmt.Errorf("migrate status of the older program: %w: %s", err, out)
		}
		if out, err := exec.CommandContext(ctx, u.newer, "migrate", "down", "--endpoint", u.endpoint).CombinedOutput(); err != nil {
			return fmt.Errorf("migrate down: %w: %s", err, out)
		}
	}
	for _, r := range e.Replicas {
		r.Config.Program = u.older
	}
	return e.onAll(func(r *Replica) error { return r.Start(ctx) })
}
