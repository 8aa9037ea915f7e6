package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"byre/e2e/document"
	"byre/e2e/programs"
)

func main() {
	debug.SetGCPercent(400) // leave the processors to the servers
	var o options
	o.register()
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	short, large, profile  bool
	suites, only, out      string
	docs, report           string
	pods, largePods        int
	definitions, rounds    int
	limit                  time.Duration
	resume                 bool
	phases                 regexp.Regexp
	proxyTo, emptyResponse string
}

func (o *options) register() {
	flag.BoolVar(&o.short, "short", false,
		"a first impression in about a minute: the standard suite, with little of everything")
	flag.BoolVar(&o.large, "large", false, "run the suite large too: 100,000 Pods on 4,000 nodes")
	flag.BoolVar(&o.profile, "profile", false,
		"write profiles of byre's processor time and heap, one of each a phase, into the folder profiles of -out; what it measures meanwhile costs more")
	flag.StringVar(&o.suites, "suites", "",
		"the suites to run, separated by commas: "+strings.Join(suiteNames(), ", ")+" (default "+strings.Join(defaultSuites,
			",")+")")
	flag.StringVar(&o.only, "only", "", "the servers to measure, separated by commas: sqlite, postgres, stock")
	flag.TextVar(&o.phases, "phases", regexp.MustCompile(""),
		"measure only the phases whose names match this regular expression")
	flag.IntVar(&o.pods, "pods", 0, "how many Pods to create; 0 means the suite's default")
	flag.IntVar(&o.largePods, "large-pods", 0, "how many Pods to create in the suite large; 0 means its default")
	flag.DurationVar(&o.limit, "limit", 0,
		"the time after which a suite begins no further round of what it has measured once; 0 sets no limit")
	flag.BoolVar(&o.resume, "resume", false,
		"continue with the results of the same program in -out: suites that are complete there are not run again")
	flag.IntVar(&o.rounds, "rounds", 0, "how many rounds to measure; 0 means the suite's default")
	flag.IntVar(&o.definitions, "definitions", 0,
		"how many CustomResourceDefinitions to create; 0 means the suite's default")
	flag.StringVar(&o.out, "out", "../bin/bench", "the folder for results.json, tables.md and the plots")
	flag.StringVar(&o.docs, "docs", "",
		"write the tables and plots into this folder too: its performance.md has the places for them")
	flag.StringVar(&o.report, "report", "",
		"measure nothing: make tables and plots from these files of results, separated by commas")
	flag.StringVar(&o.proxyTo, bareProxyFlag, "",
		"run only a reverse proxy to this URL; the benchmark starts itself with this flag")
	flag.StringVar(&o.emptyResponse, emptyServerFlag, "",
		"run only a server that answers with this many bytes; the benchmark starts itself with this flag")
}

func run(o options) error {
	if o.proxyTo != "" {
		handler, err := bareProxy(o.proxyTo)
		if err != nil {
			return err
		}
		return serveReference(handler, os.Stdin, os.Stdout)
	}
	if o.emptyResponse != "" {
		handler, err := newEmptyServer(o.emptyResponse)
		if err != nil {
			return err
		}
		return serveReference(handler, os.Stdin, os.Stdout)
	}
	var r *results
	var err error
	if o.report != "" {
		r, err = readResults(strings.Split(o.report, ","))
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		r, err = measure(ctx, o)
	}
	if r != nil { // write what was measured before the error, too
		err = errors.Join(err, report(r, o))
	}
	return err
}

// measure runs the suites.
func measure(ctx context.Context, o options) (r *results, err error) {
	if err := programs.Build(ctx, programs.Byre, programs.APIServer, programs.Etcd, programs.Kubectl,
		programs.Wardle); err != nil {
		return nil, err
	}
	version, err := exec.CommandContext(ctx, programs.Byre.Path(), "version").Output()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "byre-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	chosen, err := chooseSuites(o)
	if err != nil {
		return nil, err
	}
	r = newResults(strings.TrimSpace(string(version)))
	file := filepath.Join(o.out, resultsFile)
	if o.resume {
		if err := r.resume(file); err != nil {
			return nil, err
		}
	}
	var failed error
	for _, s := range chosen {
		if slices.Contains(r.Complete, s.name) {
			continue
		}
		b := &bench{options: o, sizes: s.sizes(o), results: r, dir: filepath.Join(dir, s.name)}
		r.suite, r.Sizes[s.name] = s.name, b.sizes
		err := b.run(ctx, s)
		if err == nil {
			r.Complete = append(r.Complete, s.name)
		} else {
			failed = errors.Join(failed, fmt.Errorf("suite %s: %w", s.name, err))
		}
		// Write the results of this suite: the next one may exhaust the machine.
		if err := errors.Join(os.MkdirAll(o.out, 0o755), r.write(file)); err != nil || ctx.Err() != nil {
			return r, errors.Join(failed, err)
		}
	}
	return r, failed
}

// resultsFile is the name of the file with the results, in the directory that -out names.
const resultsFile = "results.json"

// report writes the results, the tables and the plots.
func report(r *results, o options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	errs := []error{
		r.write(filepath.Join(o.out, resultsFile)),
		writePlots(r, o.out),
		os.WriteFile(filepath.Join(o.out, "tables.md"), []byte(allTables(r)), 0o644),
	}
	if o.docs != "" {
		errs = append(errs, writePlots(r, o.docs),
			document.Update(filepath.Join(o.docs, "performance.md"), "bench", tables(r)))
	}
	fmt.Println(allTables(r))
	return errors.Join(errs...)
}
