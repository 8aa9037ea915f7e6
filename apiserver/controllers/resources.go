package controllers

import (
	"context"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	schedulinginformers "k8s.io/client-go/informers/scheduling/v1beta1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/devicetainteviction"
	"k8s.io/kubernetes/pkg/controller/resourceclaim"
	"k8s.io/kubernetes/pkg/features"
)

func newResourceClaim(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	resources := informersIn(cc, resourceinformers.New)
	c, err := resourceclaim.NewController(klog.FromContext(ctx), cc.kube, informersIn(cc, coreinformers.New).Pods(),
		informersIn(cc, schedulinginformers.New).PodGroups(), resources.ResourceClaims(), resources.ResourceClaimTemplates())
	return withWorkers(c, cc.settings.ResourceClaimController.ConcurrentSyncs, err)
}

// newDeviceTaintEviction builds no controller if the feature of device taints is off.
func newDeviceTaintEviction(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.DRADeviceTaints) {
		return nil, nil
	}
	resources := informersIn(cc, resourceinformers.New)
	c := devicetainteviction.New(cc.kube, informersIn(cc, coreinformers.New).Pods(), resources.ResourceClaims(), resources.ResourceSlices(),
		resources.DeviceTaintRules(), resources.DeviceClasses(), names.DeviceTaintEvictionController)
	return func(ctx context.Context) {
		if err := c.Run(ctx, int(cc.settings.DeviceTaintEvictionController.ConcurrentSyncs)); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Eviction by taints of devices has stopped")
		}
	}, nil
}
