package controllers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	kubectrlmgrconfigv1alpha1 "k8s.io/kube-controller-manager/config/v1alpha1"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller"
	kubectrlmgrconfig "k8s.io/kubernetes/pkg/controller/apis/config"
	kubectrlmgrconfigscheme "k8s.io/kubernetes/pkg/controller/apis/config/scheme"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	token "k8s.io/kubernetes/pkg/serviceaccount"

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

// New makes a Runner. It starts no goroutine.
func New(c Config) *Runner { return &Runner{config: c, identity: newIdentity(c.ServerID)} }

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
	factory := informers.NewSharedInformerFactoryWithOptions(root.kube, resync,
		informers.WithTransform(process.StripManagedFields))
	shared := controllerContext{
		ControllerContext: app.ControllerContext{InformerFactory: factory, InformersStarted: make(chan struct{})},
		Config:            &r.config,
		root:              root,
		rootCAMaps: informers.NewSharedInformerFactoryWithOptions(root.kube, resync,
			informers.WithTransform(process.StripManagedFields),
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

// class says which servers run a controller.
type class int

const (
	// essential controllers run on every server: it cannot work without them.
	essential class = iota
	// cluster controllers run by default, and stop while a kube-controller-manager
	// leads: two servers that run one of them would undo each other's work.
	cluster
	// workload controllers are the rest of kube-controller-manager's. They run with
	// --with-controller-manager or by name, and stop as cluster controllers do.
	workload
	// named controllers run only by name, as in kube-controller-manager.
	named
)

// constructor builds a controller. The function that it returns runs the controller
// until the function's context ends; nil means that there is nothing to run.
type constructor func(context.Context, *controllerContext) (func(context.Context), error)

// runOf returns how a controller of upstream's runs, or the error of its constructor.
func runOf(c interface{ Run(context.Context) }, err error) (func(context.Context), error) {
	if err != nil {
		return nil, err
	}
	return c.Run, nil
}

// withWorkers is runOf for a controller that takes a number of workers.
func withWorkers(c interface{ Run(context.Context, int) }, workers int32, err error) (func(context.Context), error) {
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, int(workers)) }, nil
}

// construct builds a controller. cc is not shared with another one.
func (d descriptor) construct(ctx context.Context, name string, cc *controllerContext) (func(context.Context), error) {
	if d.own != nil {
		var err error
		if cc.clients, err = cc.newControllerClients(ctx, cc.root, d.own.account); err != nil {
			return nil, err
		}
		return d.own.build(klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), name)), cc)
	}
	cc.ClientBuilder = clientBuilder{newClients: func(account string) (clients, error) {
		return cc.newControllerClients(ctx, cc.root, account)
	}}
	c, err := app.NewControllerDescriptors()[name].BuildController(ctx, cc.ControllerContext)
	if err != nil || c == nil {
		return nil, err
	}
	return c.Run, nil
}

// together returns a function that calls all runs and waits for them.
func together(runs ...func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		var group sync.WaitGroup
		for _, run := range runs {
			group.Go(func() { run(ctx) })
		}
		group.Wait()
	}
}

// pause waits for retryPeriod, or until ctx ends.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(retryPeriod):
	}
}

// descriptor describes a controller.
type descriptor struct {
	class class
	// triggers are resources that the controller works on. The controllers start with the first object of any, and this
	// one not at all if none of its own is served. Those that run by default have no Pods, which nobody runs
	// without a Node: all Pods would be in memory twice.
	triggers []schema.GroupResource
	// own is nil for a controller that upstream's constructor builds.
	own *ownController
}

// ownController is how byre builds a controller itself.
type ownController struct {
	// account is the service account in kube-system that the controller is, as in
	// kube-controller-manager with --use-service-account-credentials. "" means that the
	// controller is kube-controller-manager itself: it makes the tokens of the others.
	account string
	build   constructor
}

