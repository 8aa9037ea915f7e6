package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
)

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
