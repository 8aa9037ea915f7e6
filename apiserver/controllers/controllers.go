package controllers

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"
	kubectrlmgrconfigv1alpha1 "k8s.io/kube-controller-manager/config/v1alpha1"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	kubectrlmgrconfig "k8s.io/kubernetes/pkg/controller/apis/config"
	kubectrlmgrconfigscheme "k8s.io/kubernetes/pkg/controller/apis/config/scheme"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"

	"byre/apiserver/process"
	"byre/apiserver/storage"
)

// Config holds the dependencies of a Runner.
type Config struct {
	// Controllers are the names of the controllers to run, as Select returns them.
	Controllers []string
	// ClientConfig returns the configuration of API clients whose requests are those of
	// a user and have the user agent of a Kubernetes component.
	ClientConfig func(component string, who user.Info) *rest.Config
	// Self is a client of this server itself.
	Self kubernetes.Interface
	// RootCA is the PEM bundle that the root CA publisher writes to every namespace.
	RootCA []byte
	// NewMetadataWatch returns a new watch of a resource that this server stores,
	// and nil for a resource of an aggregated API server.
	NewMetadataWatch func(schema.GroupResource) *storage.MetadataWatch
	// Files are the keys that controllers sign with.
	Files Files
	// WithControllerManager says that this server does all that a kube-controller-manager
	// does, and WithScheduler that it does what a kube-scheduler does. It holds the Lease
	// of that component meanwhile, so that another process waits. Without
	// WithControllerManager it is this server that gives way.
	WithControllerManager, WithScheduler bool
	// ServerID is the name of this server, which the holders of its Leases begin with.
	ServerID string
	// Hosts returns the names and addresses under which this server is reached now.
	Hosts func() ([]string, error)
	// Shared says that other servers use the database too. One of them at a time runs the
	// controllers: the one that holds the Lease ReplicasLease.
	Shared bool
	// EpochEnded returns a channel that is closed when the store has lost commits. The controllers begin anew then:
	// they compare what they have seen and written with what is newer.
	EpochEnded func() <-chan struct{}
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
	// identity is this process as the holder of a Lease.
	identity string
}

// New checks the configuration. It starts no goroutine.
func New(c Config) (*Runner, error) {
	known := descriptors()
	for _, name := range c.Controllers {
		if _, ok := known[name]; !ok {
			return nil, fmt.Errorf("there is no controller %q", name)
		}
	}
	return &Runner{config: c, identity: newIdentity(c.ServerID)}, nil
}

// Run runs the controllers until ctx ends, or, with a shared database, whenever this server
// holds the Lease. It returns before ctx ends only with an error.
func (r *Runner) Run(ctx context.Context) error {
	switch {
	case len(r.config.Controllers) == 0 && !r.config.WithScheduler:
		<-ctx.Done()
		return nil
	case !r.config.Shared:
		return r.runEpochs(ctx)
	default:
		return r.runAsReplica(ctx)
	}
}

