package robustness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"byre/e2e/robustness/history"
	"byre/e2e/servers"
)

// Two machines with SQLite, of which one serves by the lease in a bucket, and the other follows. With
// MachinesSync the bucket has each write before it is acknowledged. MachinesVersitygw is the same on another S3.
const (
	Machines          = "two machines"
	MachinesSync      = "two machines, --replicate-sync"
	MachinesVersitygw = "two machines, --replicate-sync, versitygw"
)

var machineKinds = []string{Machines, MachinesSync, MachinesVersitygw}

// copied is more than the time after which the bucket has a change.
const copied = 3 * time.Second

func isMachines(kind string) bool { return slices.Contains(machineKinds, kind) }

// losesNothing says that a takeover may lose no acknowledged write.
func losesNothing(kind string) bool { return kind == MachinesSync || kind == MachinesVersitygw }

// machines are the two, as an Env has them.
type machines struct {
	// paths are the ways to the bucket, by replica.
	paths []*bucketPath
	// holder is the index of the replica that serves.
	holder atomic.Int64
}

func (e *Env) newMachines(kind string) error {
	b, err := newBucket(e.TB, kind == MachinesVersitygw)
	if err != nil {
		return err
	}
	e.machines = &machines{}
	for _, r := range e.Replicas {
		p := b.path()
		e.machines.paths = append(e.machines.paths, p)
		r.Config.Env, r.Config.IsStandby = p.Env, true
		r.Config.Args = append(r.Config.Args[:len(r.Config.Args):len(r.Config.Args)], "--standby", "--replicate-to",
			bucketURL)
		if losesNothing(kind) {
			r.Config.Args = append(r.Config.Args, "--replicate-sync")
		}
	}
	e.Database.file = func() string {
		return filepath.Join(e.Replicas[e.machines.holder.Load()].Config.Dir, "byre.db")
	}
	return nil
}

// serving are the replicas that serve: all but a standby.
func (e *Env) serving() []*Replica {
	if e.machines == nil {
		return e.Replicas
	}
	return []*Replica{e.Replicas[e.machines.holder.Load()]}
}

// both returns the replica that serves and the other one, with their ways to the bucket.
func (e *Env) both() (holder, standby *Replica, holders, standbys *bucketPath) {
	i := e.machines.holder.Load()
	return e.Replicas[i], e.Replicas[1-i], e.machines.paths[i], e.machines.paths[1-i]
}

// ready asks /readyz.
func (r *Replica) ready(ctx context.Context) error {
	response, err := r.get(ctx, "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// get sends a request on a connection of its own.
func (r *Replica) get(ctx context.Context, path string) (*http.Response, error) {
	config := r.Server.Config(servers.AdminToken)
	config.Timeout = 5 * time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(request)
}

// await waits until a condition holds.
func await(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitHolder waits until a replica serves.
func (e *Env) awaitHolder(ctx context.Context, r *Replica) error {
	err := await(ctx, r.Name+" serves", r.ready)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, r.Server.LogTail())
	}
	return err
}

// awaitCopy waits until a replica that was just started follows with a complete copy.
func awaitCopy(ctx context.Context, r *Replica, logged int) error {
	err := await(ctx, r.Name+" has a copy", func(context.Context) error {
		if !r.IsRunning() {
			return fmt.Errorf("%s has ended", r.Name)
		}
		if !strings.Contains(r.Server.Log()[logged:], "and this server has a copy") {
			return errors.New("it says nothing of one")
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, r.Server.Dump())
	}
	return err
}

// follow starts a replica, and waits until it follows the other one.
func (r *Replica) follow(ctx context.Context) error {
	logged := 0
	if r.Server != nil {
		logged = len(r.Server.Log())
	}
	if err := r.Start(ctx); err != nil {
		return err
	}
	return awaitCopy(ctx, r, logged)
}

// ended waits until a process that must end by itself has done so.
func (r *Replica) ended(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-r.Server.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s goes on", r.Name)
	}
}

// lostCommits is what a database logs that begins an epoch.
var lostCommits = regexp.MustCompile(`"sqlite: the database may have lost commits.* is=(\d+) `)

// takesOver waits until the standby serves, and makes it the holder. loss is that of the moment at which
// the old holder has ended, or was stopped.
func (e *Env) takesOver(ctx context.Context, loss *history.Loss) error {
	_, standby, _, _ := e.both()
	if err := e.awaitHolder(ctx, standby); err != nil {
		return err
	}
	err := standby.beginsEpoch(loss)
	e.machines.holder.Store(1 - e.machines.holder.Load())
	return err
}

// beginsEpoch sets the last revision of a loss from the log of the replica that serves after it.
func (r *Replica) beginsEpoch(loss *history.Loss) (err error) {
	found := lostCommits.FindAllStringSubmatch(r.Server.Log(), -1)
	if len(found) == 0 {
		return fmt.Errorf("%s begins no epoch", r.Name)
	}
	loss.Common, err = strconv.ParseInt(found[len(found)-1][1], 10, 64)
	return err
}

// wipe deletes the databases of a machine, as if it had a new disk.
func (r *Replica) wipe() error {
	files, err := filepath.Glob(filepath.Join(r.Config.Dir, "byre.db*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		err = errors.Join(err, os.RemoveAll(file))
	}
	return err
}

// checkTurns reports a replica that answers after another one has begun to serve. No episode has more than one
// takeover.
func checkTurns(operations []*history.Operation) (violations []string) {
	var last *history.Operation // operations are in the order of their returns
	turns := 0
	for _, o := range operations {
		if o.Outcome != history.OK {
			continue
		}
		if last != nil && o.Replica != last.Replica {
			if turns++; turns > 1 {
				violations = append(violations,
					fmt.Sprintf("one server at a time: %s answers at %v, after %s has at %v", o.Replica, o.End, last.Replica,
						last.End))
				return violations
			}
		}
		last = o
	}
	return nil
}
