package health

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// Checker is one named check.
type Checker = healthz.HealthChecker

// Mux is where Install puts its handlers.
type Mux interface {
	Handle(path string, handler http.Handler)
}

// Install serves the checks below /livez, /readyz and /healthz. Those of ready
// are asked by /readyz alone: a server that is starting or draining lives. It
// returns all checks of /readyz.
func Install(mux Mux, always, ready []Checker) []Checker {
	always = append([]Checker{healthz.PingHealthz}, always...)
	ready = append(always[:len(always):len(always)], ready...)
	healthz.InstallLivezHandler(mux, always...)
	healthz.InstallHandler(mux, always...)
	healthz.InstallReadyzHandler(mux, ready...)
	return ready
}

// Pass tells whether all checks pass, asked within this process.
func Pass(ctx context.Context, checks []Checker) bool {
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

// Gate is a check that fails until it is opened.
type Gate struct {
	name   string
	opened atomic.Bool
}

// NewGate returns a closed gate.
func NewGate(name string) *Gate { return &Gate{name: name} }

// Open lets the check pass from now on.
func (g *Gate) Open() { g.opened.Store(true) }

// Name implements Checker.
func (g *Gate) Name() string { return g.name }

var errNotFinished = errors.New("not finished")

// Check implements Checker.
func (g *Gate) Check(*http.Request) error {
	if !g.opened.Load() {
		return errNotFinished
	}
	return nil
}

// Shutdown is a check that fails once done is closed.
func Shutdown(done <-chan struct{}) Checker { return healthz.NewShutdownHealthz(done) }

// storeTimeout is kube-apiserver's --etcd-healthcheck-timeout.
const storeTimeout = 2 * time.Second

// Store is the check that the database answers. Anybody may ask it, so the
// database is asked at most once per half time-out, as upstream does it for
// etcd; requests that come meanwhile share the answer.
func Store(ask func(context.Context) error) Checker {
	s := &sharedCheck{ask: ask}
	return healthz.NamedCheck("store", func(r *http.Request) error { return s.check(r.Context()) })
}

// sharedCheck runs one check for all requests of a period.
type sharedCheck struct {
	ask func(context.Context) error

	mu   sync.Mutex
	last *answer // nil before the first request
}

// answer is one run of a check. err is set before done is closed.
type answer struct {
	asked time.Time
	done  chan struct{}
	err   error
}

func (s *sharedCheck) check(ctx context.Context) error {
	a, run := s.join(time.Now())
	if run {
		// The client that happens to be the first must not end the check for
		// the others by going away.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
		defer cancel()
		a.err = s.ask(ctx)
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
func (s *sharedCheck) join(now time.Time) (a *answer, run bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		select {
		case <-s.last.done:
			if now.Sub(s.last.asked) < storeTimeout/2 {
				return s.last, false
			}
		default:
			return s.last, false
		}
	}
	s.last = &answer{asked: now, done: make(chan struct{})}
	return s.last, true
}
