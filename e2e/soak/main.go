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
	"strings"
	"syscall"
	"time"

	"byre/e2e/document"
	"byre/e2e/programs"
	"byre/sqlstore/postgres/pgtest"
)

func main() {
	debug.SetGCPercent(400) // the processors are the servers' first
	var o options
	o.register()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	isGood, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
	if err != nil || !isGood {
		stop()
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	suites, only      string
	out, docs, report string
	sizes
}

// sizes say how long and how much.
type sizes struct {
	Duration time.Duration `json:"duration"`
	Nodes    int           `json:"nodes"`
	Pods     int           `json:"pods"`
	// Replicas is how many processes of byre share a PostgreSQL.
	Replicas int `json:"replicas"`
	// Churn is how many Pods a second are replaced by rollouts.
	Churn float64 `json:"churn"`
	// Operations is how many ConfigMaps each of k0smotron's loads makes.
	Operations int `json:"operations"`
	// Timeout is that of each request of k0smotron's loads.
	Timeout time.Duration `json:"timeout"`
	// Clients are the numbers of clients that create and list; the last one churns.
	Clients intList `json:"clients"`
}

const (
	clusterSuite   = "cluster"
	k0smotronSuite = "k0smotron"
)

func (o *options) register() {
	flag.StringVar(&o.suites, "suites", clusterSuite+","+k0smotronSuite, "the suites to run, separated by commas")
	flag.StringVar(&o.only, "only", "",
		"the servers to measure, separated by commas: sqlite, postgres, kine-sqlite, kine-postgres, stock")
	flag.StringVar(&o.out, "out", "../bin/soak", "the folder for results.json and tables.md")
	flag.StringVar(&o.docs, "docs", "", "write the tables into this folder too: its soak.md has the places for them")
	flag.StringVar(&o.report, "report", "", "measure nothing: make the tables of these results (a results.json)")
	flag.DurationVar(&o.Duration, "duration", 30*time.Minute, "how long each server is measured under the cluster")
	flag.IntVar(&o.Nodes, "nodes", 200, "how many nodes the cluster has")
	flag.IntVar(&o.Pods, "pods", 5000, "how many Pods the cluster has")
	flag.IntVar(&o.Replicas, "replicas", 1,
		"how many processes of byre share a PostgreSQL under the cluster, whose clients spread over them")
	flag.Float64Var(&o.Churn, "churn", 4, "how many Pods a second rollouts replace")
	flag.IntVar(&o.Operations, "operations", 10_000, "how many ConfigMaps each of k0smotron's loads makes")
	flag.DurationVar(&o.Timeout, "timeout", 30*time.Second,
		"how long a request of k0smotron's loads may take before it counts as an error")
	o.Clients = intList{50, 200, 500, 1000}
	flag.Var(&o.Clients, "clients",
		"the numbers of clients that create and list in k0smotron's loads, separated by commas")
}

// run measures what is wanted, or reads what was measured, and says whether byre passes all
// judgements.
func run(ctx context.Context, o options) (isGood bool, err error) {
	var r *results
	if o.report != "" {
		r, err = readResults(o.report)
	} else {
		r, err = measureAll(ctx, o)
	}
	if err != nil {
		return false, err
	}
	fmt.Println(r.allTables())
	if o.docs != "" {
		err = document.Update(filepath.Join(o.docs, "soak.md"), "soak", r.pageTables())
	}
	return !slices.ContainsFunc(r.judge(), func(v verdict) bool { return !v.IsGood }), err
}

// measureAll runs the wanted suites and writes the results after each server.
func measureAll(ctx context.Context, o options) (r *results, err error) {
	if err := programs.Build(ctx, programs.Byre, programs.APIServer, programs.Etcd, programs.Kine,
		programs.ControllerManager, programs.Scheduler, programs.Kwok); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "byre-soak-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if r, err = newResults(ctx, o.sizes); err != nil {
		return nil, err
	}
	for suite := range strings.SplitSeq(o.suites, ",") {
		for _, kind := range kinds {
			if !kind.isIn(suite, o.only) {
				continue
			}
			logf("%s: %s", suite, kind.name)
			if err := measure(ctx, o, r, suite, kind, filepath.Join(dir, suite+"-"+kind.short)); err != nil {
				return nil, errors.Join(fmt.Errorf("%s, %s: %w", suite, kind.name, err), r.write(o.out))
			}
			if err := r.write(o.out); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// measure runs a suite on a server of its own.
func measure(ctx context.Context, o options, r *results, suite string, kind kind, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var postgres *pgtest.Cluster
	if kind.needsPostgres {
		if postgres, err = (pgtest.Config{Settings: postgresDefaults}).Start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, postgres.Stop()) }()
	}
	t, err := kind.start(ctx, dir, postgres)
	if err != nil {
		return err
	}
	defer func() { // nobody needs what they have stored
		for _, server := range t.servers() {
			server.Kill()
		}
	}()
	if kind.name == onPostgres {
		if err := t.addReplicas(ctx, dir, postgres.DSN("postgres"), o.Replicas-1); err != nil {
			return err
		}
	}
	if suite == k0smotronSuite {
		loads, err := runK0smotron(ctx, t, o.sizes)
		r.K0smotron = append(r.K0smotron, loads...)
		return err
	}
	soaked, err := soak(ctx, t, o.sizes, dir)
	if soaked != nil {
		r.Cluster = append(r.Cluster, soaked)
	}
	return err
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
