package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery/cached/memory"
	admissionregistrationinformers "k8s.io/client-go/informers/admissionregistration/v1"
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
	// The mapper needs a cache of its own: the collector resets the mapper when
	// discovery, which it reads without a cache, has changed.
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery))
	c, err := garbagecollector.NewGarbageCollector(ctx, cc.kube, cc.metadata, mapper, garbagecollector.DefaultIgnoredResources(),
		graphInformers{cc.newMetadataWatch, cc.metadataInformers}, cc.informersStarted)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		var group sync.WaitGroup
		group.Go(func() { c.Run(ctx, collectorWorkers, resyncPeriod) })
		group.Go(func() { c.Sync(ctx, discovery, resyncPeriod) })
		group.Wait()
	}, nil
}

const (
	policyWorkers = 5
	// discoveryRefreshInterval is how often the type checker's REST mapper reads
	// discovery again, as in kube-controller-manager.
	discoveryRefreshInterval = 30 * time.Second
)

// newPolicyStatus builds the controller that checks the types of
// ValidatingAdmissionPolicies. Its schema resolver reads the server's OpenAPI documents
// when it checks a policy, and so uses no memory without policies.
// kube-controller-manager resolves built-in types from compiled-in definitions, which take
// tens of megabytes.
func newPolicyStatus(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cc.kube.Discovery()))
	c, err := validatingadmissionpolicystatus.NewController(
		informersIn(cc, admissionregistrationinformers.New).ValidatingAdmissionPolicies(),
		cc.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validating.TypeChecker{
			SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: cc.kube.Discovery()},
			RestMapper:     mapper,
		})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		var group wait.Group
		defer group.Wait()
		group.StartWithContext(ctx, func(ctx context.Context) {
			wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, discoveryRefreshInterval)
		})
		c.Run(ctx, policyWorkers)
	}, nil
}
