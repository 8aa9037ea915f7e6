package controllers

import (
	"context"

	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
)

func newEndpoints(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.settings.EndpointController
	core := informersIn(cc, coreinformers.New)
	c := endpoint.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), cc.kube, settings.EndpointUpdatesBatchPeriod.Duration)
	return withWorkers(c, settings.ConcurrentEndpointSyncs, nil)
}

func newEndpointSlice(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.settings.EndpointSliceController
	core := informersIn(cc, coreinformers.New)
	c := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), informersIn(cc, discoveryinformers.New).EndpointSlices(),
		settings.MaxEndpointsPerSlice, cc.kube, settings.EndpointUpdatesBatchPeriod.Duration)
	return withWorkers(c, settings.ConcurrentServiceEndpointSyncs, nil)
}

func newEndpointSliceMirroring(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.settings.EndpointSliceMirroringController
	core := informersIn(cc, coreinformers.New)
	c := endpointslicemirroring.NewController(ctx, core.Endpoints(), informersIn(cc, discoveryinformers.New).EndpointSlices(), core.Services(),
		settings.MirroringMaxEndpointsPerSubset, cc.kube, settings.MirroringEndpointUpdatesBatchPeriod.Duration)
	return withWorkers(c, settings.MirroringConcurrentServiceEndpointSyncs, nil)
}

func newServiceCIDR(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	networking := informersIn(cc, networkinginformers.New)
	c := servicecidrs.NewController(ctx, networking.ServiceCIDRs(), networking.IPAddresses(), cc.kube)
	return withWorkers(c, 5, nil)
}