var (
	certificateRequests = groupResource("certificates.k8s.io", "certificatesigningrequests")
	claims              = groupResource("", "persistentvolumeclaims")
	cronJobs            = groupResource("batch", "cronjobs")
	jobs                = groupResource("batch", "jobs")
	nodes               = groupResource("", "nodes")
	pods                = groupResource("", "pods")
	services            = groupResource("", "services")
	serviceCIDRs        = groupResource("networking.k8s.io", "servicecidrs")
	volumes             = groupResource("", "persistentvolumes")
)

func groupResource(group, name string) schema.GroupResource {
	return schema.GroupResource{Group: group, Resource: name}
}

// descriptors returns all controllers by their names in kube-controller-manager.
// Controllers of features that are off by default are not among them.
func descriptors() map[string]descriptor {
	type on = []schema.GroupResource
	return map[string]descriptor{
		names.NamespaceController: {essential, nil,
			&ownController{"namespace-controller", newNamespace}},
		names.GarbageCollectorController: {essential, nil,
			&ownController{"generic-garbage-collector", newGarbageCollector}},
		names.ServiceAccountController: {essential, nil, nil},
		names.RootCACertificatePublisherController: {essential, nil,
			&ownController{"root-ca-cert-publisher", newRootCAPublisher}},
		names.ClusterRoleAggregationController: {essential, nil, nil},
		names.ValidatingAdmissionPolicyStatusController: {essential, nil,
			&ownController{"validatingadmissionpolicy-status-controller", newPolicyStatus}},

		names.CertificateSigningRequestApprovingController: {cluster, on{certificateRequests},
			&ownController{"certificate-controller", newCertificateApproving}},
		names.CertificateSigningRequestSigningController: {cluster, on{certificateRequests}, nil},
		names.CertificateSigningRequestCleanerController: {cluster, on{certificateRequests},
			&ownController{"certificate-controller", newCertificateCleaner}},
		names.PodCertificateRequestCleanerController: {cluster,
			on{groupResource("certificates.k8s.io", "podcertificaterequests")}, nil},
		names.KubeAPIServerClusterTrustBundlePublisherController: {cluster, on{nodes},
			&ownController{"kube-apiserver-serving-clustertrustbundle-publisher", newTrustBundlePublisher}},
		names.EndpointsController:              {cluster, on{services}, nil},
		names.EndpointSliceController:          {cluster, on{services}, nil},
		names.EndpointSliceMirroringController: {cluster, on{services}, nil},
		names.PodGarbageCollectorController:    {cluster, on{nodes}, nil},
		names.ResourceQuotaController:          {cluster, on{groupResource("", "resourcequotas")}, nil},
		names.TaintEvictionController: {cluster, on{nodes},
			&ownController{"node-controller", newTaintEviction}},
		names.PersistentVolumeBinderController:          {cluster, on{claims, volumes}, nil},
		names.PersistentVolumeClaimProtectionController: {cluster, on{claims}, nil},
		names.PersistentVolumeProtectionController:      {cluster, on{volumes}, nil},
		names.TTLAfterFinishedController:                {cluster, on{jobs}, nil},

		names.CronJobController:    {workload, on{cronJobs}, nil},
		names.DaemonSetController:  {workload, on{groupResource("apps", "daemonsets")}, nil},
		names.DeploymentController: {workload, on{groupResource("apps", "deployments")}, nil},
		names.DeviceTaintEvictionController: {workload,
			on{groupResource("resource.k8s.io", "resourceslices"), groupResource("resource.k8s.io", "devicetaintrules")}, nil},
		// it takes back DisruptionTarget of any Pod
		names.DisruptionController:      {workload, on{groupResource("policy", "poddisruptionbudgets"), pods}, nil},
		names.EphemeralVolumeController: {workload, on{pods}, nil},
		names.HorizontalPodAutoscalerController: {workload,
			on{groupResource("autoscaling", "horizontalpodautoscalers")}, nil},
		// a Pod keeps this controller's finalizer after its Job is gone
		names.JobController: {workload, on{jobs, pods}, nil},
		names.LegacyServiceAccountTokenCleanerController: {workload, on{groupResource("", "secrets")}, nil},
		names.NodeLifecycleController:                    {workload, on{nodes}, nil},
		// a volume may stand in the Pod itself
		names.PersistentVolumeAttachDetachController: {workload,
			on{pods, volumes, groupResource("storage.k8s.io", "volumeattachments")}, nil},
		names.PersistentVolumeExpanderController: {workload, on{claims}, nil},
		names.ReplicaSetController:               {workload, on{groupResource("apps", "replicasets")}, nil},
		names.ReplicationControllerController:    {workload, on{groupResource("", "replicationcontrollers")}, nil},
		names.ResourceClaimController: {workload,
			on{groupResource("resource.k8s.io", "resourceclaims"), groupResource("resource.k8s.io", "resourceclaimtemplates")},
			nil},
		names.ServiceAccountTokenController: {workload, on{groupResource("", "secrets")},
			&ownController{"", newServiceAccountToken}},
		names.ServiceCIDRController: {workload, on{serviceCIDRs}, nil},
		names.StorageVersionMigratorController: {workload,
			on{groupResource("storagemigration.k8s.io", "storageversionmigrations")},
			&ownController{"storage-version-migrator-controller", newStorageVersionMigrator}},
		names.StatefulSetController: {workload, on{groupResource("apps", "statefulsets")}, nil},
		names.TTLController:         {workload, on{nodes}, nil},
		names.VolumeAttributesClassProtectionController: {workload,
			on{groupResource("storage.k8s.io", "volumeattributesclasses")}, nil},

		names.BootstrapSignerController: {named, on{groupResource("", "secrets")}, nil},
		names.TokenCleanerController:    {named, on{groupResource("", "secrets")}, nil},
	}
}

