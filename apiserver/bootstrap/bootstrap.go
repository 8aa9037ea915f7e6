package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"byre/apiserver/process"
)

// Config holds the dependencies and settings of Bootstrap.
type Config struct {
	// Client is a clientset over the server's loopback transport.
	Client kubernetes.Interface
	// Informers is an informer factory over Client. The caller starts it after New.
	Informers informers.SharedInformerFactory
	// APIResourceConfigSource says which APIs are served; nil means all.
	APIResourceConfigSource serverstorage.APIResourceConfigSource

	// ServiceCIDRs are the ranges of the default ServiceCIDR, one or two, the
	// primary first.
	ServiceCIDRs []net.IPNet
	// Service describes the kubernetes Service.
	Service Service
	// Leases stores the addresses of the running servers. nil means that this
	// server is the only one.
	Leases reconcilers.Leases
	// Ready is closed when this server is ready. PublishEndpoints adds the server to
	// the endpoints only then. nil means at once.
	Ready <-chan struct{}

	// ClusterAuthentication publishes the CAs and header names that extension API
	// servers trust in the ConfigMap kube-system/extension-apiserver-authentication.
	// Run runs it; nil publishes nothing.
	ClusterAuthentication *clusterauthenticationtrust.Controller
	// EpochEnded returns a channel that is closed when the store has lost commits, perhaps those of the steps that
	// have no interval. nil means never.
	EpochEnded func() <-chan struct{}

	Logger klog.Logger
}

// Service describes the Service default/kubernetes, by which Pods reach the API.
type Service struct {
	// ClusterIP is the Service's cluster IP, by convention the first address of the
	// primary range.
	ClusterIP net.IP
	// NodePort, if not zero, makes the Service a NodePort Service.
	NodePort int
	// AdvertiseAddress and AdvertisePort are the address at which this server is
	// reached. With a nil address the server is not added to the endpoints.
	AdvertiseAddress net.IP
	AdvertisePort    int
}

// step creates and repairs one kind of bootstrap objects, as one of upstream's post-start
// hooks does.
type step struct {
	// name is the name of upstream's post-start hook.
	name string
	// requires is the resource that the step writes. The step is left out if it is
	// not served.
	requires schema.GroupVersionResource
	// ensure creates the objects that are missing and repairs the others. It is
	// idempotent.
	ensure func(context.Context) error
	// interval is the time between two repairs. Zero means that ensure runs once
	// per start.
	interval time.Duration
	// isPrerequisite says that the other steps fail unless this one is done.
	isPrerequisite bool

	// done is true after the first success.
	done atomic.Bool
	// lastErr is the error of the last attempt; it points to nil after a success.
	lastErr atomic.Pointer[error]
}

// Bootstrap creates the bootstrap objects and repairs them periodically.
type Bootstrap struct {
	config Config
	steps  []*step
	// done is closed when every step has succeeded once.
	done chan struct{}
	// differentCIDRs are the ranges of the default ServiceCIDR that ensureServiceCIDR has logged last.
	differentCIDRs []string
}

// New checks the configuration. It makes no request and starts no goroutine.
func New(c Config) (*Bootstrap, error) {
	if c.Client == nil || c.Informers == nil {
		return nil, errors.New("bootstrap: Client and Informers are required")
	}
	if len(c.ServiceCIDRs) == 0 || len(c.ServiceCIDRs) > 2 {
		return nil, fmt.Errorf("bootstrap: one or two service ranges are required, not %d", len(c.ServiceCIDRs))
	}
	if c.Service.ClusterIP == nil {
		return nil, errors.New("bootstrap: the kubernetes Service needs a cluster IP")
	}
	if c.Leases == nil {
		c.Leases = &singleServerLeases{}
	}
	if c.Ready == nil {
		ready := make(chan struct{})
		close(ready)
		c.Ready = ready
	}
	if c.EpochEnded == nil {
		c.EpochEnded = func() <-chan struct{} { return nil }
	}
	b := &Bootstrap{config: c, done: make(chan struct{})}
	for _, s := range b.allSteps() {
		if c.APIResourceConfigSource != nil && !c.APIResourceConfigSource.ResourceEnabled(s.requires) {
			continue
		}
		if b.steps = append(b.steps, s); s.requires.Group == flowcontrolv1.GroupName {
			c.Informers.Flowcontrol().V1().FlowSchemas().Informer()
			c.Informers.Flowcontrol().V1().PriorityLevelConfigurations().Informer()
		}
	}
	return b, nil
}

