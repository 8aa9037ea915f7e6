package controllers

import (
	"context"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	schedulinginformers "k8s.io/client-go/informers/scheduling/v1beta1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/kubernetes/pkg/controller/cronjob"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/disruption"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	podmetrics "k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/replication"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
	"k8s.io/kubernetes/pkg/features"
	resourceclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"
)

// Delays between two attempts to replace a failed Pod of a DaemonSet, as in
// kube-controller-manager.
const (
	daemonMinBackoff = time.Second
	daemonMaxBackoff = 15 * time.Minute
)

func newDeployment(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	apps := cc.InformerFactory.Apps().V1()
	c, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), cc.InformerFactory.Core().V1().Pods(), cc.kube)
	return withWorkers(c, cc.ComponentConfig.DeploymentController.ConcurrentDeploymentSyncs, err)
}

func newReplicaSet(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	c := replicaset.NewReplicaSetController(ctx, cc.InformerFactory.Apps().V1().ReplicaSets(), cc.InformerFactory.Core().V1().Pods(), cc.kube, replicaset.BurstReplicas)
	return withWorkers(c, cc.ComponentConfig.ReplicaSetController.ConcurrentRSSyncs, nil)
}

func newReplication(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	c := replication.NewReplicationManager(ctx, core.Pods(), core.ReplicationControllers(), cc.kube, replication.BurstReplicas)
	return withWorkers(c, cc.ComponentConfig.ReplicationController.ConcurrentRCSyncs, nil)
}

func newStatefulSet(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core, apps := cc.InformerFactory.Core().V1(), cc.InformerFactory.Apps().V1()
	c := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(), apps.ControllerRevisions(), cc.kube)
	return withWorkers(c, cc.ComponentConfig.StatefulSetController.ConcurrentStatefulSetSyncs, nil)
}

func newDaemonSet(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core, apps := cc.InformerFactory.Core().V1(), cc.InformerFactory.Apps().V1()
	c, err := daemon.NewDaemonSetsController(ctx, apps.DaemonSets(), apps.ControllerRevisions(), core.Pods(), core.Nodes(), cc.kube,
		flowcontrol.NewBackOff(daemonMinBackoff, daemonMaxBackoff))
	return withWorkers(c, cc.ComponentConfig.DaemonSetController.ConcurrentDaemonSetSyncs, err)
}

func newJob(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	var workloads schedulinginformers.WorkloadInformer
	var groups schedulinginformers.PodGroupInformer
	if utilfeature.DefaultFeatureGate.Enabled(features.WorkloadWithJob) {
		scheduling := cc.InformerFactory.Scheduling().V1beta1()
		workloads, groups = scheduling.Workloads(), scheduling.PodGroups()
	}
	c, err := job.NewController(ctx, cc.kube, cc.InformerFactory.Core().V1().Pods(), cc.InformerFactory.Batch().V1().Jobs(), workloads, groups)
	return withWorkers(c, cc.ComponentConfig.JobController.ConcurrentJobSyncs, err)
}

func newCronJob(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	batch := cc.InformerFactory.Batch().V1()
	c, err := cronjob.NewControllerV2(ctx, batch.Jobs(), batch.CronJobs(), cc.kube)
	return withWorkers(c, cc.ComponentConfig.CronJobController.ConcurrentCronJobSyncs, err)
}

func newTTLAfterFinished(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	c := ttlafterfinished.New(ctx, cc.InformerFactory.Batch().V1().Jobs(), cc.kube)
	return withWorkers(c, cc.ComponentConfig.TTLAfterFinishedController.ConcurrentTTLSyncs, nil)
}

// scales returns a client of the scale subresources.
func (cc *controllerContext) scales(config *rest.Config) (scale.ScalesGetter, error) {
	return scale.NewForConfig(config, cc.RESTMapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(cc.kube.Discovery()))
}

func newDisruption(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	scales, err := cc.scales(cc.config)
	if err != nil {
		return nil, err
	}
	core, apps := cc.InformerFactory.Core().V1(), cc.InformerFactory.Apps().V1()
	c := disruption.NewDisruptionController(ctx, core.Pods(), cc.InformerFactory.Policy().V1().PodDisruptionBudgets(), core.ReplicationControllers(),
		apps.ReplicaSets(), apps.Deployments(), apps.StatefulSets(), cc.kube, cc.RESTMapper, scales, cc.kube.Discovery())
	return withWorkers(c, cc.ComponentConfig.DisruptionController.ConcurrentDisruptionSyncs, nil)
}

func newHorizontalPodAutoscaler(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.ComponentConfig.HPAController
	scales, err := cc.scales(cc.config)
	if err != nil {
		return nil, err
	}
	resources, err := resourceclient.NewForConfig(cc.config)
	if err != nil {
		return nil, err
	}
	external, err := external_metrics.NewForConfig(cc.config)
	if err != nil {
		return nil, err
	}
	available := custom_metrics.NewAvailableAPIsGetter(cc.kube.Discovery())
	c := podautoscaler.NewHorizontalController(ctx, cc.kube.CoreV1(), scales, cc.kube.AutoscalingV2(), cc.RESTMapper,
		podmetrics.NewRESTMetricsClient(resources, custom_metrics.NewForConfig(cc.config, cc.RESTMapper, available), external),
		cc.InformerFactory.Autoscaling().V2().HorizontalPodAutoscalers(), cc.InformerFactory.Core().V1().Pods(),
		settings.HorizontalPodAutoscalerSyncPeriod.Duration, settings.HorizontalPodAutoscalerDownscaleStabilizationWindow.Duration,
		settings.HorizontalPodAutoscalerTolerance, settings.HorizontalPodAutoscalerCPUInitializationPeriod.Duration,
		settings.HorizontalPodAutoscalerInitialReadinessDelay.Duration)
	return together(
		func(ctx context.Context) {
			custom_metrics.PeriodicallyInvalidate(available, settings.HorizontalPodAutoscalerSyncPeriod.Duration, ctx.Done())
		},
		func(ctx context.Context) { c.Run(ctx, int(settings.ConcurrentHorizontalPodAutoscalerSyncs)) },
	), nil
}
