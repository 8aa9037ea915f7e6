package process

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// HealthChecker is a named health check.
type HealthChecker = healthz.HealthChecker

// HealthMux is the handler registry that Install adds its handlers to.
type HealthMux interface {
	Handle(path string, handler http.Handler)
}

// AllPass runs the checks in this process and reports whether all of them pass.
func AllPass(ctx context.Context, checks []HealthChecker) bool {
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

// HealthChecks are the checks of a server, by the endpoints that run them.
type HealthChecks struct {
	// Always are run by /livez, /healthz and /readyz.
	Always []HealthChecker
	// NotLive are run by /healthz and /readyz: what they find does not end with the process.
	NotLive []HealthChecker
	// BootSequence are the checks of the start. All three endpoints run them. On
	// /livez they pass until LivezGracePeriod is over.
	BootSequence []HealthChecker
	// Writes are run by /readyz alone, and tell whether all writes are accepted. A start does
	// not wait for them: a server whose database is full has started, and clients must reach
	// it to delete objects.
	Writes []HealthChecker
	// ReadyzOnly are run by /readyz alone: a server that drains is not ready, but
	// alive.
	ReadyzOnly []HealthChecker
	// Separate have paths of their own below /readyz, which does not run them: what they tell of
	// is no reason to send clients elsewhere.
	Separate []HealthChecker
	// LivezGracePeriod begins with the call of Install (--livez-grace-period).
	LivezGracePeriod time.Duration
}

// InstallHealth adds the handlers of /livez, /readyz and /healthz to mux, with the given checks
// and upstream's check "ping". It returns the checks that pass when the start is done: those of
// /readyz without Writes.
func InstallHealth(mux HealthMux, c HealthChecks) []HealthChecker {
	always := slices.Concat([]HealthChecker{healthz.PingHealthz}, c.Always)
	all := slices.Concat(always, c.NotLive, c.BootSequence)
	boot := c.BootSequence
	if c.LivezGracePeriod > 0 {
		boot = withGracePeriod(boot, time.Now().Add(c.LivezGracePeriod))
	}
	healthz.InstallLivezHandler(mux, slices.Concat(always, boot)...)
	healthz.InstallHandler(mux, all...)
	healthz.InstallReadyzHandler(mux, slices.Concat(all, c.Writes, c.ReadyzOnly)...)
	for _, check := range c.Separate {
		healthz.InstallPathHandler(mux, "/readyz/"+check.Name(), check)
	}
	return slices.Concat(all, c.ReadyzOnly)
}

// withGracePeriod wraps the checks so that they pass until the given time.
func withGracePeriod(checks []HealthChecker, until time.Time) []HealthChecker {
	var all []HealthChecker
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

// PostStartHook returns the check of a post-start hook, which fails until done is closed.
// name is the name of upstream's hook.
func PostStartHook(name string, done <-chan struct{}) HealthChecker {
	return healthz.NamedCheck(PostStartHookPrefix+name, func(*http.Request) error {
		select {
		case <-done:
			return nil
		default:
			return errNotFinished
		}
	})
}

// PostStartHooks returns the checks of several hooks that share the channel done.
func PostStartHooks(done <-chan struct{}, names ...string) []HealthChecker {
	var all []HealthChecker
	for _, name := range names {
		all = append(all, PostStartHook(name, done))
	}
	return all
}

// PostStartHookPrefix is the prefix of the names of these checks.
const PostStartHookPrefix = "poststarthook/"

// storeTimeout bounds one probe. It is the default of kube-apiserver's
// --etcd-healthcheck-timeout.
const storeTimeout = 2 * time.Second

// StoreHealth returns the checks that the database answers. They have the names of upstream's
// checks of etcd, because probes and dashboards know these: always is "etcd", ready is
// "etcd-readiness", which /readyz serves in addition. The health endpoints are open to
// everybody, so probe runs at most once per half of storeTimeout, as upstream's check of
// etcd does. The requests in between share the result.
func StoreHealth(probe func(context.Context) error) (always, ready HealthChecker) {
	s := &sharedCheck{probe: probe, turn: make(chan struct{}, 1)}
	check := func(r *http.Request) error { return s.check(r.Context()) }
	return healthz.NamedCheck("etcd", check), healthz.NamedCheck("etcd-readiness", check)
}

// sharedCheck calls probe once for all requests until half of storeTimeout after its end.
type sharedCheck struct {
	probe func(context.Context) error
	// turn holds an item while a request reads or changes the fields below.
	turn chan struct{}
	err  error
	ends time.Time
}

// errProbePanicked is the result for the requests that share a probe that panicked.
var errProbePanicked = errors.New("the check of the database panicked")

// check returns the result that is shared, or runs the probe. A panic of the probe goes on to
// the panic filter of the request that runs it.
func (s *sharedCheck) check(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if time.Now().Before(s.ends) {
		return s.err
	}
	// Other requests share the result, so the probe must not end when the client of the
	// first one disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	defer func() { s.ends = time.Now().Add(storeTimeout / 2) }()
	s.err = errProbePanicked
	s.err = s.probe(ctx)
	return s.err
}
