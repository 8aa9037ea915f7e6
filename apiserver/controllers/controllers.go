package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"byre/apiserver/loopback"
	"byre/apiserver/objectstore"
)

// Config holds the dependencies of a Runner.
type Config struct {
	// Controllers are the names of the controllers to run, as Select returns them.
	Controllers []string
	// ClientConfig is the configuration of the controllers' API clients.
	ClientConfig *rest.Config
	// RootCA is the PEM bundle that the root CA publisher writes to every namespace.
	RootCA []byte
	// NewMetadataWatch returns a new watch of a resource that this server stores,
	// and nil for a resource of an aggregated API server.
	NewMetadataWatch func(schema.GroupResource) *objectstore.MetadataWatch
	// Lease is the lease that this server holds while it runs the controllers. nil
	// means that no other server shares the database.
	Lease *Lease
}

// Runner runs the selected controllers.
type Runner struct {
	config Config
}

// New checks the configuration. It starts no goroutine.
func New(c Config) (*Runner, error) {
	known := constructors()
	for _, name := range c.Controllers {
		if known[name] == nil {
			return nil, fmt.Errorf("there is no controller %q", name)
		}
	}
	return &Runner{config: c}, nil
}

// Run runs the controllers until ctx ends, or, with a lease, whenever this server holds
// it. It returns before ctx ends only with an error.
func (r *Runner) Run(ctx context.Context) error {
	if len(r.config.Controllers) == 0 {
		<-ctx.Done()
		return nil
	}
	if r.config.Lease == nil {
		return r.runControllers(ctx)
	}
	for ctx.Err() == nil {
		if err := r.runWhileLeading(ctx); err != nil {
			return err
		}
	}
	return nil
}

// runWhileLeading waits for the lease and runs the controllers while this server holds
// it. It returns when the lease is lost or ctx ends.
func (r *Runner) runWhileLeading(ctx context.Context) error {
	leading := make(chan context.Context, 1)
	elector, err := r.newElector(func(held context.Context) { leading <- held })
	if err != nil {
		return err
	}
	// Invariant: the controllers of two servers never run at the same time. The elector
	// therefore releases the lease only after the controllers have stopped, and must
	// not end with ctx.
	electing, resign := context.WithCancel(context.WithoutCancel(ctx))
	var election sync.WaitGroup
	defer election.Wait()
	defer resign()
	election.Go(func() { elector.Run(electing) })
	select {
	case <-ctx.Done():
		return nil
	case held := <-leading:
		term, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(held, cancel)()
		return r.runControllers(term)
	}
}

// newElector returns an elector that calls lead, with a context that ends when the lease
// is lost, when this server has acquired the lease.
func (r *Runner) newElector(lead func(context.Context)) (*leaderelection.LeaderElector, error) {
	lock, err := r.config.Lease.lock(r.config.ClientConfig)
	if err != nil {
		return nil, err
	}
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock,
		// kube-controller-manager's defaults.
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Name:            r.config.Lease.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: lead,
			OnStoppedLeading: func() {},
		},
	})
}

// runControllers runs the controllers until ctx ends. Each call makes new informers,
// because the event handlers that a controller adds to an informer cannot be removed.
func (r *Runner) runControllers(ctx context.Context) error {
	clients, err := newClients(r.config.ClientConfig)
	if err != nil {
		return err
	}
	cc := &controllerContext{
		clients:          clients,
		rootCA:           r.config.RootCA,
		newMetadataWatch: r.config.NewMetadataWatch,
		informers:        informers.NewSharedInformerFactoryWithOptions(clients.kube, 0, informers.WithTransform(loopback.StripManagedFields)),
		informersStarted: make(chan struct{}),
	}
	var runs []func(context.Context)
	known := constructors()
	for _, name := range r.config.Controllers {
		run, err := known[name](ctx, cc)
		if err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
		runs = append(runs, run)
	}
	for _, factory := range cc.factories() {
		factory.StartWithContext(ctx)
		defer factory.Shutdown()
	}
	if cc.metadataInformers != nil {
		defer cc.metadataInformers.Shutdown()
	}
	close(cc.informersStarted)
	var group sync.WaitGroup
	for _, run := range runs {
		group.Go(func() { run(ctx) })
	}
	klog.FromContext(ctx).V(1).Info("Running controllers", "controllers", r.config.Controllers)
	group.Wait()
	return nil
}

// kubeClient returns a clientset whose user agent ends in name.
func kubeClient(config *rest.Config, name string) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(config), name))
}
