package controllers

import (
	"context"

	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
)

func newEndpoints(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.settings.EndpointController
	core := cc.informers.Core().V1()
	c := endpoint.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), cc.kube, settings.EndpointUpdatesBatchPeriod.Duration)
	return func(ctx context.Context) { c.Run(ctx, int(settings.ConcurrentEndpointSyncs)) }, nil
}

func newEndpointSlice(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.settings.EndpointSliceController
	core := cc.informers.Core().V1()
	c := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), cc.informers.Discovery().V1().EndpointSlices(),
		settings.MaxEndpointsPerSlice, cc.kube, settings.EndpointUpdatesBatchPeriod.Duration)
	return func(ctx context.Context) { c.Run(ctx, int(settings.ConcurrentServiceEndpointSyncs)) }, nil
}

func newEndpointSliceMirroring(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.settings.EndpointSliceMirroringController
	core := cc.informers.Core().V1()
	c := endpointslicemirroring.NewController(ctx, core.Endpoints(), cc.informers.Discovery().V1().EndpointSlices(), core.Services(),
		settings.MirroringMaxEndpointsPerSubset, cc.kube, settings.MirroringEndpointUpdatesBatchPeriod.Duration)
	return func(ctx context.Context) { c.Run(ctx, int(settings.MirroringConcurrentServiceEndpointSyncs)) }, nil
}

func newServiceCIDR(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	networking := cc.informers.Networking().V1()
	c := servicecidrs.NewController(ctx, networking.ServiceCIDRs(), networking.IPAddresses(), cc.kube)
	return func(ctx context.Context) { c.Run(ctx, 5) }, nil
}
