package controllers

import (
	"context"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"

	"byre/apiserver/process"
)

// resourceSet is a set of resources.
type resourceSet map[schema.GroupVersionResource]struct{}

// lazyQuotaController runs upstream's resource quota controller while at least one
// ResourceQuota exists, with informers of the resources that the quotas count. Upstream's
// controller alone watches every namespaced resource from its start: about fifty
// informers, which servers without quotas do not need.
type lazyQuotaController struct {
	shared *controllerContext
	lister corelisters.ResourceQuotaLister
	synced cache.InformerSynced
	// quotasChanged, of capacity 1, holds a value if the quotas may name other
	// resources than before.
	quotasChanged chan struct{}
	// evaluators map the names in a quota to resources. They do not compute usage.
	evaluators []quotav1.Evaluator
	// discover lists the namespaced resources that the server serves.
	discover resourcequota.NamespacedResourcesFunc
	// runUpstream runs upstream's controller until ctx ends.
	runUpstream func(ctx context.Context, counted resourceSet) error
	// names are those in the quotas whose resources the running controller counts; see countableQuotas.
	names atomic.Pointer[v1.ResourceList]
}

func newResourceQuota(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	// The factory is never started: only evaluators that compute usage need its
	// informers.
	evaluators, err := core.NewEvaluators(nil, informers.NewSharedInformerFactory(cc.kube, 0), nil)
	if err != nil {
		return nil, err
	}
	informer := cc.InformerFactory.Core().V1().ResourceQuotas()
	q := &lazyQuotaController{
		shared:        cc,
		lister:        informer.Lister(),
		synced:        informer.Informer().HasSynced,
		quotasChanged: make(chan struct{}, 1),
		evaluators:    evaluators,
		discover:      cc.kube.Discovery().ServerPreferredNamespacedResources,
	}
	q.runUpstream = q.runController
	if _, err := informer.Informer().AddEventHandler(q.handler()); err != nil {
		return nil, err
	}
	return q.run, nil
}

// handler signals quotasChanged when a quota is created or deleted, or when its spec
// changes. Admission and the controller write the status often; that changes no names.
func (q *lazyQuotaController) handler() cache.ResourceEventHandler {
	signal := func() {
		select {
		case q.quotasChanged <- struct{}{}:
		default: // already signaled
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal() },
		DeleteFunc: func(any) { signal() },
		UpdateFunc: func(oldObj, newObj any) {
			oldQuota, oldOK := oldObj.(*v1.ResourceQuota)
			newQuota, newOK := newObj.(*v1.ResourceQuota)
			if !oldOK || !newOK || !apiequality.Semantic.DeepEqual(oldQuota.Spec, newQuota.Spec) {
				signal()
			}
		},
	}
}

// run runs upstream's controller for the resources that the quotas name, until ctx ends.
// It restarts the controller when the set of these resources changes: because a quota has
// changed, or because discovery has, which run reads every resyncPeriod as upstream does.
// Each start computes all usage again.
func (q *lazyQuotaController) run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), q.synced) {
		return
	}
	tick := time.NewTicker(resyncPeriod)
	defer tick.Stop()
	var current resourceSet
	stop := func() {}
	defer func() { stop() }()
	for {
		want, names, err := q.quotaResources(current)
		if err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Cannot find the resources that resource quotas count")
		} else {
			if !maps.Equal(want, current) {
				stop()
				current, stop = want, q.startController(ctx, want)
			}
			q.names.Store(&names)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.quotasChanged:
		case <-tick.C:
		}
	}
}

// startController runs upstream's controller until stop is called; stop waits for its
// end. If the controller cannot start, it is tried again every retryPeriod. Until then
// admission rejects objects that a quota without a status counts.
func (q *lazyQuotaController) startController(ctx context.Context, counted resourceSet) (stop func()) {
	if len(counted) == 0 {
		return func() {}
	}
	return start(ctx, func(ctx context.Context) {
		for ctx.Err() == nil {
			if err := q.runUpstream(ctx, counted); err != nil {
				klog.FromContext(ctx).Error(err, "The resource quota controller could not start; will try again")
				pause(ctx)
			}
		}
	})
}

// quotaResources returns the resources that the existing quotas count, none if there is
// no quota, and the names in the quotas. If discovery of a group version fails, its resources in before are kept.
func (q *lazyQuotaController) quotaResources(before resourceSet) (found resourceSet, names v1.ResourceList, err error) {
	all, err := q.lister.List(labels.Everything())
	if err != nil || len(all) == 0 {
		return nil, nil, err
	}
	names = make(v1.ResourceList)
	for _, quota := range all {
		maps.Copy(names, quota.Spec.Hard)
	}
	served, err := resourcequota.GetQuotableResources(q.discover)
	failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partly {
		return nil, nil, err
	}
	// Upstream's controller never becomes ready without a resource to watch.
	found = resourceSet{v1.SchemeGroupVersion.WithResource("resourcequotas"): {}}
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
	return found, names, nil
}

// isCounted reports whether one of the names in the quotas counts the resource.
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

