package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/utils/clock"
)

// Config says what to make and with what.
type Config struct {
	// Client is the server's own clientset, over its loopback transport.
	Client kubernetes.Interface
	// Resources says which APIs are on; nil means all.
	Resources serverstorage.APIResourceConfigSource

	// ServiceCIDRs are the ranges of the default ServiceCIDR, one or two, the
	// primary first.
	ServiceCIDRs []net.IPNet
	// Service describes the kubernetes Service.
	Service Service
	// Replicas keeps the addresses of the servers that are up; nil means that
	// this one is the only one.
	Replicas reconcilers.Leases
	// Ready is closed once this server is ready: Publish puts it among the
	// endpoints only then. Nil means at once.
	Ready <-chan struct{}

	// Trust is what extension API servers should trust, published in
	// kube-system/extension-apiserver-authentication; nil leaves that out.
	Trust *clusterauthenticationtrust.ClusterAuthenticationInfo

	Logger klog.Logger
	// Clock is for retries and periods; nil means the real one.
	Clock clock.WithTicker
}

// Service is the Service that clients in the cluster find the API by.
type Service struct {
	// ClusterIP is its address, by convention the first of the primary range.
	ClusterIP net.IP
	// Port is the Service's; zero means 443.
	Port int
	// NodePort, when not zero, makes it a NodePort Service.
	NodePort int
	// AdvertiseAddress and AdvertisePort are where this server is reached. A nil
	// address keeps it out of the endpoints.
	AdvertiseAddress net.IP
	AdvertisePort    int
}

// step is one part of what is made.
type step struct {
	// name is that of upstream's post-start hook.
	name string
	// needs is the API that the step writes.
	needs schema.GroupVersionResource
	// make does it all; calling it again repairs.
	make func(context.Context) error
	// every is between two repairs; zero means that it is made once a start.
	every time.Duration
	// first steps are made before the others, which would fail without them.
	first bool

	made atomic.Bool
	// last is the error of the last try, nil after a success.
	last atomic.Pointer[error]
}

// Bootstrap makes and keeps the objects.
type Bootstrap struct {
	config Config
	steps  []*step
	// made is closed when every step has been made once.
	made chan struct{}
}

// New checks the configuration; it does nothing yet.
func New(c Config) (*Bootstrap, error) {
	if c.Client == nil {
		return nil, errors.New("bootstrap: a client is required")
	}
	if len(c.ServiceCIDRs) == 0 || len(c.ServiceCIDRs) > 2 {
		return nil, fmt.Errorf("bootstrap: one or two service ranges are required, not %d", len(c.ServiceCIDRs))
	}
	if c.Service.ClusterIP == nil {
		return nil, errors.New("bootstrap: the kubernetes Service needs a cluster IP")
	}
	if c.Service.Port == 0 {
		c.Service.Port = 443
	}
	if c.Replicas == nil {
		c.Replicas = &soleReplica{}
	}
	if c.Ready == nil {
		ready := make(chan struct{})
		close(ready)
		c.Ready = ready
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	b := &Bootstrap{config: c, made: make(chan struct{})}
	for _, s := range b.allSteps() {
		if c.Resources == nil || c.Resources.ResourceEnabled(s.needs) {
			b.steps = append(b.steps, s)
		}
	}
	return b, nil
}

// allSteps is the list of what there is, with upstream's periods.
func (b *Bootstrap) allSteps() []*step {
	core := schema.GroupVersion{Version: "v1"}
	return []*step{
		{name: "start-system-namespaces-controller", needs: core.WithResource("namespaces"),
			make: b.ensureNamespaces, every: time.Minute, first: true},
		{name: "start-kubernetes-service-cidr-controller",
			needs: schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"},
			make:  b.ensureServiceCIDR, every: 10 * time.Second},
		{name: "bootstrap-controller", needs: core.WithResource("services"),
			make: b.ensureService, every: 10 * time.Second},
		{name: "rbac/bootstrap-roles",
			needs: schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
			make:  b.ensurePolicy},
		{name: "scheduling/bootstrap-system-priority-classes",
			needs: schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
			make:  b.ensurePriorityClasses},
		{name: "priority-and-fairness-config-producer",
			needs: schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
			make:  b.ensureFlowControl, every: time.Minute},
	}
}

// Made is closed when everything has been made once; the server isn't ready
// before.
func (b *Bootstrap) Made() <-chan struct{} { return b.made }

// Check is a part of readiness.
type Check struct {
	// Name is that of upstream's post-start hook, without "poststarthook/".
	Name string
	// Err tells why the part hasn't been made yet; nil once it has been.
	Err error
}

// Checks returns the state of every step.
func (b *Bootstrap) Checks() []Check {
	var all []Check
	for _, s := range b.steps {
		all = append(all, Check{Name: s.name, Err: s.err()})
	}
	return all
}

func (s *step) err() error {
	if s.made.Load() {
		return nil
	}
	if err := s.last.Load(); err != nil && *err != nil {
		return *err
	}
	return errors.New("not finished")
}

// Run makes everything, and then keeps what upstream keeps, until ctx ends.
func (b *Bootstrap) Run(ctx context.Context) error {
	if err := b.Ensure(ctx); err != nil {
		return nil //nolint:nilerr // Ensure only gives up when ctx ends.
	}
	var loops sync.WaitGroup
	for _, s := range b.steps {
		if s.every > 0 {
			loops.Go(func() { b.keep(ctx, s) })
		}
	}
	if b.config.Trust != nil {
		loops.Go(func() {
			clusterauthenticationtrust.NewClusterAuthenticationTrustController(*b.config.Trust, b.config.Client).Run(ctx, 1)
		})
	}
	loops.Wait()
	return nil
}

// Ensure makes everything once. Each step is tried until it succeeds; the error
// is that of ctx.
func (b *Bootstrap) Ensure(ctx context.Context) error {
	for _, first := range []bool{true, false} {
		var making sync.WaitGroup
		for _, s := range b.steps {
			if s.first == first {
				making.Go(func() { b.try(ctx, s) })
			}
		}
		making.Wait()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-b.made:
	default:
		close(b.made)
	}
	return nil
}

// The first retry comes soon: at a start, a step mostly waits for the caches of
// another part to fill.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// try makes a step, again and again until it succeeds or ctx ends.
func (b *Bootstrap) try(ctx context.Context, s *step) {
	start := b.config.Clock.Now()
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		err := s.make(ctx)
		s.last.Store(&err)
		if err == nil {
			s.made.Store(true)
			b.config.Logger.V(2).Info("Bootstrap step is made", "step", s.name, "duration", b.config.Clock.Since(start))
			return
		}
		b.report(err, s.name, delay)
		if !b.sleep(ctx, delay) {
			return
		}
	}
}

// report tells of a failure that is tried again after delay. The first ones are
// no news: see firstRetry.
func (b *Bootstrap) report(err error, step string, delay time.Duration) {
	if delay < lastRetry {
		b.config.Logger.V(2).Info("Bootstrap step will be tried again", "step", step, "err", err)
		return
	}
	b.config.Logger.Error(err, "Bootstrap step keeps failing; will try again", "step", step)
}

// keep repairs a step periodically.
func (b *Bootstrap) keep(ctx context.Context, s *step) {
	for b.sleep(ctx, s.every) {
		if err := s.make(ctx); err != nil && ctx.Err() == nil {
			b.config.Logger.Error(err, "Could not repair what bootstrap made; will try again", "step", s.name)
		}
	}
}

// sleep is false when ctx ended.
func (b *Bootstrap) sleep(ctx context.Context, d time.Duration) bool {
	timer := b.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
