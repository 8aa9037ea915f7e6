package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"

	"byre/e2e/programs"
)

func main() {
	debug.SetGCPercent(400) // the processors are the servers' first
	quick := flag.Bool("short", false, "a first impression in about a minute")
	only := flag.String("only", "", "measure one of sqlite, postgres, stock")
	aggregated := flag.Bool("aggregated", false, "measure what it takes to reach an API server behind each, and nothing else")
	pods := flag.Int("pods", 0, "how many pods to create, where not as many as usual")
	definitions := flag.Int("definitions", 0, "measure what so many CustomResourceDefinitions cost, and nothing else")
	proxied := flag.String("bare-proxy", "", "be nothing but a reverse proxy to a URL; -aggregated starts these")
	flag.Parse()
	if *proxied != "" {
		if err := bareProxy(*proxied, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b := &bench{sizes: full(), aggregated: *aggregated, definitions: *definitions}
	if *quick {
		b.sizes = short()
	}
	if *pods > 0 {
		b.sizes.pods = *pods
	}
	if err := b.run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	sizes
	// aggregated measures the way to servers behind instead of all else.
	aggregated bool
	// definitions is how many there are to be measured instead of all else; 0
	// measures all else.
	definitions int
	figures     figures
}

func (b *bench) run(ctx context.Context, only string) (err error) {
	if err := programs.Build(ctx, programs.Byre, programs.APIServer, programs.Etcd, programs.Kubectl, programs.Wardle); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "byre-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	targets, stop, err := b.start(ctx, dir, only)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	for _, t := range targets {
		b.figures.columns = append(b.figures.columns, t.name)
		b.figures.add("ready after", "ms", true, t.name, float64(t.server.StartTime.Milliseconds()))
	}
	if err := b.settle(ctx, nil); err != nil {
		return err
	}
	phases := b.phases()
	if b.aggregated {
		phases = b.aggregatedPhases()
	}
	if b.definitions > 0 {
		if phases, err = b.definitionPhases(ctx); err != nil {
			return err
		}
	}
	for i, phase := range phases {
		// The order changes, so that no server always runs after the same one.
		slices.Reverse(targets)
		for _, t := range targets {
			if err := quiet(ctx, targets); err != nil {
				return err
			}
			if err := phase(ctx, t); err != nil {
				return fmt.Errorf("%s, phase %d: %w", t.name, i, err)
			}
		}
	}
	return b.figures.print(os.Stdout)
}

// start starts the servers; stop is to be called whatever becomes of them.
func (b *bench) start(ctx context.Context, dir, only string) (targets []*target, stop func() error, err error) {
	var stops []func() error
	stop = func() (err error) {
		for _, s := range slices.Backward(stops) {
			err = errors.Join(err, s())
		}
		return err
	}
	add := func(t *target, err error) error {
		if err == nil {
			targets = append(targets, t)
			// Nobody needs what they keep, and a stock pair takes its time.
			stops = append(stops, func() error { t.server.Kill(); return nil })
		}
		if err == nil && b.aggregated {
			var stopBehind func() error
			stopBehind, err = t.putBehind(ctx, filepath.Join(dir, "behind "+t.name))
			stops = append(stops, stopBehind)
		}
		return err
	}
	wanted := func(name string) bool { return only == "" || only == name }
	if wanted("sqlite") {
		if err := add(startByre(ctx, "byre on SQLite", dir, "")); err != nil {
			return nil, stop, err
		}
	}
	if wanted("postgres") {
		cluster, dsn, err := startPostgres(ctx)
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, cluster.Stop)
		if err := add(startByre(ctx, "byre on PostgreSQL", dir, dsn)); err != nil {
			return nil, stop, err
		}
	}
	if wanted("stock") {
		if err := add(startStock(ctx, dir, b.aggregated)); err != nil {
			return nil, stop, err
		}
	}
	if len(targets) == 0 {
		return nil, stop, fmt.Errorf("-only %s: want sqlite, postgres or stock", only)
	}
	return targets, stop, nil
}