// mayNameDeviceClass reports whether a name may be an extended resource of a DeviceClass.
// Only the DeviceClass objects say which names are.
func mayNameDeviceClass(names v1.ResourceList) bool {
	for name := range names {
		if resource, requested := strings.CutPrefix(string(name), v1.DefaultResourceRequestsPrefix); requested && strings.Contains(resource, "/") {
			return true
		}
	}
	return false
}

const (
	quotaWorkers = 5
	// quotaSyncPeriod is how often the usage of each quota is computed again
	// although nothing has changed.
	quotaSyncPeriod = 5 * time.Minute
)

// runController runs upstream's controller, with informers of the given resources, until
// ctx ends.
func (q *lazyQuotaController) runController(ctx context.Context, counted resourceSet) error {
	typed := informers.NewSharedInformerFactoryWithOptions(q.shared.root.kube, 0, informers.WithTransform(process.StripManagedFields))
	defer typed.Shutdown()
	meta := metadatainformer.NewSharedInformerFactoryWithOptions(q.shared.root.metadata, 0, metadatainformer.WithTransform(process.StripManagedFields))
	defer meta.Shutdown()
	factory := quotaInformers{typed, meta}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	evaluators, err := core.NewEvaluators(generic.ListerFuncForResourceFunc(factory.ForResource), typed,
		func(resource schema.GroupVersionResource) bool {
			_, ok := counted[resource]
			return ok
		})
	if err != nil {
		return err
	}
	started := make(chan struct{})
	c, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient:               q.shared.kube.CoreV1(),
		ResourceQuotaInformer:     countableQuotas{typed.Core().V1().ResourceQuotas(), ctx, q},
		ResyncPeriod:              controller.StaticResyncPeriodFunc(quotaSyncPeriod),
		Registry:                  generic.NewRegistry(evaluators),
		DiscoveryFunc:             counted.apiResourceLists,
		IgnoredResourcesFunc:      quotainstall.DefaultIgnoredResources,
		InformersStarted:          started,
		InformerFactory:           factory,
		ReplenishmentResyncPeriod: controller.NoResyncPeriodFunc,
		UpdateFilter:              quotainstall.DefaultUpdateFilter(),
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	close(started)
	c.Run(ctx, quotaWorkers)
	return nil
}

// apiResourceLists returns the set in the form of discovery.
func (r resourceSet) apiResourceLists() ([]*metav1.APIResourceList, error) {
	var lists []*metav1.APIResourceList
	for resource := range r {
		lists = append(lists, &metav1.APIResourceList{
			GroupVersion: resource.GroupVersion().String(),
			APIResources: []metav1.APIResource{{
				Name:  resource.Resource,
				Verbs: metav1.Verbs{"create", "list", "watch", "delete"},
			}},
		})
	}
	return lists, nil
}

// quotaInformers returns typed informers of the resources whose objects the evaluators
// read, and metadata informers of the resources whose objects are only counted.
type quotaInformers struct {
	typed    informers.SharedInformerFactory
	metadata metadatainformer.SharedInformerFactory
}

func (f quotaInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	switch resource.GroupResource() {
	case v1.Resource("pods"), v1.Resource("services"), v1.Resource("persistentvolumeclaims"),
		v1.Resource("resourcequotas"), resourcev1.Resource("resourceclaims"):
		return f.typed.ForResource(resource)
	default:
		return f.metadata.ForResource(resource), nil
	}
}

func (f quotaInformers) Start(stop <-chan struct{}) {
	f.typed.Start(stop)
	f.metadata.Start(stop)
}

// countableQuotas is an informer of quotas whose lister keeps back a quota with a name that the running controller
// may not count. That controller would write a status without usage for such a name, by which admission
// refuses what the quota counts. run sees the same quota, and either starts a controller in place of this one or finds
// that this one counts all.
type countableQuotas struct {
	coreinformers.ResourceQuotaInformer
	ctx context.Context //nolint:containedctx // that of the controller, which gives its lister none
	of  *lazyQuotaController
}

func (i countableQuotas) Lister() corelisters.ResourceQuotaLister {
	return countableLister{i.ResourceQuotaInformer.Lister(), i}
}

type countableLister struct {
	corelisters.ResourceQuotaLister
	countableQuotas
}

func (l countableLister) ResourceQuotas(namespace string) corelisters.ResourceQuotaNamespaceLister {
	return countableNamespaceLister{l.ResourceQuotaLister.ResourceQuotas(namespace), l.countableQuotas}
}

type countableNamespaceLister struct {
	corelisters.ResourceQuotaNamespaceLister
	countableQuotas
}

// Get waits until the controller counts the quota. It fails after a second, and with NotFound, which the
// controller passes over, when the controller ends.
func (l countableNamespaceLister) Get(name string) (*v1.ResourceQuota, error) {
	quota, err := l.ResourceQuotaNamespaceLister.Get(name)
	if err != nil {
		return nil, err
	}
	err = wait.PollUntilContextTimeout(l.ctx, 5*time.Millisecond, time.Second, true, func(context.Context) (bool, error) {
		names := l.of.names.Load()
		return names != nil && len(quotav1.Difference(quotav1.ResourceNames(quota.Spec.Hard), quotav1.ResourceNames(*names))) == 0, nil
	})
	if l.ctx.Err() != nil {
		return nil, apierrors.NewNotFound(v1.Resource("resourcequotas"), name)
	}
	return quota, err
}
