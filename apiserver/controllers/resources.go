package controllers

import (
	"context"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/devicetainteviction"
	"k8s.io/kubernetes/pkg/controller/resourceclaim"
	"k8s.io/kubernetes/pkg/features"
)

func newResourceClaim(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	resources := cc.InformerFactory.Resource().V1()
	c, err := resourceclaim.NewController(klog.FromContext(ctx), cc.kube, cc.InformerFactory.Core().V1().Pods(),
		cc.InformerFactory.Scheduling().V1beta1().PodGroups(), resources.ResourceClaims(), resources.ResourceClaimTemplates())
	return withWorkers(c, cc.ComponentConfig.ResourceClaimController.ConcurrentSyncs, err)
}

// newDeviceTaintEviction builds no controller if the feature of device taints is off.
func newDeviceTaintEviction(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.DRADeviceTaints) {
		return nil, nil
	}
	resources := cc.InformerFactory.Resource().V1()
	c := devicetainteviction.New(cc.kube, cc.InformerFactory.Core().V1().Pods(), resources.ResourceClaims(), resources.ResourceSlices(),
		resources.DeviceTaintRules(), resources.DeviceClasses(), names.DeviceTaintEvictionController)
	return func(ctx context.Context) {
		if err := c.Run(ctx, int(cc.ComponentConfig.DeviceTaintEvictionController.ConcurrentSyncs)); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Eviction by taints of devices has stopped")
		}
	}, nil
}
