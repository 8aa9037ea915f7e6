package controllers

import (
	"context"

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
	core := cc.InformerFactory.Core().V1()
	c := podgc.NewPodGC(ctx, cc.kube, core.Pods(), core.Nodes(), int(cc.ComponentConfig.PodGCController.TerminatedPodGCThreshold))
	return c.Run, nil
}

func newTaintEviction(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	// In kube-controller-manager, which always runs both, the node lifecycle controller
	// adds the index that this one reads.
	if err := controller.AddPodNodeNameIndexer(core.Pods().Informer()); err != nil {
		return nil, err
	}
	c, err := tainteviction.New(ctx, cc.kube, core.Pods(), core.Nodes(), names.TaintEvictionController)
	return runOf(c, err)
}

func newNodeLifecycle(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.ComponentConfig.NodeLifecycleController
	core := cc.InformerFactory.Core().V1()
	c, err := nodelifecycle.NewNodeLifecycleController(ctx, cc.InformerFactory.Coordination().V1().Leases(), core.Pods(), core.Nodes(),
		cc.InformerFactory.Apps().V1().DaemonSets(), cc.kube, settings.NodeMonitorPeriod.Duration,
		settings.NodeStartupGracePeriod.Duration, settings.NodeMonitorGracePeriod.Duration, settings.NodeEvictionRate,
		settings.SecondaryNodeEvictionRate, settings.LargeClusterSizeThreshold, settings.UnhealthyZoneThreshold)
	return runOf(c, err)
}

func newNodeTTL(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	c := ttl.NewTTLController(ctx, cc.InformerFactory.Core().V1().Nodes(), cc.kube)
	return withWorkers(c, nodeTTLWorkers, nil)
}
