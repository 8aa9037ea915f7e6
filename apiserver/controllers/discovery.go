package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
)

const (
	collectorWorkers = 20
	// resyncPeriod is how often the collector reads discovery.
	resyncPeriod = 30 * time.Second
)

// newGarbageCollector builds upstream's garbage collector over graphInformers. The
// collector needs only the metadata of objects. kube-controller-manager gives it informers
// of typed objects, which it shares with many other controllers.
func newGarbageCollector(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	discovery := cc.kube.Discovery()
	// The mapper needs a cache of its own: the collector resets the mapper when the preferred
	// versions in discovery, which it reads without a cache, have changed. An owner may be named in another version.
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery))
	c, err := garbagecollector.NewGarbageCollector(ctx, cc.kube, cc.metadata, mapper, garbagecollector.DefaultIgnoredResources(),
		graphInformers{cc.NewMetadataWatch, cc.metadataInformers}, cc.InformersStarted)
	if err != nil {
		return nil, err
	}
	return together(
		func(ctx context.Context) { resetPeriodically(ctx, mapper) },
		func(ctx context.Context) { c.Run(ctx, collectorWorkers, resyncPeriod) },
		func(ctx context.Context) { c.Sync(ctx, discovery, resyncPeriod) },
	), nil
}

const (
	policyWorkers = 5
	// discoveryRefreshInterval is how often a REST mapper reads discovery again, as in
	// kube-controller-manager.
	discoveryRefreshInterval = 30 * time.Second
)

// resetPeriodically makes a mapper read discovery again, until ctx ends.
func resetPeriodically(ctx context.Context, mapper *restmapper.DeferredDiscoveryRESTMapper) {
	wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, discoveryRefreshInterval)
}

// newPolicyStatus builds the controller that checks the types of
// ValidatingAdmissionPolicies. Its schema resolver reads the server's OpenAPI documents
// when it checks a policy, and so uses no memory without policies.
// kube-controller-manager resolves built-in types from compiled-in definitions, which take
// tens of megabytes.
func newPolicyStatus(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cc.kube.Discovery()))
	c, err := validatingadmissionpolicystatus.NewController(
		cc.InformerFactory.Admissionregistration().V1().ValidatingAdmissionPolicies(),
		cc.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validating.TypeChecker{
			SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: cc.kube.Discovery()},
			RestMapper:     mapper,
		})
	if err != nil {
		return nil, err
	}
	return together(
		func(ctx context.Context) { resetPeriodically(ctx, mapper) },
		func(ctx context.Context) { c.Run(ctx, policyWorkers) },
	), nil
}
