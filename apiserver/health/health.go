package health

import (
	"context"
	"errors"
	"net/http"
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
// are asked by /readyz alone: a server that is starting or draining lives.
func Install(mux Mux, always, ready []Checker) {
	always = append([]Checker{healthz.PingHealthz}, always...)
	healthz.InstallLivezHandler(mux, always...)
	healthz.InstallHandler(mux, always...)
	healthz.InstallReadyzHandler(mux, append(always[:len(always):len(always)], ready...)...)
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

// Store is the check that the database answers.
func Store(ask func(context.Context) error) Checker {
	return healthz.NamedCheck("store", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
		defer cancel()
		return ask(ctx)
	})
}
