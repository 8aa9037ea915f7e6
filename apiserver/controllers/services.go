package controllers

import (
	"context"

	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
)

func newEndpoints(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.ComponentConfig.EndpointController
	core := cc.InformerFactory.Core().V1()
	c := endpoint.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), cc.kube, settings.EndpointUpdatesBatchPeriod.Duration)
	return withWorkers(c, settings.ConcurrentEndpointSyncs, nil)
}

func newEndpointSlice(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.ComponentConfig.EndpointSliceController
	core := cc.InformerFactory.Core().V1()
	c := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), cc.InformerFactory.Discovery().V1().EndpointSlices(),
		settings.MaxEndpointsPerSlice, cc.kube, settings.EndpointUpdatesBatchPeriod.Duration)
	return withWorkers(c, settings.ConcurrentServiceEndpointSyncs, nil)
}

func newEndpointSliceMirroring(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.ComponentConfig.EndpointSliceMirroringController
	core := cc.InformerFactory.Core().V1()
	c := endpointslicemirroring.NewController(ctx, core.Endpoints(), cc.InformerFactory.Discovery().V1().EndpointSlices(), core.Services(),
		settings.MirroringMaxEndpointsPerSubset, cc.kube, settings.MirroringEndpointUpdatesBatchPeriod.Duration)
	return withWorkers(c, settings.MirroringConcurrentServiceEndpointSyncs, nil)
}

func newServiceCIDR(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	networking := cc.InformerFactory.Networking().V1()
	c := servicecidrs.NewController(ctx, networking.ServiceCIDRs(), networking.IPAddresses(), cc.kube)
	return withWorkers(c, 5, nil)
}
