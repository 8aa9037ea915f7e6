// Command faulty is "byre serve" on SQLite with a driver that ends its own process, as
// kill -9 does, at the point that KILL_AT names: at that point's KILL_AFTER-th passing.
// The server is byre's own; only what opens the database differs.
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
	"byre/apiserver"
	"byre/apiserver/delegation"
	"byre/apiserver/options"
	"byre/crd"
	"byre/migrations"
	"byre/sqlstore/sqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := serve(ctx, os.Args[2:]) // the first argument is "serve"
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faulty:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, args []string) error {
	o := options.New()
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
	server, err := apiserver.New(ctx, apiserver.Config{
		Options:      completed,
		OpenDatabase: open,
		CustomResources: func(d delegation.Dependencies, next http.Handler) (delegation.Server, error) {
			custom, err = crd.New(d, next)
			return custom, err
		},
		Aggregator: func(d delegation.Dependencies, next http.Handler) (delegation.Server, error) {
			return aggregator.New(d, aggregator.Options{CustomSynced: custom.Synced()}, next)
		},
	})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// open opens SQLite, with a point to die at.
func open(ctx context.Context, o options.StoreOptions) (apiserver.Database, error) {
	_, path, err := migrations.ParseEndpoint(o.DSN())
	if err != nil {
		return apiserver.Database{}, err
	}
	state, err := migrations.Up(ctx, o.DSN())
	if err != nil {
		return apiserver.Database{}, err
	}
	opened, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return apiserver.Database{}, err
	}
	after, err := strconv.ParseInt(os.Getenv("KILL_AFTER"), 10, 64)
	if err != nil {
		return apiserver.Database{}, err
	}
	driver := &driver{Driver: opened, point: os.Getenv("KILL_AT"), after: after}
	return apiserver.Database{Name: path, Schema: int(state.Current), Driver: driver}, nil
}
