package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"byre/sqlstore/postgres/pgtest"
)

// phase measures one thing on one target.
type phase struct {
	name string
	// isSetup reports whether later phases need the objects of this one: then it always
	// runs.
	isSetup bool
	// isRepetition reports whether an earlier round has measured the same: then it is left
	// out once the suite has taken the time of -limit.
	isRepetition bool
	// runsOnEmpty reports whether the phase measures the empty server too.
	runsOnEmpty bool
	run         func(ctx context.Context, t *target) error
}

// suite is a list of phases on servers of their own.
type suite struct {
	name       string
	sizes      func(options) sizes
	phases     func(b *bench, ctx context.Context) ([]phase, error)
	aggregates bool
	// targets returns the servers of a suite that has others than the usual ones. Their files are in dir.
	targets func(b *bench, ctx context.Context, dir string) ([]*target, error)
	// isFresh reports whether each round has new servers with empty databases, and all phases.
	isFresh bool
	// measure runs a suite whose servers all run at the same time; such a suite has no
	// phases.
	measure func(b *bench, ctx context.Context) error
}

var defaultSuites = []string{"standard", "fresh", "aggregation", "replicas"}

func suites() []suite {
	return []suite{
		{name: "standard", sizes: standardSizes, phases: (*bench).standardPhases},
		{name: "fresh", sizes: freshSizes, phases: (*bench).freshPhases, isFresh: true},
		{name: "aggregation", sizes: standardSizes, phases: (*bench).aggregationPhases, aggregates: true},
		{name: "replicas", sizes: standardSizes, phases: (*bench).replicaPhases},
		{name: "definitions", sizes: standardSizes, phases: (*bench).definitionPhases},
		{name: "etcd", sizes: etcdSizes, phases: (*bench).etcdPhases, targets: (*bench).etcdTargets},
		{name: "wear", sizes: standardSizes, measure: (*bench).measureWear},
		{name: "large", sizes: largeSizes, phases: (*bench).largePhases},
	}
}

func suiteNames() (names []string) {
	for _, s := range suites() {
		names = append(names, s.name)
	}
	return names
}

func chooseSuites(o options) (chosen []suite, err error) {
	names := defaultSuites
	if o.short {
		names = []string{"standard"}
	}
	if o.suites != "" {
		names = strings.Split(o.suites, ",")
	}
	if o.large {
		names = append(slices.Clone(names), "large")
	}
	for _, name := range names {
		i := slices.Index(suiteNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("no suite %q: want %s", name, strings.Join(suiteNames(), ", "))
		}
		chosen = append(chosen, suites()[i])
	}
	return chosen, nil
}

// sizes are the numbers of objects and the times of a suite.
type sizes struct {
	Pods  int `json:"pods"`
	Nodes int `json:"nodes"`
	// Period is the duration of a load.
	Period time.Duration `json:"period"`
	// Lists is the number of lists in a round.
	Lists  int `json:"lists"`
	Rounds int `json:"rounds"`
	// Settle is the time without requests before memory is read.
	Settle time.Duration `json:"settle"`
	// Unread is the time without requests after which byre holds values compressed.
	Unread      time.Duration `json:"unread"`
	Watchers    int           `json:"watchers"`
	Definitions int           `json:"definitions"`
	// Wear is how long heartbeats are sent while the writes to the disk are counted.
	Wear time.Duration `json:"wear"`
}

func standardSizes(o options) sizes {
	s := sizes{Pods: 10_000, Nodes: 100, Period: 2 * time.Second, Lists: 3, Rounds: 3, Settle: 8 * time.Second,
		Watchers: 200, Definitions: 200, Wear: 3 * time.Minute}
	if o.short {
		s = sizes{Pods: 1_000, Nodes: 10, Period: 500 * time.Millisecond, Lists: 1, Rounds: 1, Settle: 2 * time.Second,
			Watchers: 50, Definitions: 10, Wear: 20 * time.Second}
	}
	return s.override(o, false)
}

func freshSizes(o options) sizes {
	s := sizes{Pods: 5_000, Nodes: 100, Period: 2 * time.Second, Rounds: 3}
	if o.short {
		s = sizes{Pods: 1_000, Nodes: 10, Period: 500 * time.Millisecond, Rounds: 1}
	}
	return s.override(o, false)
}

func largeSizes(o options) sizes {
	s := sizes{Pods: 100_000, Nodes: 4_000, Period: 4 * time.Second, Lists: 1, Rounds: 2, Settle: 8 * time.Second,
		Unread: 6 * time.Minute, Definitions: 1_000}
	if o.short {
		s = sizes{Pods: 5_000, Nodes: 200, Period: time.Second, Lists: 1, Rounds: 1, Settle: 2 * time.Second, Definitions: 10}
	}
	return s.override(o, true)
}

func (s sizes) override(o options, large bool) sizes {
	if o.pods > 0 && !large {
		s.Pods = o.pods
	}
	if o.rounds > 0 {
		s.Rounds = o.rounds
	}
	if o.largePods > 0 && large {
		s.Pods = o.largePods
	}
	if o.definitions > 0 {
		s.Definitions = o.definitions
	}
	return s
}

