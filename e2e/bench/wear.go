package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	// Registers the driver "sqlite" with database/sql.
	_ "modernc.org/sqlite"

	"byre/e2e/programs"
	"byre/e2e/servers"
)

const (
	onVolatile = "byre on SQLite, --volatile=leases,events"
	onKine     = "kube-apiserver + kine on SQLite"
)

// wearTarget is a cluster whose writes to the disk are measured.
type wearTarget struct {
	name    string
	cluster *heartbeats
	// store is the process that writes to the disk, database is the SQLite file whose log
	// is copied back, and folder is the directory of all files.
	store            *servers.Process
	database, folder string
}

// measureWear measures what idle clusters write to the disk. All of them run at the same
// time, at their own pace: the writes depend on time and not on the processors.
func (b *bench) measureWear(ctx context.Context) (err error) {
	if err := programs.Build(ctx, programs.Kine); err != nil {
		return err
	}
	targets, err := b.startWear(ctx)
	if err != nil {
		return err
	}
	for _, size := range []struct {
		name        string
		nodes, pods int
	}{{"1 node", 1, 0}, {"10 nodes, 300 Pods", 10, 300}} {
		fmt.Fprintf(os.Stderr, "%s wear: %s, %v\n", time.Now().Format(time.TimeOnly), size.name, b.Wear)
		var group errgroup.Group
		for _, t := range targets {
			group.Go(func() error {
				if err := t.cluster.grow(ctx, size.nodes, size.pods); err != nil {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		worn := make([]wear, len(targets))
		for i, t := range targets {
			group.Go(func() (err error) {
				worn[i], err = t.measure(ctx, b.Wear)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for i, t := range targets {
			perHour := float64(time.Hour) / float64(b.Wear)
			b.add(size.name+": written to disk an hour", "MiB", true, t.name, float64(worn[i].written)*perHour/(1<<20))
			b.add(size.name+": files grow in an hour", "MiB", true, t.name, float64(worn[i].grown)*perHour/(1<<20))
			if worn[i].syncs >= 0 {
				b.add(size.name+": syncs a second", "/s", true, t.name, float64(worn[i].syncs)/b.Wear.Seconds())
			}
			b.add(size.name+": requests a second", "/s", false, t.name, float64(worn[i].requests)/b.Wear.Seconds())
		}
	}
	return nil
}

func (b *bench) startWear(ctx context.Context) (targets []*wearTarget, err error) {
	dir := func(name string) string { return filepath.Join(b.dir, name) }
	add := func(name string, server *servers.Server, store *servers.Process, database, folder string) error {
		b.stops = append(b.stops, func() error { server.Kill(); return nil })
		clientset, err := kubernetes.NewForConfig(server.Config(servers.AdminToken))
		targets = append(targets, &wearTarget{name, &heartbeats{clientset: clientset}, store, database, folder})
		return err
	}
	for _, c := range []struct {
		name string
		args []string
	}{{onSQLite, nil}, {onVolatile, []string{"--volatile=leases,events"}}} {
		folder := dir(strings.ReplaceAll(c.name, " ", "-"))
		server, err := servers.Byre{Dir: folder, Args: append(c.args, withoutServiceAccounts)}.Start(ctx)
		if err == nil {
			err = add(c.name, server, server.Process, filepath.Join(folder, "byre.db"), folder)
		}
		if err != nil {
			return nil, err
		}
	}
	kine, err := startKineOnSQLite(ctx, dir("kine"))
	if err != nil {
		return nil, err
	}
	database := kineDatabase(dir("kine"))
	b.stops = append(b.stops, func() error { kine.Kill(); return nil })
	server, err := servers.Stock{Dir: dir("kine"), Etcd: kine, Args: []string{withoutServiceAccounts}}.Start(ctx)
	if err == nil {
		err = add(onKine, server, kine.Process, database, filepath.Dir(database))
	}
	if err != nil {
		return nil, err
	}
	server, err = servers.Stock{Dir: dir("etcd"), Args: []string{withoutServiceAccounts}}.Start(ctx)
	if err == nil {
		err = add(stock, server, server.Beside[0], "", filepath.Join(dir("etcd"), "etcd"))
	}
	return targets, err
}

func kineDatabase(dir string) string { return filepath.Join(dir, "db", "state.db") }

// startKineOnSQLite starts a kine with its own parameters for a default endpoint, which k3s uses.
func startKineOnSQLite(ctx context.Context, dir string) (*servers.Etcd, error) {
	database := kineDatabase(dir)
	if err := os.MkdirAll(filepath.Dir(database), 0o700); err != nil {
		return nil, err
	}
	return servers.StartKine(ctx, dir,
		"sqlite://"+database+"?_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate&cache=shared")
}

// wear is the cost of a period for the disk. syncs is negative if they were not counted.
type wear struct{ written, grown, syncs, requests int64 }

// measure sends heartbeats for a period. The copy of the remaining log into the database at
// its end counts too.
func (t *wearTarget) measure(ctx context.Context, period time.Duration) (w wear, err error) {
	if _, err := t.checkpoint(ctx); err != nil {
		return w, err
	}
	before, err := t.store.WrittenBytes()
	if err != nil {
		return w, err
	}
	size, err := t.size()
	if err != nil {
		return w, err
	}
	counter := countSyncs(t.store.PID(), filepath.Join(t.folder, "syncs.txt"))
	if w.requests, err = t.cluster.beat(ctx, period); err != nil {
		return w, errors.Join(fmt.Errorf("%s: %w", t.name, err), counter.stop())
	}
	if w.syncs, err = counter.count(); err != nil {
		return w, err
	}
	after, err := t.store.WrittenBytes()
	if err != nil {
		return w, err
	}
	copied, err := t.checkpoint(ctx)
	if err != nil {
		return w, err
	}
	grown, err := t.size()
	w.written, w.grown = after-before+copied, grown-size
	return w, err
}

// checkpoint copies the log of a SQLite database back into it, and returns how many bytes
// that wrote.
func (t *wearTarget) checkpoint(ctx context.Context) (int64, error) {
	if t.database == "" {
		return 0, nil
	}
	// One at a time: the bytes are counted for this process.
	checkpointing.Lock()
	defer checkpointing.Unlock()
	before, err := servers.WrittenBytes(os.Getpid())
	if err != nil {
		return 0, err
	}
	db, err := sql.Open("sqlite", "file:"+t.database+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `PRAGMA wal_checkpoint(PASSIVE)`); err != nil {
		return 0, err
	}
	after, err := servers.WrittenBytes(os.Getpid())
	return after - before, err
}

// size is the size of the files that hold objects. SQLite's log does not count, because it
// is overwritten.
func (t *wearTarget) size() (size int64, err error) {
	if t.database != "" {
		info, err := os.Stat(t.database)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	err = filepath.Walk(t.folder, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	})
	return size, err
}