// runEpochs runs the controllers until ctx ends, and begins anew in each epoch.
func (r *Runner) runEpochs(ctx context.Context) error {
	for ctx.Err() == nil {
		epoch, cancel := context.WithCancel(ctx)
		group, epoch := errgroup.WithContext(epoch)
		group.Go(func() error {
			select {
			case <-r.config.EpochEnded():
				cancel()
			case <-epoch.Done():
			}
			return nil
		})
		group.Go(func() error { return r.runControllers(epoch) })
		err := group.Wait()
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// runControllers runs the controllers until ctx ends. Each call makes new informers,
// because the event handlers that a controller adds to an informer cannot be removed.
func (r *Runner) runControllers(ctx context.Context) error {
	root, err := r.config.newComponentClients(controllerManager, "shared-informers")
	if err != nil {
		return err
	}
	always, others := make(map[string]descriptor), make(map[string]descriptor)
	known := descriptors()
	for _, name := range r.config.Controllers {
		if d := known[name]; d.class == essential {
			always[name] = d
		} else {
			if r.config.WithControllerManager && name == names.PodGarbageCollectorController {
				d.triggers = append(d.triggers, pods) // whose informer runs for other controllers too
			}
			others[name] = d
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	if len(others) > 0 {
		onDemand := func(ctx context.Context) { r.runOnDemand(ctx, root, others) }
		if r.config.WithControllerManager {
			group.Go(func() error { return r.runAsComponent(ctx, controllerManager, onDemand) })
		} else {
			group.Go(func() error { return runWithout(ctx, root.kube, controllerManager, onDemand) })
		}
	}
	if r.config.WithScheduler {
		group.Go(func() error { return r.runAsComponent(ctx, kubeScheduler, r.runScheduler) })
	}
	group.Go(func() error { return r.runEssential(ctx, root, always) })
	return group.Wait()
}

// runEssential runs the controllers of the class essential until ctx ends.
func (r *Runner) runEssential(ctx context.Context, root clients, controllers map[string]descriptor) error {
	// The publisher of the root CA reads ConfigMaps of one name. The field selector keeps
	// all others out of memory.
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, rootcacertpublisher.RootCACertConfigMapName).String()
	resync := wait.Jitter(minResyncPeriod, 1)
	factory := informers.NewSharedInformerFactoryWithOptions(root.kube, resync, informers.WithTransform(process.StripManagedFields))
	shared := controllerContext{
		ControllerContext: app.ControllerContext{InformerFactory: factory, InformersStarted: make(chan struct{})},
		Config:            &r.config,
		root:              root,
		rootCAMaps: informers.NewSharedInformerFactoryWithOptions(root.kube, resync, informers.WithTransform(process.StripManagedFields),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = only })),
		metadataInformers: metadatainformer.NewSharedInformerFactoryWithOptions(root.metadata, 0,
			metadatainformer.WithTransform(process.StripManagedFields)),
	}
	var runs []func(context.Context)
	for name, d := range controllers {
		cc := shared
		run, err := d.construct(ctx, name, &cc)
		if err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
		if run != nil {
			runs = append(runs, run)
		}
	}
	for _, factory := range []informers.SharedInformerFactory{factory, shared.rootCAMaps} {
		factory.StartWithContext(ctx)
		defer factory.Shutdown()
	}
	defer shared.metadataInformers.Shutdown()
	close(shared.InformersStarted)
	klog.FromContext(ctx).V(1).Info("Running controllers", "controllers", r.config.Controllers)
	together(runs...)(ctx)
	<-ctx.Done()
	return nil
}

// runOnDemand runs controllers of the other classes until ctx ends.
func (r *Runner) runOnDemand(ctx context.Context, root clients, controllers map[string]descriptor) {
	settings, err := defaultSettings()
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Cannot read the defaults of kube-controller-manager")
		<-ctx.Done()
		return
	}
	cc := &controllerContext{
		ControllerContext: app.ControllerContext{
			ComponentConfig: settings,
			RESTMapper:      restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(root.kube.Discovery())),
		},
		Config: &r.config,
		root:   root,
	}
	o := &onDemand{cc: cc, informers: newInformers(root, controllers), controllers: controllers}
	together(o.run, func(ctx context.Context) { resetPeriodically(ctx, cc.RESTMapper) })(ctx)
}

// defaultSettings returns the settings that kube-controller-manager has without flags.
func defaultSettings() (kubectrlmgrconfig.KubeControllerManagerConfiguration, error) {
	var versioned kubectrlmgrconfigv1alpha1.KubeControllerManagerConfiguration
	var settings kubectrlmgrconfig.KubeControllerManagerConfiguration
	kubectrlmgrconfigscheme.Scheme.Default(&versioned)
	err := kubectrlmgrconfigscheme.Scheme.Convert(&versioned, &settings, nil)
	// Only the flags have these defaults (NodeLifecycleControllerOptions.AddFlags).
	evictions := &settings.NodeLifecycleController
	evictions.NodeEvictionRate, evictions.SecondaryNodeEvictionRate = 0.1, 0.01
	evictions.LargeClusterSizeThreshold, evictions.UnhealthyZoneThreshold = 50, 0.55
	return settings, err
}
