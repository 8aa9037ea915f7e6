package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	kubectrlmgrconfigv1alpha1 "k8s.io/kube-controller-manager/config/v1alpha1"
	kubectrlmgrconfig "k8s.io/kubernetes/pkg/controller/apis/config"
	kubectrlmgrconfigscheme "k8s.io/kubernetes/pkg/controller/apis/config/scheme"

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
	// Files are the keys that controllers sign with.
	Files Files
	// WithScheduler says that kube-scheduler's scheduler runs too.
	WithScheduler bool
	// Lease is the lease that this server holds while it runs the controllers. nil
	// means that no other server shares the database.
	Lease *Lease
}

// Files are paths of PEM files. A controller that needs a file that does not exist does
// not run: the key is kept elsewhere.
type Files struct {
	// CACert and CAKey are the CA that signs CertificateSigningRequests.
	CACert, CAKey string
	// ServiceAccountKey signs the tokens in Secrets.
	ServiceAccountKey string
}

// Runner runs the selected controllers.
type Runner struct {
	config Config
}

// New checks the configuration. It starts no goroutine.
func New(c Config) (*Runner, error) {
	known := descriptors()
	for _, name := range c.Controllers {
		if _, ok := known[name]; !ok {
			return nil, fmt.Errorf("there is no controller %q", name)
		}
	}
	return &Runner{config: c}, nil
}

// Run runs the controllers until ctx ends, or, with a lease, whenever this server holds
// it. It returns before ctx ends only with an error.
func (r *Runner) Run(ctx context.Context) error {
	if len(r.config.Controllers) == 0 && !r.config.WithScheduler {
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
	always, others := make(map[string]descriptor), make(map[string]descriptor)
	known := descriptors()
	for _, name := range r.config.Controllers {
		if d := known[name]; d.class == essential {
			always[name] = d
		} else {
			others[name] = d
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if len(others) > 0 {
		manager, err := newLeader(clients.kube, "kube-controller-manager")
		if err != nil {
			return err
		}
		group.Go(func() { manager.runWithout(ctx, func(ctx context.Context) { r.runOnDemand(ctx, clients, others) }) })
	}
	if r.config.WithScheduler {
		scheduler, err := newLeader(clients.kube, "kube-scheduler")
		if err != nil {
			return err
		}
		group.Go(func() {
			scheduler.runWithout(ctx, func(ctx context.Context) { runScheduler(ctx, r.config.ClientConfig) })
		})
	}
	return r.runEssential(ctx, clients, always)
}

// runEssential runs the controllers of the class essential until ctx ends.
func (r *Runner) runEssential(ctx context.Context, clients clients, controllers map[string]descriptor) error {
	cc := &controllerContext{
		clients:          clients,
		rootCA:           r.config.RootCA,
		newMetadataWatch: r.config.NewMetadataWatch,
		informers:        informers.NewSharedInformerFactoryWithOptions(clients.kube, 0, informers.WithTransform(loopback.StripManagedFields)),
		informersStarted: make(chan struct{}),
	}
	var runs []func(context.Context)
	for name, d := range controllers {
		run, err := d.build(ctx, cc)
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
	<-ctx.Done()
	group.Wait()
	return nil
}

// runOnDemand runs controllers of the other classes until ctx ends.
func (r *Runner) runOnDemand(ctx context.Context, clients clients, controllers map[string]descriptor) {
	settings, err := defaultSettings()
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Cannot read the defaults of kube-controller-manager")
		return
	}
	cc := &controllerContext{
		clients:          clients,
		files:            r.config.Files,
		rootCA:           r.config.RootCA,
		settings:         settings,
		newMetadataWatch: r.config.NewMetadataWatch,
		informers:        informersOf(clients, controllers),
		mapper:           restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(clients.kube.Discovery())),
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		wait.UntilWithContext(ctx, func(context.Context) { cc.mapper.Reset() }, discoveryRefreshInterval)
	})
	(&onDemand{cc: cc, controllers: controllers}).run(ctx)
}

// defaultSettings returns the settings that kube-controller-manager has without flags.
func defaultSettings() (kubectrlmgrconfig.KubeControllerManagerConfiguration, error) {
	var versioned kubectrlmgrconfigv1alpha1.KubeControllerManagerConfiguration
	var settings kubectrlmgrconfig.KubeControllerManagerConfiguration
	kubectrlmgrconfigscheme.Scheme.Default(&versioned)
	err := kubectrlmgrconfigscheme.Scheme.Convert(&versioned, &settings, nil)
	return settings, err
}

// kubeClient returns a clientset whose user agent ends in name.
func kubeClient(config *rest.Config, name string) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(config), name))
}
