package robustness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

var isLongUpgrade = flag.Bool("upgrade", false, "upgrade from each older program, and fail without its source")

// released are commits that users run, the newest last. Each release adds its own.
var released = []string{programs.Oldest}

// oldestSteps are migrations, one for each database. A database of before them is not migrated.
var oldestSteps = []string{
	"migrations/postgres/0001_store.up.sql",
	"migrations/sqlite/0001_store.up.sql",
}

// olderCommits returns the commits whose programs the tests begin with: the one before each
// migration from oldestSteps on, and those in released. None is twice in it.
func olderCommits(ctx context.Context) (commits []string, err error) {
	var all []string
	for _, oldest := range oldestSteps {
		steps, err := filepath.Glob(filepath.Join("..", "..", filepath.Dir(oldest), "*.up.sql"))
		if err != nil {
			return nil, err
		}
		for _, step := range steps {
			if filepath.Base(step) <= filepath.Base(oldest) {
				continue
			}
			commit, err := programs.CommitBefore(ctx, filepath.Join(filepath.Dir(oldest), filepath.Base(step)))
			if err != nil {
				return nil, err
			}
			all = append(all, commit)
		}
	}
	for _, revision := range released {
		commit, err := programs.Commit(ctx, revision)
		if err != nil {
			return nil, err
		}
		all = append(all, commit)
	}
	for _, commit := range all {
		if !slices.Contains(commits, commit) {
			commits = append(commits, commit)
		}
	}
	return commits, nil
}

// olderPrograms returns the older programs by the names of their tests. Without -upgrade it returns
// only the one that has fewer migrations than this program in each database.
func olderPrograms(ctx context.Context) (map[string]string, error) {
	if path := os.Getenv(programs.OlderVariable); path != "" {
		path, err := filepath.Abs(path)
		return map[string]string{filepath.Base(path): path}, err
	}
	commits, err := olderCommits(ctx)
	if err != nil {
		return nil, err
	}
	if !*isLongUpgrade {
		commits = commits[:min(len(commits), 1)]
	}
	paths := make(map[string]string)
	for _, commit := range commits {
		if paths[commit[:7]], err = programs.BuildOlder(ctx, commit); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// TestUpgrade_KeepsPromisesUnderLoad replaces the processes of an older release by those of
// this one and back again, as docs/operations.md says, while clients use byre.
func TestUpgrade_KeepsPromisesUnderLoad(t *testing.T) {
	all, err := olderPrograms(t.Context())
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
	e, err := newEnv(t, newDatabase(t, kind, pgtest.SiteConfig{Replicas: n}), n)
	if err != nil {
		t.Fatal(err)
	}
	e.NoTouch = true
	for _, r := range e.Replicas {
		r.Config.Program = older
	}
	if err := e.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	u := upgrade{older: older, newer: programs.Byre.Path(), endpoint: e.Replicas[0].Config.Endpoint}
	runFault(t, e, Fault{Name: "upgrade of each process in turn", Inject: u.up})
	if t.Failed() {
		return
	}
	back := Fault{Name: "downgrade of each process in turn", Inject: u.downInTurn}
	if isNewer, out, err := u.isNewerSchema(t.Context()); err != nil {
		t.Fatalf("migrate status of the older program: %v: %s", err, out)
	} else if isNewer {
		back = Fault{Name: "downgrade of all processes", Inject: u.down}
	}
	for _, f := range []Fault{back, {Name: "upgrade again", Inject: u.up}} {
		runFault(t, e, f)
		if t.Failed() {
			return
		}
	}
}

// upgrade replaces one program by another, and back.
type upgrade struct{ older, newer, endpoint string }

// isNewerSchema reports whether the schema is newer than the older program's.
func (u upgrade) isNewerSchema(ctx context.Context) (isNewer bool, out []byte, err error) {
	out, err = exec.CommandContext(ctx, u.older, "migrate", "status", "--endpoint", u.endpoint).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 4 {
		return true, out, nil
	}
	return false, out, err
}

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
	if isNewer, out, err := u.isNewerSchema(ctx); err != nil {
		return fmt.Errorf("migrate status of the older program: %w: %s", err, out)
	} else if !isNewer {
		return nil
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

// downInTurn replaces one process after the other by the older program, which has the same schema.
func (u upgrade) downInTurn(ctx context.Context, e *Env) error { return replaceEach(ctx, e, u.older) }

// down stops all processes, takes the schema back to the older program's, and starts that.
func (u upgrade) down(ctx context.Context, e *Env) error {
	if err := e.onAll((*Replica).Stop); err != nil {
		return err
	}
	for n := 0; ; n++ {
		isNewer, out, err := u.isNewerSchema(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("migrate status of the older program: %w: %s", err, out)
		case n > 10:
			return fmt.Errorf("after %d steps the schema is still newer: %s", n, out)
		case !isNewer:
			return u.startOlder(ctx, e)
		}
		if out, err := exec.CommandContext(ctx, u.newer, "migrate", "down", "--endpoint", u.endpoint).CombinedOutput(); err != nil {
			return fmt.Errorf("migrate down: %w: %s", err, out)
		}
	}
}

func (u upgrade) startOlder(ctx context.Context, e *Env) error {
	for _, r := range e.Replicas {
		r.Config.Program = u.older
	}
	return e.onAll(func(r *Replica) error { return r.Start(ctx) })
}
