package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

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
	cc.ClientBuilder = clientBuilder{newClients: func(account string) (clients, error) { return cc.newControllerClients(ctx, cc.root, account) }}
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
	// triggers are resources. The controller starts when there is an object of one of
	// them, and at once if it has none: the informers of a controller without work
	// would only take memory.
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
		names.NamespaceController:                       {essential, nil, &ownController{"namespace-controller", newNamespace}},
		names.GarbageCollectorController:                {essential, nil, &ownController{"generic-garbage-collector", newGarbageCollector}},
		names.ServiceAccountController:                  {essential, nil, nil},
		names.RootCACertificatePublisherController:      {essential, nil, &ownController{"root-ca-cert-publisher", newRootCAPublisher}},
		names.ClusterRoleAggregationController:          {essential, nil, nil},
		names.ResourceQuotaController:                   {essential, nil, &ownController{"resourcequota-controller", newResourceQuota}},
		names.ValidatingAdmissionPolicyStatusController: {essential, nil, &ownController{"validatingadmissionpolicy-status-controller", newPolicyStatus}},

		names.CertificateSigningRequestApprovingController:       {cluster, on{certificateRequests}, &ownController{"certificate-controller", newCertificateApproving}},
		names.CertificateSigningRequestSigningController:         {cluster, on{certificateRequests}, nil},
		names.CertificateSigningRequestCleanerController:         {cluster, on{certificateRequests}, &ownController{"certificate-controller", newCertificateCleaner}},
		names.PodCertificateRequestCleanerController:             {cluster, on{groupResource("certificates.k8s.io", "podcertificaterequests")}, nil},
		names.KubeAPIServerClusterTrustBundlePublisherController: {cluster, on{pods}, &ownController{"kube-apiserver-serving-clustertrustbundle-publisher", newTrustBundlePublisher}},
		names.EndpointsController:                                {cluster, on{services}, nil},
		names.EndpointSliceController:                            {cluster, on{services}, nil},
		names.EndpointSliceMirroringController:                   {cluster, on{services}, nil},
		names.PodGarbageCollectorController:                      {cluster, on{nodes}, nil},
		names.TaintEvictionController:                            {cluster, on{nodes}, &ownController{"node-controller", newTaintEviction}},
		names.PersistentVolumeBinderController:                   {cluster, on{claims, volumes}, nil},
		names.PersistentVolumeClaimProtectionController:          {cluster, on{claims}, nil},
		names.PersistentVolumeProtectionController:               {cluster, on{volumes}, nil},
		names.TTLAfterFinishedController:                         {cluster, on{jobs}, nil},

		names.CronJobController:                          {workload, on{cronJobs}, nil},
		names.DaemonSetController:                        {workload, on{groupResource("apps", "daemonsets")}, nil},
		names.DeploymentController:                       {workload, on{groupResource("apps", "deployments")}, nil},
		names.DeviceTaintEvictionController:              {workload, on{groupResource("resource.k8s.io", "resourceslices"), groupResource("resource.k8s.io", "devicetaintrules")}, nil},
		names.DisruptionController:                       {workload, on{groupResource("policy", "poddisruptionbudgets"), pods}, nil}, // it takes back DisruptionTarget of any Pod
		names.EphemeralVolumeController:                  {workload, on{pods}, nil},
		names.HorizontalPodAutoscalerController:          {workload, on{groupResource("autoscaling", "horizontalpodautoscalers")}, nil},
		names.JobController:                              {workload, on{jobs, pods}, nil}, // a Pod keeps this controller's finalizer after its Job is gone
		names.LegacyServiceAccountTokenCleanerController: {workload, on{groupResource("", "secrets")}, nil},
		names.NodeLifecycleController:                    {workload, on{nodes}, nil},
		names.PersistentVolumeAttachDetachController:     {workload, on{pods, volumes, groupResource("storage.k8s.io", "volumeattachments")}, nil}, // a volume may stand in the Pod itself
		names.PersistentVolumeExpanderController:         {workload, on{claims}, nil},
		names.ReplicaSetController:                       {workload, on{groupResource("apps", "replicasets")}, nil},
		names.ReplicationControllerController:            {workload, on{groupResource("", "replicationcontrollers")}, nil},
		names.ResourceClaimController:                    {workload, on{groupResource("resource.k8s.io", "resourceclaims"), groupResource("resource.k8s.io", "resourceclaimtemplates")}, nil},
		names.ServiceAccountTokenController:              {workload, on{groupResource("", "secrets")}, &ownController{"", newServiceAccountToken}},
		names.ServiceCIDRController:                      {workload, on{groupResource("networking.k8s.io", "servicecidrs")}, nil},
		names.StorageVersionMigratorController:           {workload, on{groupResource("storagemigration.k8s.io", "storageversionmigrations")}, &ownController{"storage-version-migrator-controller", newStorageVersionMigrator}},
		names.StatefulSetController:                      {workload, on{groupResource("apps", "statefulsets")}, nil},
		names.TTLController:                              {workload, on{nodes}, nil},
		names.VolumeAttributesClassProtectionController:  {workload, on{groupResource("storage.k8s.io", "volumeattributesclasses")}, nil},

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
