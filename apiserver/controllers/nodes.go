package controllers

import (
	"context"

	appsinformers "k8s.io/client-go/informers/apps/v1"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/podgc"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
	"k8s.io/kubernetes/pkg/controller/ttl"
)

// nodeTTLWorkers is kube-controller-manager's number.
const nodeTTLWorkers = 5

func newPodGarbageCollector(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := informersIn(cc, coreinformers.New)
	c := podgc.NewPodGC(ctx, cc.kube, core.Pods(), core.Nodes(), int(cc.settings.PodGCController.TerminatedPodGCThreshold))
	return c.Run, nil
}

func newTaintEviction(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := informersIn(cc, coreinformers.New)
	// In kube-controller-manager, which always runs both, the node lifecycle controller
	// adds the index that this one reads.
	if err := controller.AddPodNodeNameIndexer(core.Pods().Informer()); err != nil {
		return nil, err
	}
	c, err := tainteviction.New(ctx, cc.kube, core.Pods(), core.Nodes(), names.TaintEvictionController)
	return runOf(c, err)
}

func newNodeLifecycle(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.settings.NodeLifecycleController
	core := informersIn(cc, coreinformers.New)
	c, err := nodelifecycle.NewNodeLifecycleController(ctx, informersIn(cc, coordinationinformers.New).Leases(), core.Pods(), core.Nodes(),
		informersIn(cc, appsinformers.New).DaemonSets(), cc.kube, settings.NodeMonitorPeriod.Duration,
		settings.NodeStartupGracePeriod.Duration, settings.NodeMonitorGracePeriod.Duration, settings.NodeEvictionRate,
		settings.SecondaryNodeEvictionRate, settings.LargeClusterSizeThreshold, settings.UnhealthyZoneThreshold)
	return runOf(c, err)
}

func newNodeTTL(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	c := ttl.NewTTLController(ctx, informersIn(cc, coreinformers.New).Nodes(), cc.kube)
	return withWorkers(c, nodeTTLWorkers, nil)
}
