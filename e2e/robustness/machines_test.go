package robustness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"byre/e2e/programs"
)

// edit replaces a text of a file of byre.
type edit struct{ file, old, new string }

// seededMachines are faults of byre itself, which the judge must find on two machines.
var seededMachines = []struct {
	name string
	// kind is that of the machines; empty means Machines.
	kind   string
	edits  []edit
	inject func(ctx context.Context, e *Env, faulty string) error
}{
	{
		name: "a standby that takes over with a hole in its copy",
		kind: MachinesSync,
		edits: []edit{
			{"sqlstore/replication/restore.go", "if f.seen <= f.last {", "if true {"},
			{"sqlstore/replication/standby.go", "if err != nil || !state.IsReachedBy(at) {", "if err != nil {"},
		},
		inject: func(ctx context.Context, e *Env, faulty string) error {
			_, standby, _, _ := e.both()
			standby.Kill()
			standby.Config.Program = faulty
			if err := standby.follow(ctx); err != nil {
				return err
			}
			if _, _, err := e.loseChange(ctx); err != nil {
				return err
			}
			return errors.Join(e.takesOver(ctx, e.recorder.Lose()), e.AwaitWrites(ctx, calm))
		},
	},
	{
		name:  "a server that serves a disk that was rolled back",
		kind:  MachinesSync,
		edits: []edit{{"sqlstore/replication/standby.go", "state.IsReachedBy(s.own) && !isClone", "true || isClone"}},
		inject: func(ctx context.Context, e *Env, faulty string) error {
			return errors.Join(e.rollBack(ctx, faulty), e.AwaitWrites(ctx, calm))
		},
	},
	{
		name: "a server that answers after its lease has ended",
		edits: []edit{
			{"sqlstore/sqlite/commit.go", "if err := o.Fence(); err != nil {", "if err := error(nil); err != nil {"},
			{"apiserver/server/standby.go", "if err := fence(); err != nil {", "if err := error(nil); err != nil {"},
			{"cmd/byre/standby.go", "os.Exit(1) //nolint", "return //nolint"},
		},
		inject: func(ctx context.Context, e *Env, faulty string) error {
			// The server that serves begins again, with the fault.
			holder, _, _, _ := e.both()
			holder.Kill()
			holder.Config.Program = faulty
			if err := errors.Join(holder.Start(ctx), e.awaitHolder(ctx, holder), e.AwaitWrites(ctx, calm),
				holder.Suspend()); err != nil {
				return err
			}
			err := e.takesOver(ctx, e.recorder.Lose())
			return errors.Join(err, e.AwaitWrites(ctx, calm), holder.Resume(), e.AwaitWrites(ctx, calm))
		},
	},
	{
		name:  "a server that takes a lease which has not ended",
		edits: []edit{{"sqlstore/replication/lease.go", "c.clock()-c.since >= c.length*4/5", "true"}},
		inject: func(ctx context.Context, e *Env, faulty string) error {
			_, standby, _, _ := e.both()
			standby.Kill()
			standby.Config.Program = faulty
			loss := e.recorder.Lose()
			return errors.Join(standby.Start(ctx), e.takesOver(ctx, loss), e.AwaitWrites(ctx, calm))
		},
	},
	{
		name:  "a server that continues a copy without what has changed since",
		kind:  MachinesSync,
		edits: []edit{{"sqlstore/replication/resume.go", " || [sumSize]byte(known[begin:]) != sumOf(page)", ""}},
		inject: func(ctx context.Context, e *Env, faulty string) error {
			holder, _, _, _ := e.both()
			holder.Kill()
			holder.Config.Program = faulty
			err := errors.Join(holder.Start(ctx), e.awaitHolder(ctx, holder), e.AwaitWrites(ctx, calm), e.Pause(ctx, copied))
			if err != nil {
				return err
			}
			loss := e.recorder.Lose()
			holder.Kill()
			return errors.Join(e.takesOver(ctx, loss), e.AwaitWrites(ctx, calm))
		},
	},
	{
		name:  "a takeover without an epoch",
		edits: []edit{{"sqlstore/sqlite/lineage.go", `case isLeft || stored == "":`, `case isLeft || stored != "":`}},
		inject: func(ctx context.Context, e *Env, faulty string) error {
			holder, standby, _, _ := e.both()
			standby.Kill()
			standby.Config.Program = faulty
			if err := errors.Join(standby.follow(ctx), e.AwaitWrites(ctx, calm)); err != nil {
				return err
			}
			loss := e.recorder.Lose()
			holder.Kill()
			return e.takesOver(ctx, loss)
		},
	},
}

// TestMachines_SeededFaultsAreFound builds byre with a fault, and expects that the episode fails. It is a part of
// "make robustness".
func TestMachines_SeededFaultsAreFound(t *testing.T) {
	if *duration == 0 {
		t.Skip("building byre takes a minute each time: -duration asks for it")
	}
	for _, s := range seededMachines {
		t.Run(s.name, func(t *testing.T) {
			faulty := buildEdited(t, s.edits)
			e := startEnv(t, cmp.Or(s.kind, Machines), Fault{})
			p := &episode{Env: e, namespace: "seeded",
				fault: Fault{Name: s.name, Inject: func(ctx context.Context, e *Env) error {
					return s.inject(ctx, e, faulty)
				}}}
			result, _, err := p.run(t.Context(), options)
			switch {
			case err != nil:
				t.Logf("found: %v", err)
			case len(result.Violations) > 0:
				t.Logf("found: %s", result.Violations[0])
			default:
				t.Errorf("not found in %d operations", result.Operations)
			}
		})
	}
}

// buildEdited builds byre with other texts in its files.
func buildEdited(t *testing.T, edits []edit) (program string) {
	t.Helper()
	dir, replaced := t.TempDir(), map[string]string{}
	for i, edit := range edits {
		path := filepath.Join(programs.Root(), edit.file)
		text, err := os.ReadFile(path)
		if err != nil || strings.Count(string(text), edit.old) != 1 {
			t.Fatalf("%s does not have %q once: %v", edit.file, edit.old, err)
		}
		replaced[path] = filepath.Join(dir, fmt.Sprint(i, ".go"))
		if err := os.WriteFile(replaced[path], []byte(strings.Replace(string(text), edit.old, edit.new, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "byre")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program,
		"./cmd/byre")
	build.Dir = programs.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}
