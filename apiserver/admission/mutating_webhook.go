package admission

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// mutatingWebhookPlugin is the admission plugin that calls mutating webhooks.
//
// What upstream does: its plugin copies every object at the start of Admit, to detect later
// whether another plugin has changed it. Without a webhook nothing uses the copy.
//
// What is done instead: upstream's plugin is called only if a MutatingWebhookConfiguration
// exists.
//
// What it relies on: upstream's plugin calls only the webhooks of these objects.
// TestMutatingWebhook_CopiesNothingWithoutWebhooks fails when upstream's copies nothing any
// more: then this type is needless.
//
// What it earns: 9 allocations, of 2.8 kB, for each write of a small Pod
// (BenchmarkMutatingWebhook).
type mutatingWebhookPlugin struct {
	*mutatingwebhook.Plugin

	configurations cache.SharedIndexInformer
}

func registerMutatingWebhookPlugin(plugins *admission.Plugins) {
	plugins.Register(mutatingwebhook.PluginName, func(settings io.Reader) (admission.Interface, error) {
		plugin, err := mutatingwebhook.NewMutatingWebhook(settings)
		if err != nil {
			return nil, err
		}
		if utilfeature.DefaultFeatureGate.Enabled(features.ManifestBasedAdmissionControlConfig) {
			return plugin, nil // webhooks may come from manifest files, not objects
		}
		return &mutatingWebhookPlugin{Plugin: plugin}, nil
	})
}

// SetExternalKubeInformerFactory implements initializer.WantsExternalKubeInformerFactory.
// The chain's constructor calls it, before the first request.
func (m *mutatingWebhookPlugin) SetExternalKubeInformerFactory(factory informers.SharedInformerFactory) {
	m.Plugin.SetExternalKubeInformerFactory(factory)
	m.configurations = factory.Admissionregistration().V1().MutatingWebhookConfigurations().Informer()
}

// Admit implements admission.MutationInterface.
func (m *mutatingWebhookPlugin) Admit(ctx context.Context, attr admission.Attributes, o admission.ObjectInterfaces) error {
	if m.configurations.HasSynced() && len(m.configurations.GetStore().ListKeys()) == 0 {
		return nil
	}
	return m.Plugin.Admit(ctx, attr, o)
}