// Names returns the names of all controllers, sorted.
func Names() []string {
	return slices.Sorted(maps.Keys(descriptors()))
}

// Select returns the controllers that a list in the syntax of --controllers selects: "*"
// selects every controller that is on by default, "foo" the controller foo, and "-foo"
// excludes it. With withControllerManager, all that kube-controller-manager runs by
// default are on by default. The first mention of a controller counts. An empty list
// selects none. A name that the server does not have is an error, unless the list
// excludes it.
func Select(list []string, withControllerManager bool) ([]string, error) {
	known := descriptors()
	byAlias := app.ControllerAliases()
	chosen := make(map[string]bool)
	star := false
	for _, item := range list {
		name, without := strings.CutPrefix(item, "-")
		if item == "*" {
			star = true
			continue
		}
		if full, ok := byAlias[name]; ok {
			name = full
		}
		if _, ok := known[name]; !ok && !without {
			return nil, fmt.Errorf("%q is not in the list of known controllers: %s", item, strings.Join(Names(), ", "))
		}
		if _, mentioned := chosen[name]; !mentioned {
			chosen[name] = !without
		}
	}
	return slices.DeleteFunc(Names(), func(name string) bool {
		if on, mentioned := chosen[name]; mentioned {
			return !on
		}
		c := known[name].class
		return !star || c == named || c == workload && !withControllerManager
	}), nil
}

// Numbers of workers and periods; kube-controller-manager's defaults.
const (
	namespaceWorkers    = 10
	namespaceSyncPeriod = 5 * time.Minute
)

// controllerContext holds what the controllers share while this server holds the lease,
// as kube-controller-manager's type of the same name.
type controllerContext struct {
	*Config
	// ControllerContext is for upstream's constructors. Its mapper, which the essential controllers
	// lack, reads discovery again every discoveryRefreshInterval.
	app.ControllerContext
	// clients are those of a controller that byre builds itself.
	clients
	// root are the clients of the informers that controllers share.
	root clients
	// rootCAMaps watches only the ConfigMaps that the root CA publisher writes.
	rootCAMaps informers.SharedInformerFactory
	// metadataInformers are the informers of the garbage collector, which starts them.
	metadataInformers metadatainformer.SharedInformerFactory
}