// allSteps returns every step, with the intervals of upstream's controllers.
func (b *Bootstrap) allSteps() []*step {
	core := schema.GroupVersion{Version: "v1"}
	return []*step{
		{name: "start-system-namespaces-controller", requires: core.WithResource("namespaces"),
			ensure: b.ensureNamespaces, interval: time.Minute, isPrerequisite: true},
		{name: "start-kubernetes-service-cidr-controller",
			requires: schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"},
			ensure:   b.ensureServiceCIDR, interval: 10 * time.Second},
		{name: "bootstrap-controller", requires: core.WithResource("services"),
			ensure: b.ensureService, interval: 10 * time.Second},
		{name: "rbac/bootstrap-roles",
			requires: schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
			ensure:   b.ensurePolicy},
		{name: "scheduling/bootstrap-system-priority-classes",
			requires: schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
			ensure:   b.ensurePriorityClasses},
		{name: "priority-and-fairness-config-producer",
			requires: schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
			ensure:   b.ensureFlowControl, interval: time.Minute},
	}
}

// Done is closed when every step has succeeded once. The server is not ready before.
func (b *Bootstrap) Done() <-chan struct{} { return b.done }

// Checks returns a readiness check for every step, which passes after the step's first success,
// and else says why the step is not done.
func (b *Bootstrap) Checks() []process.HealthChecker {
	var all []process.HealthChecker
	for _, s := range b.steps {
		all = append(all, healthz.NamedCheck(process.PostStartHookPrefix+s.name, s.check))
	}
	return all
}

func (s *step) check(*http.Request) error {
	if s.done.Load() {
		return nil
	}
	if err := s.lastErr.Load(); err != nil && *err != nil {
		return *err
	}
	return errors.New("not finished")
}

// Run calls Ensure and then repairs the steps that have an interval until ctx ends. It
// returns when all its goroutines have ended.
func (b *Bootstrap) Run(ctx context.Context) error {
	// Got before Ensure: commits that are lost while it runs may be those of a step that is done.
	ended := b.config.EpochEnded()
	if err := b.Ensure(ctx); err != nil {
		return nil //nolint:nilerr // Ensure fails only when ctx ends.
	}
	var loops sync.WaitGroup
	for _, s := range b.steps {
		if s.interval > 0 {
			loops.Go(func() { b.ensurePeriodically(ctx, s) })
		} else {
			loops.Go(func() { b.ensureInEachEpoch(ctx, s, ended) })
		}
	}
	if b.config.ClusterAuthentication != nil {
		loops.Go(func() { b.config.ClusterAuthentication.Run(ctx, 1) })
	}
	loops.Wait()
	return nil
}

// Ensure runs every step until it succeeds once, the prerequisites first. It returns an
// error only if ctx ends. It is called once, by Run or in its place.
func (b *Bootstrap) Ensure(ctx context.Context) error {
	for _, prerequisites := range []bool{true, false} {
		var running sync.WaitGroup
		for _, s := range b.steps {
			if s.isPrerequisite == prerequisites {
				running.Go(func() { b.ensureWithRetry(ctx, s) })
			}
		}
		running.Wait()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	close(b.done)
	return nil
}

// The first retry comes soon: during the start a step usually fails because a cache of
// another component has not synced yet.
const (
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

// ensureWithRetry runs a step with exponential backoff until it succeeds or ctx ends.
func (b *Bootstrap) ensureWithRetry(ctx context.Context, s *step) {
	start := time.Now()
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		err := s.ensure(ctx)
		s.lastErr.Store(&err)
		if err == nil {
			s.done.Store(true)
			b.config.Logger.V(2).Info("Bootstrap step is done", "step", s.name, "duration", time.Since(start))
			return
		}
		b.report(err, s.name, delay)
		if !b.sleep(ctx, delay) {
			return
		}
	}
}

// report logs a failure of a step that is retried after delay. Failures before the
// longest delay are expected during the start (see minRetryDelay) and are logged at
// verbosity 2.
func (b *Bootstrap) report(err error, step string, delay time.Duration) {
	if delay < maxRetryDelay {
		b.config.Logger.V(2).Info("Bootstrap step will be tried again", "step", step, "err", err)
		return
	}
	b.config.Logger.Error(err, "Bootstrap step keeps failing; will try again", "step", step)
}

// ensurePeriodically repairs a step every interval until ctx ends.
func (b *Bootstrap) ensurePeriodically(ctx context.Context, s *step) {
	for b.sleep(ctx, s.interval) {
		if err := s.ensure(ctx); err != nil && ctx.Err() == nil {
			b.config.Logger.Error(err, "Could not repair the bootstrap objects; will try again", "step", s.name)
		}
	}
}

// ensureInEachEpoch runs a step again when ended is closed, and then in each new epoch until ctx ends.
func (b *Bootstrap) ensureInEachEpoch(ctx context.Context, s *step, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			ended = b.config.EpochEnded()
			b.ensureWithRetry(ctx, s)
		case <-ctx.Done():
			return
		}
	}
}

// sleep waits for d. It returns false if ctx ends first.
func (b *Bootstrap) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// creator is the part of a client that createIfMissing uses.
type creator[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
}

// createIfMissing creates an object unless there is one of its name, which it does not change.
func createIfMissing[T metav1.Object](ctx context.Context, client creator[T], object T) error {
	_, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err = client.Create(ctx, object, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil // another replica has created it meanwhile
	}
	return err
}
