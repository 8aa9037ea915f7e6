package controllers

import (
	"context"
	"maps"
	"strings"
	"time"

	"k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

// resourceSet is a set.
type resourceSet map[schema.GroupVersionResource]struct{}

// lazyQuotaController runs upstream's resource quota controller while there is a quota, with
// informers of what the quotas count. Upstream watches every namespaced resource
// from its start: half a hundred informers that nearly every server of this kind
// would keep for nothing.
type lazyQuotaController struct {
	*controllerContext
	lister corelisters.ResourceQuotaLister
	synced cache.InformerSynced
	// quotasChanged has a token when quotas may count other resources than before.
	quotasChanged chan struct{}
	// evaluators tell what the names in a quota are about; they don't count.
	evaluators []quotav1.Evaluator
	// discover lists the resources that a quota may count.
	discover resourcequota.NamespacedResourcesFunc
}

func newResourceQuota(_ context.Context, t *controllerContext) (func(context.Context), error) {
	// The factory is not started: only evaluators that count need its informers.
	evaluators, err := core.NewEvaluators(nil, informers.NewSharedInformerFactory(t.kube, 0), nil)
	if err != nil {
		return nil, err
	}
	informer := t.informers.Core().V1().ResourceQuotas()
	q := &lazyQuotaController{
		controllerContext: t,
		lister:            informer.Lister(),
		synced:            informer.Informer().HasSynced,
		quotasChanged:     make(chan struct{}, 1),
		evaluators:        evaluators,
		discover:          t.kube.Discovery().ServerPreferredNamespacedResources,
	}
	if _, err := informer.Informer().AddEventHandler(q.handler()); err != nil {
		return nil, err
	}
	return q.run, nil
}

// handler sends a token when a quota comes, goes or names other resources. What
// admission and the controller do to a quota's status is no reason.
func (q *lazyQuotaController) handler() cache.ResourceEventHandler {
	look := func() {
		select {
		case q.quotasChanged <- struct{}{}:
		default: // a token waits already
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { look() },
		DeleteFunc: func(any) { look() },
		UpdateFunc: func(before, after any) {
			was, isQuota := before.(*v1.ResourceQuota)
			is, stillIs := after.(*v1.ResourceQuota)
			if !isQuota || !stillIs || !apiequality.Semantic.DeepEqual(was.Spec, is.Spec) {
				look()
			}
		},
	}
}

// run counts what the quotas name, and starts again when they name something
// else or, looking as often as upstream does, discovery has it or no longer has
// it. Each start counts everything anew.
func (q *lazyQuotaController) run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), q.synced) {
		return
	}
	tick := time.NewTicker(resyncPeriod)
	defer tick.Stop()
	var counted resourceSet
	stop := func() {}
	defer func() { stop() }()
	for {
		want, err := q.quotaResources(counted)
		if err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Resource quotas are not counted")
		} else if !maps.Equal(want, counted) {
			stop()
			counted, stop = want, q.startController(ctx, want)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.quotasChanged:
		case <-tick.C:
		}
	}
}

// startController counts until stop is called. A count that can't start is tried again at
// the next look at discovery that differs; until then admission refuses what a
// quota without a status is about.
func (q *lazyQuotaController) startController(ctx context.Context, counted resourceSet) (stop func()) {
	if len(counted) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := q.runController(ctx, counted); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Resource quotas are not counted")
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// quotaResources returns the resources that the quotas there are count; none without a
// quota. What discovery could not tell about now stays as it was.
func (q *lazyQuotaController) quotaResources(before resourceSet) (resourceSet, error) {
	all, err := q.lister.List(labels.Everything())
	if err != nil || len(all) == 0 {
		return nil, err
	}
	names := make(v1.ResourceList)
	for _, quota := range all {
		maps.Copy(names, quota.Spec.Hard)
	}
	served, err := resourcequota.GetQuotableResources(q.discover)
	failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partly {
		return nil, err
	}
	// Upstream's controller is never ready without any resource to watch.
	found := resourceSet{v1.SchemeGroupVersion.WithResource("resourcequotas"): {}}
	for resource := range served {
		if q.isCounted(names, resource.GroupResource()) {
			found[resource] = struct{}{}
		}
	}
	for resource := range before {
		if _, unknown := failed[resource.GroupVersion()]; unknown {
			found[resource] = struct{}{}
		}
	}
	return found, nil
}

// isCounted says whether one of a quota's names is about the resource.
func (q *lazyQuotaController) isCounted(names v1.ResourceList, resource schema.GroupResource) bool {
	if _, ignored := quotainstall.DefaultIgnoredResources()[resource]; ignored {
		return false
	}
	if _, named := names[generic.ObjectCountQuotaResourceNameFor(resource)]; named {
		return true
	}
	for _, evaluator := range q.evaluators {
		if evaluator.GroupResource() == resource && len(evaluator.MatchingResources(quotav1.ResourceNames(names))) > 0 {
			return true
		}
	}
	return resource == resourcev1.Resource("resourceclaims") && mayNameDeviceClass(names)
}

// mayNameDeviceClass says whether a name may be of a device class. Which are, only the
// device classes tell.
func mayNameDeviceClass(names v1.ResourceList) bool {
	for name := range names {
		if resource, requested := strings.CutPrefix(string(name), v1.DefaultResourceRequestsPrefix); requested && strings.Contains(resource, "/") {
			return true
		}
	}
	return false
}
