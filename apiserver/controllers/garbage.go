package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"

	"byre/apiserver/loopback"
)

const (
	collectorWorkers = 20
	// resyncPeriod is how often the collector looks at discovery.
	resyncPeriod = 30 * time.Second
)

// newGarbageCollector makes the collector over graphInformers.
// kube-controller-manager shares whole objects with its other controllers; here
// nobody else would use them, and the graph needs owners and names alone.
func newGarbageCollector(ctx context.Context, t *controllerContext) (func(context.Context), error) {
	t.metadataInformers = metadatainformer.NewSharedInformerFactoryWithOptions(t.metadata, 0, metadatainformer.WithTransform(loopback.StripManagedFields))
	discovery := t.kube.Discovery()
	// The mapper has a cache of its own: the collector resets it whenever its
	// other view of discovery shows something new.
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery))
	c, err := garbagecollector.NewGarbageCollector(ctx, t.kube, t.metadata, mapper, garbagecollector.DefaultIgnoredResources(),
		graphInformers{t.newMetadataWatch, t.metadataInformers}, t.informersStarted)
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
