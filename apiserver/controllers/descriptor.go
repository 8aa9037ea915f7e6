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
	// alias is the controller's former name, which --controllers accepts too.
	alias string
	// account is the service account in kube-system that the controller is, as in
	// kube-controller-manager with --use-service-account-credentials. "" means that the
	// controller is kube-controller-manager itself: it makes the tokens of the others.
	account string
	// triggers are resources. The controller starts when there is an object of one of
	// them, and at once if it has none: the informers of a controller without work
	// would only take memory.
	triggers []schema.GroupResource
	build    constructor
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
		names.NamespaceController:                       {essential, "namespace", "namespace-controller", nil, newNamespace},
		names.GarbageCollectorController:                {essential, "garbagecollector", "generic-garbage-collector", nil, newGarbageCollector},
		names.ServiceAccountController:                  {essential, "serviceaccount", "service-account-controller", nil, newServiceAccount},
		names.RootCACertificatePublisherController:      {essential, "root-ca-cert-publisher", "root-ca-cert-publisher", nil, newRootCAPublisher},
		names.ClusterRoleAggregationController:          {essential, "clusterrole-aggregation", "clusterrole-aggregation-controller", nil, newRoleAggregation},
		names.ResourceQuotaController:                   {essential, "resourcequota", "resourcequota-controller", nil, newResourceQuota},
		names.ValidatingAdmissionPolicyStatusController: {essential, "", "validatingadmissionpolicy-status-controller", nil, newPolicyStatus},

		names.CertificateSigningRequestApprovingController:       {cluster, "csrapproving", "certificate-controller", on{certificateRequests}, newCertificateApproving},
		names.CertificateSigningRequestSigningController:         {cluster, "csrsigning", "certificate-controller", on{certificateRequests}, newCertificateSigning},
		names.CertificateSigningRequestCleanerController:         {cluster, "csrcleaner", "certificate-controller", on{certificateRequests}, newCertificateCleaner},
		names.PodCertificateRequestCleanerController:             {cluster, "", "podcertificaterequestcleaner", on{groupResource("certificates.k8s.io", "podcertificaterequests")}, newPodCertificateCleaner},
		names.KubeAPIServerClusterTrustBundlePublisherController: {cluster, "", "kube-apiserver-serving-clustertrustbundle-publisher", on{pods}, newTrustBundlePublisher},
		names.EndpointsController:                                {cluster, "endpoint", "endpoint-controller", on{services}, newEndpoints},
		names.EndpointSliceController:                            {cluster, "endpointslice", "endpointslice-controller", on{services}, newEndpointSlice},
		names.EndpointSliceMirroringController:                   {cluster, "endpointslicemirroring", "endpointslicemirroring-controller", on{services}, newEndpointSliceMirroring},
		names.PodGarbageCollectorController:                      {cluster, "podgc", "pod-garbage-collector", on{nodes}, newPodGarbageCollector},
		names.TaintEvictionController:                            {cluster, "", "node-controller", on{nodes}, newTaintEviction},
		names.PersistentVolumeBinderController:                   {cluster, "persistentvolume-binder", "persistent-volume-binder", on{claims, volumes}, newVolumeBinder},
		names.PersistentVolumeClaimProtectionController:          {cluster, "pvc-protection", "pvc-protection-controller", on{claims}, newClaimProtection},
		names.PersistentVolumeProtectionController:               {cluster, "pv-protection", "pv-protection-controller", on{volumes}, newVolumeProtection},
		names.TTLAfterFinishedController:                         {cluster, "ttl-after-finished", "ttl-after-finished-controller", on{jobs}, newTTLAfterFinished},

		names.CronJobController:                          {workload, "cronjob", "cronjob-controller", on{cronJobs}, newCronJob},
		names.DaemonSetController:                        {workload, "daemonset", "daemon-set-controller", on{groupResource("apps", "daemonsets")}, newDaemonSet},
		names.DeploymentController:                       {workload, "deployment", "deployment-controller", on{groupResource("apps", "deployments")}, newDeployment},
		names.DeviceTaintEvictionController:              {workload, "", "device-taint-eviction-controller", on{groupResource("resource.k8s.io", "resourceslices"), groupResource("resource.k8s.io", "devicetaintrules")}, newDeviceTaintEviction},
		names.DisruptionController:                       {workload, "disruption", "disruption-controller", on{groupResource("policy", "poddisruptionbudgets"), pods}, newDisruption}, // it takes back DisruptionTarget of any Pod
		names.EphemeralVolumeController:                  {workload, "ephemeral-volume", "ephemeral-volume-controller", on{pods}, newEphemeralVolume},
		names.HorizontalPodAutoscalerController:          {workload, "horizontalpodautoscaling", "horizontal-pod-autoscaler", on{groupResource("autoscaling", "horizontalpodautoscalers")}, newHorizontalPodAutoscaler},
		names.JobController:                              {workload, "job", "job-controller", on{jobs, pods}, newJob}, // a Pod keeps this controller's finalizer after its Job is gone
		names.LegacyServiceAccountTokenCleanerController: {workload, "legacy-service-account-token-cleaner", "legacy-service-account-token-cleaner", on{groupResource("", "secrets")}, newLegacyTokenCleaner},
		names.NodeLifecycleController:                    {workload, "nodelifecycle", "node-controller", on{nodes}, newNodeLifecycle},
		names.PersistentVolumeAttachDetachController:     {workload, "attachdetach", "attachdetach-controller", on{pods, volumes, groupResource("storage.k8s.io", "volumeattachments")}, newAttachDetach}, // a volume may stand in the Pod itself
		names.PersistentVolumeExpanderController:         {workload, "persistentvolume-expander", "expand-controller", on{claims}, newVolumeExpander},
		names.ReplicaSetController:                       {workload, "replicaset", "replicaset-controller", on{groupResource("apps", "replicasets")}, newReplicaSet},
		names.ReplicationControllerController:            {workload, "replicationcontroller", "replication-controller", on{groupResource("", "replicationcontrollers")}, newReplication},
		names.ResourceClaimController:                    {workload, "resource-claim-controller", "resource-claim-controller", on{groupResource("resource.k8s.io", "resourceclaims"), groupResource("resource.k8s.io", "resourceclaimtemplates")}, newResourceClaim},
		names.ServiceAccountTokenController:              {workload, "serviceaccount-token", "", on{groupResource("", "secrets")}, newServiceAccountToken},
		names.ServiceCIDRController:                      {workload, "", "service-cidrs-controller", on{groupResource("networking.k8s.io", "servicecidrs")}, newServiceCIDR},
		names.StorageVersionMigratorController:           {workload, "svm", "storage-version-migrator-controller", on{groupResource("storagemigration.k8s.io", "storageversionmigrations")}, newStorageVersionMigrator},
		names.StatefulSetController:                      {workload, "statefulset", "statefulset-controller", on{groupResource("apps", "statefulsets")}, newStatefulSet},
		names.TTLController:                              {workload, "ttl", "ttl-controller", on{nodes}, newNodeTTL},
		names.VolumeAttributesClassProtectionController:  {workload, "", "volumeattributesclass-protection-controller", on{groupResource("storage.k8s.io", "volumeattributesclasses")}, newAttributesClassProtection},

		names.BootstrapSignerController: {named, "bootstrapsigner", "bootstrap-signer", on{groupResource("", "secrets")}, newBootstrapSigner},
		names.TokenCleanerController:    {named, "tokencleaner", "token-cleaner", on{groupResource("", "secrets")}, newTokenCleaner},
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
	byAlias := make(map[string]string)
	for name, d := range known {
		byAlias[d.alias] = name
	}
	chosen := make(map[string]bool)
	star := false
	for _, item := range list {
		name, without := strings.CutPrefix(item, "-")
		if item == "*" {
			star = true
			continue
		}
		if full, ok := byAlias[name]; ok && name != "" {
			name = full
		}
		if _, ok := known[name]; !ok && !without {
			return nil, fmt.Errorf("%q is not in the list of known controllers: %s", name, strings.Join(Names(), ", "))
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
