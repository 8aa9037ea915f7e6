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

// Config is what New needs.
type Config struct {
	// Controllers are the names of those to run, as Select gives them.
	Controllers []string
	// ClientConfig is the configuration of the controllers' clients.
	ClientConfig *rest.Config
	// RootCA is the PEM bundle that the root CA publisher puts into every
	// namespace.
	RootCA []byte
	// NewMetadataWatch gives a new watch of a resource whose objects are in this server's
	// store, and nil for a resource that another server keeps.
	NewMetadataWatch func(schema.GroupResource) *objectstore.MetadataWatch
	// Lease, when not nil, is held while the controllers run.
	Lease *Lease
}

// Runner runs a selection of controllers.
type Runner struct {
	config Config
}

// New checks the configuration; it starts nothing.
func New(c Config) (*Runner, error) {
	known := constructors()
	for _, name := range c.Controllers {
		if known[name] == nil {
			return nil, fmt.Errorf("there is no controller %q", name)
		}
	}
	return &Runner{config: c}, nil
}

// Run runs the controllers until ctx ends. It returns early only with an error.
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

// runWhileLeading waits for the lease, runs the controllers while it is held, and returns
// when it is lost or ctx ends.
func (r *Runner) runWhileLeading(ctx context.Context) error {
	leading := make(chan context.Context, 1)
	elector, err := r.newElector(func(held context.Context) { leading <- held })
	if err != nil {
		return err
	}
	// The lease is given back only after the controllers have stopped, so that
	// no other server's begin before: the elector outlives ctx by that much.
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

// runControllers runs the controllers once. Each term has its own informers: what a
// controller registered with them can't be taken back when a term ends.
func (r *Runner) runControllers(ctx context.Context) error {
	clients, err := newClients(r.config.ClientConfig)
	if err != nil {
		return err
	}
	t := &controllerContext{
		clients:          clients,
		rootCA:           r.config.RootCA,
		newMetadataWatch: r.config.NewMetadataWatch,
		informers:        informers.NewSharedInformerFactoryWithOptions(clients.kube, 0, informers.WithTransform(loopback.StripManagedFields)),
		informersStarted: make(chan struct{}),
	}
	var runs []func(context.Context)
	known := constructors()
	for _, name := range r.config.Controllers {
		run, err := known[name](ctx, t)
		if err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
		runs = append(runs, run)
	}
	for _, factory := range t.factories() {
		factory.StartWithContext(ctx)
		defer factory.Shutdown()
	}
	if t.metadataInformers != nil {
		defer t.metadataInformers.Shutdown()
	}
	close(t.informersStarted)
	var group sync.WaitGroup
	for _, run := range runs {
		group.Go(func() { run(ctx) })
	}
	klog.FromContext(ctx).V(1).Info("Running controllers", "controllers", r.config.Controllers)
	group.Wait()
	return nil
}

// kubeClient makes a clientset whose requests say which controller sent them.
func kubeClient(config *rest.Config, name string) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(config), name))
}
