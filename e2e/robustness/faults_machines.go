package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"byre/e2e/programs"
)

// machineFaults are those of two machines that share a bucket. Each has one takeover or none.
func machineFaults() []Fault {
	all := []Fault{
		{Name: "kill -9 of the machine that serves; it comes back", Inject: func(ctx context.Context, e *Env) error {
			return e.crash(ctx, func(*Replica) error { return nil })
		}},
		{Name: "kill -9 of the machine that serves; it is started again at once",
			Inject: func(ctx context.Context, e *Env) error {
				holder, _, _, _ := e.both()
				holder.Kill()
				return errors.Join(holder.Start(ctx), e.awaitHolder(ctx, holder))
			}},
		{Name: "kill -9 of the machine that serves; it is started again at once, and kill -9 once its copy is complete",
			Inject: func(ctx context.Context, e *Env) error {
				holder, _, _, _ := e.both()
				holder.Kill()
				// It continues the copy: a complete one would take as long as the database is large.
				err := errors.Join(holder.Start(ctx), e.awaitHolder(ctx, holder), e.AwaitWrites(ctx, calm), e.Pause(ctx, copied))
				if err != nil {
					return err
				}
				if strings.Contains(holder.Server.Log(), "the folder is not continued") {
					return fmt.Errorf("%s begins another copy", holder.Name)
				}
				return e.crash(ctx, func(*Replica) error { return nil })
			}},
		{Name: "kill -9 of the machine that serves; it comes back with an empty disk",
			Inject: func(ctx context.Context, e *Env) error {
				return e.crash(ctx, (*Replica).wipe)
			}},
		{Name: "SIGSTOP of the machine that serves, until the other one does",
			Inject: func(ctx context.Context, e *Env) error {
				holder, _, _, _ := e.both()
				if err := holder.Suspend(); err != nil {
					return err
				}
				err := e.takesOver(ctx, e.recorder.Lose())
				return errors.Join(err, e.AwaitWrites(ctx, calm), holder.Resume(), holder.ended(ctx), holder.follow(ctx))
			}},
		{Name: "the network from the machine that serves to the bucket swallows everything",
			Inject: func(ctx context.Context, e *Env) error {
				_, _, path, _ := e.both()
				return e.loseBucket(ctx, path.Cut, path.Mend)
			}},
		{Name: "the network from both machines to the bucket swallows everything",
			Inject: func(ctx context.Context, e *Env) error {
				_, _, one, other := e.both()
				return e.loseBucket(ctx, func() { one.Cut(); other.Cut() }, func() { one.Mend(); other.Mend() })
			}},
		{Name: "the network from the standby to the bucket swallows everything for 20 s",
			Inject: func(ctx context.Context, e *Env) error {
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
		{Name: "the bucket loses a change of the copy, and kill -9 of the machine that serves",
			Inject: func(ctx context.Context, e *Env) error {
				holder, standby, err := e.loseChange(ctx)
				if err != nil {
					return err
				}
				err = await(ctx, standby.Name+" refuses to take over", func(context.Context) error {
					if !strings.Contains(standby.Server.Log(), "and has commits that this server does not have") {
						return errors.New("it does not say so")
					}
					return nil
				})
				return errors.Join(err, holder.Start(ctx), e.awaitHolder(ctx, holder))
			}},
		{Name: "kill -9 of the machine that serves; it comes back with an earlier snapshot of its disk",
			Inject: func(ctx context.Context, e *Env) error {
				if err := e.rollBack(ctx, ""); err != nil {
					return err
				}
				holder, _, _, _ := e.both()
				if !strings.Contains(holder.Server.Log(), "a snapshot or a clone of it") {
					return fmt.Errorf("%s does not say that its disk was rolled back", holder.Name)
				}
				return nil
			}},
		{Name: "the bucket loses a change of the copy, and the machine that serves an earlier snapshot of its disk",
			Inject: func(ctx context.Context, e *Env) error {
				holder, _, path, _ := e.both()
				earlier, last := e.TB.TempDir(), e.TB.TempDir()
				err := errors.Join(holder.Suspend(), copyDatabase(holder.Config.Dir, earlier), holder.Resume())
				path.Lose()
				err = errors.Join(err, e.AwaitWrites(ctx, calm), e.Pause(ctx, copied))
				holder.Kill()
				err = errors.Join(err, copyDatabase(holder.Config.Dir, last), copyDatabase(earlier, holder.Config.Dir),
					holder.Start(ctx))
				if err != nil {
					return err
				}
				err = await(ctx, holder.Name+" refuses to serve", func(context.Context) error {
					if !strings.Contains(holder.Server.Log(), "and has commits that this server does not have") {
						return errors.New("it does not say so")
					}
					return nil
				})
				holder.Kill()
				return errors.Join(err, copyDatabase(last, holder.Config.Dir), holder.Start(ctx), e.awaitHolder(ctx, holder))
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

// loseChange has the bucket lose a change, and kills the machine that serves after more of them.
func (e *Env) loseChange(ctx context.Context) (holder, standby *Replica, err error) {
	holder, standby, path, _ := e.both()
	path.Lose()
	err = e.AwaitWrites(ctx, calm)
	holder.Kill()
	return holder, standby, err
}

// rollBack puts the disk of the machine that serves back to what it was before some writes, and starts it again, before
// the other one takes over. An empty program is the one that it had.
func (e *Env) rollBack(ctx context.Context, program string) error {
	holder, _, _, _ := e.both()
	snapshot := e.TB.TempDir()
	// All files at one moment.
	err := holder.Suspend()
	if err == nil {
		err = copyDatabase(holder.Config.Dir, snapshot)
	}
	if err := errors.Join(err, holder.Resume(), e.AwaitWrites(ctx, calm), e.Pause(ctx, copied)); err != nil {
		return err
	}
	loss := e.recorder.Lose()
	holder.Kill()
	if program != "" {
		holder.Config.Program = program
	}
	err = errors.Join(copyDatabase(snapshot, holder.Config.Dir), holder.Start(ctx), e.awaitHolder(ctx, holder))
	if err != nil || program != "" {
		return err
	}
	return holder.beginsEpoch(loss)
}

// copyDatabase replaces a database by a copy of another one, with the files beside it but the lock.
func copyDatabase(from, to string) error {
	databaseFiles := func(dir string) (files []string, err error) {
		files, err = filepath.Glob(filepath.Join(dir, "byre.db*"))
		return slices.DeleteFunc(files, func(file string) bool {
			info, err := os.Stat(file)
			return err != nil || info.IsDir() || strings.HasSuffix(file, ".lock")
		}), err
	}
	old, err := databaseFiles(to)
	for _, file := range old {
		err = errors.Join(err, os.Remove(file))
	}
	files, listErr := databaseFiles(from)
	err = errors.Join(err, listErr)
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr, os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o600))
	}
	return err
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
