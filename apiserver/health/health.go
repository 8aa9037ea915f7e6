package health

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// Checker is one named check.
type Checker = healthz.HealthChecker

// Mux is where Install puts its handlers.
type Mux interface {
	Handle(path string, handler http.Handler)
}

// AllPass tells whether all checks pass, asked within this process.
func AllPass(ctx context.Context, checks []Checker) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return false
	}
	for _, check := range checks {
		if check.Check(r) != nil {
			return false
		}
	}
	return true
}

// Checks are the checks of a server, by who asks them.
type Checks struct {
	// Always are asked by /livez, /healthz and /readyz.
	Always []Checker
	// BootSequence are those of the start. All three ask them, but /livez takes them as
	// passed until LivezGracePeriod is over.
	BootSequence []Checker
	// ReadyzOnly are asked by /readyz alone: a server that drains is alive.
	ReadyzOnly []Checker
	// LivezGracePeriod is counted from Install.
	LivezGracePeriod time.Duration
}

// Install serves the checks, and ping, below /livez, /readyz and /healthz. It
// returns all checks of /readyz.
func Install(mux Mux, c Checks) []Checker {
	always := slices.Concat([]Checker{healthz.PingHealthz}, c.Always)
	all := slices.Concat(always, c.BootSequence)
	live := all
	if c.LivezGracePeriod > 0 {
		live = slices.Concat(always, withGracePeriod(c.BootSequence, time.Now().Add(c.LivezGracePeriod)))
	}
	healthz.InstallLivezHandler(mux, live...)
	healthz.InstallHandler(mux, all...)
	ready := slices.Concat(all, c.ReadyzOnly)
	healthz.InstallReadyzHandler(mux, ready...)
	return ready
}

// withGracePeriod returns the checks such that they pass until a moment.
func withGracePeriod(checks []Checker, until time.Time) []Checker {
	var all []Checker
	for _, c := range checks {
		all = append(all, healthz.NamedCheck(c.Name(), func(r *http.Request) error {
			if time.Now().Before(until) {
				return nil
			}
			return c.Check(r)
		}))
	}
	return all
}

var errNotFinished = errors.New("not finished")

// PostStartHook is the check of a part of the start, named as upstream names its
// post-start hook: it fails until done is closed.
func PostStartHook(name string, done <-chan struct{}) Checker {
	return healthz.NamedCheck(PostStartHookPrefix+name, func(*http.Request) error {
		select {
		case <-done:
			return nil
		default:
			return errNotFinished
		}
	})
}

// PostStartHooks are the checks of several parts that are done at the same moment.
func PostStartHooks(done <-chan struct{}, names ...string) []Checker {
	var all []Checker
	for _, name := range names {
		all = append(all, PostStartHook(name, done))
	}
	return all
}

// PostStartHookPrefix is before the names of post-start hooks.
const PostStartHookPrefix = "poststarthook/"

// Log is the check that log lines can still be written. Its first use starts a
// goroutine that flushes the log every minute as long as the process lives.
func Log() Checker { return healthz.LogHealthz }

// Shutdown is a check that fails once done is closed.
func Shutdown(done <-chan struct{}) Checker { return healthz.NewShutdownHealthz(done) }

// storeTimeout is kube-apiserver's --etcd-healthcheck-timeout.
const storeTimeout = 2 * time.Second

// Store is the check that the database answers. It stands where upstream's check
// of etcd does, under its names, which probes and dashboards know: "etcd" for
// everybody, and "etcd-readiness" for /readyz besides. Anybody may ask it, so the
// database is asked at most once per half time-out, as upstream does it for
// etcd; requests that come meanwhile share the answer.
func Store(ask func(context.Context) error) (always, ready Checker) {
	s := &sharedCheck{probe: ask}
	check := func(r *http.Request) error { return s.check(r.Context()) }
	return healthz.NamedCheck("etcd", check), healthz.NamedCheck("etcd-readiness", check)
}

// sharedCheck runs one check for all requests of a period.
type sharedCheck struct {
	probe func(context.Context) error

	mu   sync.Mutex
	last *checkResult // nil before the first request
}

// checkResult is one run of a check. err is set before done is closed.
type checkResult struct {
	startedAt time.Time
	done      chan struct{}
	err       error
}

func (s *sharedCheck) check(ctx context.Context) error {
	a, run := s.join(time.Now())
	if run {
		// The client that happens to be the first must not end the check for
		// the others by going away.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
		defer cancel()
		a.err = s.probe(ctx)
		close(a.done)
		return a.err
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join returns the answer to share; run says that the caller must run the check.
func (s *sharedCheck) join(now time.Time) (a *checkResult, run bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		select {
		case <-s.last.done:
			if now.Sub(s.last.startedAt) < storeTimeout/2 {
				return s.last, false
			}
		default:
			return s.last, false
		}
	}
	s.last = &checkResult{startedAt: now, done: make(chan struct{})}
	return s.last, true
}
