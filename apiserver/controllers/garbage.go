package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
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
