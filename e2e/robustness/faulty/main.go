// Command faulty is "byre serve" on SQLite, with faults of its own. The server is byre's;
// only what opens the database differs.
//
// KILL_AT names a point at which it ends itself, as kill -9 does: at that point's
// KILL_AFTER-th passing. With POWER=fails it ends as a machine does whose power fails: of
// what was not synced, the disk has some sectors.
//
// VFS_FAULT names a fault of byre/e2e/robustness/vfs. It lasts from SIGUSR1 to SIGUSR2,
// which also logs how many operations failed: "vfs: 12 failed".
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"

	"byre/aggregator"
	"byre/apiserver/process"
	"byre/apiserver/server"
	"byre/crd"
	"byre/e2e/robustness/vfs"
	"byre/migrations"
	"byre/sqlstore/sqlite"
)

func main() {
	if err := prepareVFS(); err != nil {
		fmt.Fprintln(os.Stderr, "faulty:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := serve(ctx, os.Args[2:]) // the first argument is "serve"
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faulty:", err)
		os.Exit(1)
	}
}

// prepareVFS puts the faulty VFS before SQLite's own.
func prepareVFS() error {
	if os.Getenv("POWER") == "fails" {
		vfs.LoseUnsynced()
		return vfs.Register()
	}
	fault := vfs.Fault(os.Getenv("VFS_FAULT"))
	if fault == "" {
		return nil
	}
	begins, ends := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(begins, syscall.SIGUSR1)
	signal.Notify(ends, syscall.SIGUSR2)
	go func() { // until the process ends
		for {
			select {
			case <-begins:
				vfs.Fail(fault)
			case <-ends:
				fmt.Fprintf(os.Stderr, "vfs: %d failed\n", vfs.Clear())
			}
		}
	}()
	return vfs.Register()
}

func serve(ctx context.Context, args []string) error {
	o := server.NewOptions()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for _, set := range o.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := o.Apply(); err != nil {
		return err
	}
	completed, err := o.Complete()
	if err != nil {
		return err
	}
	var custom *crd.Server
	s, err := server.New(ctx, server.Config{
		Options:      completed,
		OpenDatabase: open,
		CustomResources: func(d process.Dependencies, next http.Handler) (process.ChainServer, error) {
			custom, err = crd.New(d, next)
			return custom, err
		},
		Aggregator: func(d process.Dependencies, next http.Handler) (process.ChainServer, error) {
			return aggregator.New(d, aggregator.Options{CustomSynced: custom.Synced()}, next)
		},
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// open opens SQLite with a driver that ends the process at the point of KILL_AT.
func open(ctx context.Context, o server.StoreOptions) (server.Database, error) {
	dsn, err := o.DSN()
	if err != nil {
		return server.Database{}, err
	}
	_, path, err := migrations.ParseEndpoint(dsn)
	if err != nil {
		return server.Database{}, err
	}
	state, err := migrations.Up(ctx, dsn)
	if err != nil {
		return server.Database{}, err
	}
	opened, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return server.Database{}, err
	}
	driver := &driver{Driver: opened, point: os.Getenv("KILL_AT")}
	if driver.point != "" {
		if driver.after, err = strconv.ParseInt(os.Getenv("KILL_AFTER"), 10, 64); err != nil {
			return server.Database{}, err
		}
	}
	return server.Database{Name: path, Schema: int(state.Current), Driver: driver}, nil
}