// bench is one run of one suite.
type bench struct {
	options
	sizes
	*results
	dir     string
	targets []*target
	// endpoint is the database of byre on PostgreSQL.
	endpoint string
	stops    []func() error
}

func (b *bench) run(ctx context.Context, s suite) (err error) {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	defer func() {
		for _, stop := range slices.Backward(b.stops) {
			err = errors.Join(err, stop())
		}
	}()
	if s.measure != nil {
		return s.measure(b, ctx)
	}
	begun := time.Now()
	var failed error
	for round := range b.Rounds {
		if s.targets != nil && round < b.Rounds-1 {
			continue // How long a start takes is of no interest there.
		}
		if err := b.start(ctx, s, round); err != nil {
			return errors.Join(failed, err)
		}
		if s.isFresh || round == b.Rounds-1 {
			failed = errors.Join(failed, b.runPhases(ctx, s, begun))
		}
	}
	return failed
}

// runPhases runs the phases of a suite on the targets.
func (b *bench) runPhases(ctx context.Context, s suite, begun time.Time) error {
	phases, err := s.phases(b, ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, p := range phases {
		if !p.isSetup && !b.options.phases.MatchString(p.name) {
			continue
		}
		if p.isRepetition && b.limit > 0 && time.Since(begun) > b.limit {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format(time.TimeOnly), s.name, p.name)
		// The order changes, so that no server always follows the same one.
		slices.Reverse(b.targets)
		for _, t := range b.targets { // a target that fails is removed from b.targets meanwhile
			if t.server == nil && !p.runsOnEmpty {
				continue
			}
			if err := awaitQuiet(ctx, b.targets); err != nil {
				return err
			}
			if err := b.profiled(ctx, s, p, t); err != nil {
				err = fmt.Errorf("%s, %s: %w", t.name, p.name, err)
				fmt.Fprintln(os.Stderr, "bench:", err)
				failed = errors.Join(failed, err, t.stop())
				// Measure the other targets without it.
				b.targets = slices.DeleteFunc(slices.Clone(b.targets), func(other *target) bool { return other == t })
			}
			if ctx.Err() != nil {
				return failed
			}
		}
	}
	return failed
}

// repeated returns the phases of all rounds.
func (b *bench) repeated(round func() []phase) (phases []phase) {
	for i := range b.Rounds {
		for _, p := range round() {
			p.isRepetition = i > 0
			phases = append(phases, p)
		}
	}
	return phases
}

// start starts the wanted servers with empty directories, once a round, and ends those of the round before. The last
// process of each serves the suite, unless the suite is fresh.
func (b *bench) start(ctx context.Context, s suite, round int) (err error) {
	if err := b.stopTargets(); err != nil {
		return err
	}
	dir := filepath.Join(b.dir, fmt.Sprintf("start-%d", round))
	if s.targets != nil {
		b.targets, err = s.targets(b, ctx, dir)
	} else {
		b.targets, err = b.usualTargets(ctx, s, dir)
	}
	if err != nil {
		return err
	}
	for _, t := range b.targets {
		b.stops = append(b.stops, t.stop)
		if err := t.open(ctx); err != nil {
			return err
		}
		b.addDuration("ready after start", t.name, t.server.StartTime)
	}
	reference, err := startReference(ctx, emptyServerFlag, fmt.Sprint(emptyResponseSize))
	if err != nil {
		return err
	}
	b.stops = append(b.stops, reference.stop)
	b.targets = append(b.targets, emptyTarget(reference))
	return nil
}

// usualTargets are byre on each database and the stock server, as far as -only wants them.
func (b *bench) usualTargets(ctx context.Context, s suite, dir string) (targets []*target, err error) {
	isWanted := func(name string) bool {
		return b.only == "" || slices.Contains(strings.Split(b.only, ","), name)
	}
	if isWanted("sqlite") {
		targets = append(targets, byreTarget(onSQLite, dir, "", nil))
	}
	if isWanted("postgres") {
		cluster, err := b.startCluster(ctx)
		if err != nil {
			return nil, err
		}
		targets = append(targets, byreTarget(onPostgres, dir, b.endpoint, cluster))
	}
	if isWanted("stock") {
		targets = append(targets, stockTarget(dir, s.aggregates))
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("-only %s: want sqlite, postgres, stock", b.only)
	}
	return targets, nil
}

func (b *bench) stopTargets() (err error) {
	for _, stop := range slices.Backward(b.stops) {
		err = errors.Join(err, stop())
	}
	b.stops, b.targets = nil, nil
	return err
}

func (b *bench) startCluster(ctx context.Context) (*pgtest.Cluster, error) {
	cluster, err := pgtest.Config{Settings: []string{"autovacuum_naptime=1min"}}.Start(ctx) // PostgreSQL's default
	if err != nil {
		return nil, err
	}
	b.stops = append(b.stops, cluster.Stop)
	if err := cluster.Exec(ctx, "CREATE DATABASE bench"); err != nil {
		return nil, err
	}
	b.endpoint = cluster.DSN("bench")
	return cluster, nil
}
