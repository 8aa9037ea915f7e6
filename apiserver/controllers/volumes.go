package controllers

import (
	"context"
	"slices"

	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"
	"k8s.io/kubernetes/pkg/controller/volume/ephemeral"
	"k8s.io/kubernetes/pkg/controller/volume/expand"
	"k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"
	"k8s.io/kubernetes/pkg/controller/volume/pvprotection"
	"k8s.io/kubernetes/pkg/controller/volume/vacprotection"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/csimigration"
	"k8s.io/kubernetes/pkg/volume/fc"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	"k8s.io/kubernetes/pkg/volume/hostpath"
	"k8s.io/kubernetes/pkg/volume/iscsi"
	"k8s.io/kubernetes/pkg/volume/nfs"
	"k8s.io/utils/exec"
)

// volumePlugins returns those of kube-controller-manager's volume plugins that the
// function accepts.
func (cc *controllerContext) volumePlugins(accept func(volume.VolumePlugin) bool) []volume.VolumePlugin {
	settings := cc.ComponentConfig.PersistentVolumeBinderController.VolumeConfiguration
	recycler := settings.PersistentVolumeRecyclerConfiguration
	all := hostpath.ProbeVolumePlugins(volume.VolumeConfig{
		RecyclerMinimumTimeout:   int(recycler.MinimumTimeoutHostPath),
		RecyclerTimeoutIncrement: int(recycler.IncrementTimeoutHostPath),
		RecyclerPodTemplate:      volume.NewPersistentVolumeRecyclerPodTemplate(),
		ProvisioningEnabled:      settings.EnableHostPathProvisioning,
	})
	all = append(all, nfs.ProbeVolumePlugins(volume.VolumeConfig{
		RecyclerMinimumTimeout:   int(recycler.MinimumTimeoutNFS),
		RecyclerTimeoutIncrement: int(recycler.IncrementTimeoutNFS),
		RecyclerPodTemplate:      volume.NewPersistentVolumeRecyclerPodTemplate(),
	})...)
	all = append(all, fc.ProbeVolumePlugins()...)
	all = append(all, iscsi.ProbeVolumePlugins()...)
	all = append(all, csi.ProbeVolumePlugins()...)
	return slices.DeleteFunc(all, func(plugin volume.VolumePlugin) bool { return !accept(plugin) })
}

func newVolumeBinder(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	settings := cc.ComponentConfig.PersistentVolumeBinderController
	c, err := persistentvolume.NewController(ctx, persistentvolume.ControllerParameters{
		KubeClient: cc.kube,
		SyncPeriod: settings.PVClaimBinderSyncPeriod.Duration,
		VolumePlugins: cc.volumePlugins(func(plugin volume.VolumePlugin) bool {
			switch plugin.(type) {
			case volume.ProvisionableVolumePlugin, volume.DeletableVolumePlugin, volume.RecyclableVolumePlugin:
				return true
			default:
				return false
			}
		}),
		VolumeInformer:            core.PersistentVolumes(),
		ClaimInformer:             core.PersistentVolumeClaims(),
		ClassInformer:             cc.InformerFactory.Storage().V1().StorageClasses(),
		PodInformer:               core.Pods(),
		NodeInformer:              core.Nodes(),
		EnableDynamicProvisioning: settings.VolumeConfiguration.EnableDynamicProvisioning,
	})
	return runOf(c, err)
}

func newClaimProtection(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	c, err := pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), core.PersistentVolumeClaims(), core.Pods(), cc.kube)
	return withWorkers(c, 1, err)
}

func newVolumeProtection(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	c, err := pvprotection.NewPVProtectionController(klog.FromContext(ctx), cc.InformerFactory.Core().V1().PersistentVolumes(), cc.kube)
	return withWorkers(c, 1, err)
}

func newAttributesClassProtection(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	c, err := vacprotection.NewVACProtectionController(klog.FromContext(ctx), cc.kube, core.PersistentVolumeClaims(), core.PersistentVolumes(),
		cc.InformerFactory.Storage().V1().VolumeAttributesClasses())
	return withWorkers(c, 1, err)
}

func newAttachDetach(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	settings := cc.ComponentConfig.AttachDetachController
	core, storage := cc.InformerFactory.Core().V1(), cc.InformerFactory.Storage().V1()
	attachable := cc.volumePlugins(func(plugin volume.VolumePlugin) bool {
		_, ok := plugin.(volume.AttachableVolumePlugin)
		return ok
	})
	prober := flexvolume.GetDynamicPluginProber(ctx, cc.ComponentConfig.PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir, exec.New())
	c, err := attachdetach.NewAttachDetachController(ctx, cc.kube, core.Pods(), core.Nodes(), core.PersistentVolumeClaims(), core.PersistentVolumes(),
		storage.CSINodes(), storage.CSIDrivers(), storage.VolumeAttachments(), attachable, prober,
		settings.DisableAttachDetachReconcilerSync, settings.ReconcilerSyncLoopPeriod.Duration, settings.DisableForceDetachOnTimeout, attachdetach.DefaultTimerConfig)
	return runOf(c, err)
}

func newVolumeExpander(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	expandable := cc.volumePlugins(func(plugin volume.VolumePlugin) bool {
		_, ok := plugin.(volume.ExpandableVolumePlugin)
		return ok
	})
	translator := csitranslation.New()
	c, err := expand.NewExpandController(ctx, cc.kube, cc.InformerFactory.Core().V1().PersistentVolumeClaims(), expandable, translator, csimigration.NewPluginManager(translator))
	return runOf(c, err)
}

func newEphemeralVolume(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	core := cc.InformerFactory.Core().V1()
	c, err := ephemeral.NewController(ctx, cc.kube, core.Pods(), core.PersistentVolumeClaims())
	return withWorkers(c, cc.ComponentConfig.EphemeralVolumeController.ConcurrentEphemeralVolumeSyncs, err)
}
