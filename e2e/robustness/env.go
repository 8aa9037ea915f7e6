package robustness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"byre/apiserver/envtest/standin"
	"byre/e2e/robustness/history"
	"byre/e2e/servers"
)

// Env is byre on one database, under traffic.
type Env struct {
	testing.TB
	// Dir is for files of this Env; the test deletes it at its end.
	Dir      string
	Database *Database
	// Replicas are byre's processes; one on SQLite.
	Replicas []*Replica
	// NoTouch is that of the traffic's options.
	NoTouch bool

	informers []informer
	// machines is nil but for two machines.
	machines *machines
	// recorder is that of the episode under way.
	recorder *history.Recorder
}

// Replica is one process of byre. It keeps its port and its files over restarts.
type Replica struct {
	Name string
	// Config says how it is started; changes hold from the next Start on.
	Config servers.Byre
	// Server is the running process; nil before the first Start.
	Server *servers.Server
}

// Start starts the process and waits until it is ready.
func (r *Replica) Start(ctx context.Context) error {
	server, err := r.Config.Start(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	r.Server = server
	return nil
}

// IsRunning reports whether the process runs.
func (r *Replica) IsRunning() bool {
	if r.Server == nil {
		return false
	}
	select {
	case <-r.Server.Done():
		return false
	default:
		return true
	}
}

// Kill is kill -9; it waits for the end of the process.
func (r *Replica) Kill() { r.Server.Kill() }

// Stop is SIGTERM; it waits for the end, which must have exit status 0.
func (r *Replica) Stop() error { return r.Server.Stop() }

// Suspend is SIGSTOP, Resume is SIGCONT.
func (r *Replica) Suspend() error { return r.Server.Signal(syscall.SIGSTOP) }

// Resume lets a suspended process go on.
func (r *Replica) Resume() error { return r.Server.Signal(syscall.SIGCONT) }

// flags make history short, so that compactions are frequent, and turn off the controllers
// and the plugin that would write without a client.
var flags = []string{
	"--controllers=", "--disable-admission-plugins=ServiceAccount",
	"--retention-changes=300", "--compaction-interval=150ms",
}

// NewEnv makes an Env; it starts nothing.
func NewEnv(t testing.TB, database *Database, replicas int) (*Env, error) {
	e := &Env{TB: t, Dir: t.TempDir(), Database: database}
	for i := range replicas {
		port, err := standin.TakePort()
		if err != nil {
			return nil, err
		}
		name, endpoint := fmt.Sprintf("replica-%d", i), database.Endpoint
		if database.Site != nil {
			endpoint = database.Site.DSN(i)
		}
		e.Replicas = append(e.Replicas, &Replica{Name: name, Config: servers.Byre{
			Dir: filepath.Join(e.Dir, name), Endpoint: endpoint, Port: port, Args: flags,
		}})
	}
	if isMachines(database.Kind) {
		return e, e.newMachines(database.Kind)
	}
	return e, nil
}

// Start starts all replicas, which end with the test; they share the keys that the first one made.
func (e *Env) Start(ctx context.Context) error {
	e.Cleanup(func() {
		for _, r := range e.Replicas {
			if r.IsRunning() {
				r.Kill()
			}
		}
	})
	for i, r := range e.Replicas {
		if i > 0 {
			pki := os.DirFS(filepath.Join(e.Replicas[0].Config.Dir, "pki"))
			if err := os.CopyFS(filepath.Join(r.Config.Dir, "pki"), pki); err != nil {
				return err
			}
		}
		start := r.Start
		if e.machines != nil && i > 0 {
			start = r.follow
		}
		if err := start(ctx); err != nil {
			return err
		}
		if e.machines != nil && i == 0 {
			if err := e.awaitHolder(ctx, r); err != nil {
				return err
			}
		}
	}
	return e.startInformers()
}

// Recorder is that of the episode under way.
func (e *Env) Recorder() *history.Recorder { return e.recorder }

// AwaitWrites waits until n more writes of clients are acknowledged.
func (e *Env) AwaitWrites(ctx context.Context, n int) error {
	begin, next := e.recorder.Writes()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d writes: %w", n, ctx.Err())
		case <-next:
		}
		var now int
		if now, next = e.recorder.Writes(); now >= begin+n {
			return nil
		}
	}
}

// Pause waits for some time, during which the clients meet the fault.
func (e *Env) Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
