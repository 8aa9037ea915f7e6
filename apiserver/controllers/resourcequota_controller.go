package controllers

import (
	"context"
	"time"

	"k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"

	"byre/apiserver/process"
)

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