func newNamespace(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	// Upstream's constructor ends the process where discovery fails. The server's own client
	// is neither forbidden to read it, in whatever authorization mode, nor turned away.
	c := namespace.NewNamespaceController(ctx, cc.kube, cc.metadata,
		cc.Self.Discovery().ServerPreferredNamespacedResources,
		cc.InformerFactory.Core().V1().Namespaces(), namespaceSyncPeriod, corev1.FinalizerKubernetes)
	return withWorkers(c, namespaceWorkers, nil)
}

func newRootCAPublisher(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	c, err := rootcacertpublisher.NewPublisher(cc.rootCAMaps.Core().V1().ConfigMaps(),
		cc.InformerFactory.Core().V1().Namespaces(), cc.kube, cc.RootCA)
	return withWorkers(c, 1, err)
}

func newTaintEviction(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	objects := cc.InformerFactory.Core().V1()
	// In kube-controller-manager, which always runs both, the node lifecycle controller
	// adds the index that this one reads.
	if err := controller.AddPodNodeNameIndexer(objects.Pods().Informer()); err != nil {
		return nil, err
	}
	c, err := tainteviction.New(ctx, cc.kube, objects.Pods(), objects.Nodes(), names.TaintEvictionController)
	return runOf(c, err)
}

// newServiceAccountToken builds the controller that writes tokens to the Secrets that ask
// for one. It builds none without the key. Upstream's constructor needs a client builder that its
// descriptor lacks.
func newServiceAccountToken(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	key, err := keyutil.PrivateKeyFromFile(cc.Files.ServiceAccountKey)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	generator, err := token.JWTTokenGenerator(token.LegacyIssuer, key)
	if err != nil {
		return nil, err
	}
	objects := cc.InformerFactory.Core().V1()
	c, err := serviceaccount.NewTokensController(klog.FromContext(ctx), objects.ServiceAccounts(), objects.Secrets(),
		cc.kube,
		serviceaccount.TokensControllerOptions{TokenGenerator: generator, RootCA: cc.RootCA})
	return withWorkers(c, cc.ComponentConfig.SAController.ConcurrentSATokenSyncs, err)
}

// runScheduler runs upstream's scheduler, with the configuration that kube-scheduler has
// without flags, until ctx ends.
func (r *Runner) runScheduler(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "scheduler"))
	if err := r.scheduleUntilDone(ctx); err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "The scheduler could not start")
		<-ctx.Done()
	}
}

func (r *Runner) scheduleUntilDone(ctx context.Context) error {
	settings, err := latest.Default()
	if err != nil {
		return err
	}
	own, err := r.config.newComponentClients(kubeScheduler, "scheduler")
	if err != nil {
		return err
	}
	client := own.kube
	untyped, err := dynamic.NewForConfig(own.config)
	if err != nil {
		return err
	}
	broadcaster := events.NewEventBroadcasterAdapterWithContext(ctx, client)
	defer broadcaster.Shutdown()
	typed := scheduler.NewInformerFactory(client, 0, nil)
	defer typed.Shutdown()
	dynamicInformers := dynamicinformer.NewFilteredDynamicSharedInformerFactory(untyped, 0, corev1.NamespaceAll, nil)
	defer dynamicInformers.Shutdown()
	s, err := scheduler.New(ctx, client, typed, dynamicInformers,
		func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(name) },
		scheduler.WithComponentConfigVersion(settings.APIVersion),
		scheduler.WithKubeConfig(own.config),
		scheduler.WithProfiles(settings.Profiles...),
		scheduler.WithPercentageOfNodesToScore(settings.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(settings.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(settings.PodInitialBackoffSeconds),
		scheduler.WithExtenders(settings.Extenders...),
		scheduler.WithParallelism(settings.Parallelism))
	if err != nil {
		return err
	}
	broadcaster.StartRecordingToSink(ctx.Done())
	typed.Start(ctx.Done())
	dynamicInformers.Start(ctx.Done())
	typed.WaitForCacheSync(ctx.Done())
	dynamicInformers.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	s.Run(ctx)
	return nil
}
