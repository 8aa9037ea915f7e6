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

// mutatingWebhooks spares requests the plugin where there is no webhook: it copies
// every object, to see later whether others have changed it.
type mutatingWebhooks struct {
	*mutatingwebhook.Plugin

	configurations cache.SharedIndexInformer
}

func registerMutatingWebhooks(plugins *admission.Plugins) {
	plugins.Register(mutatingwebhook.PluginName, func(settings io.Reader) (admission.Interface, error) {
		plugin, err := mutatingwebhook.NewMutatingWebhook(settings)
		if err != nil {
			return nil, err
		}
		if utilfeature.DefaultFeatureGate.Enabled(features.ManifestBasedAdmissionControlConfig) {
			return plugin, nil // which may have webhooks that are no objects
		}
		return &mutatingWebhooks{Plugin: plugin}, nil
	})
}

// SetExternalKubeInformerFactory is called before the first request.
func (m *mutatingWebhooks) SetExternalKubeInformerFactory(factory informers.SharedInformerFactory) {
	m.Plugin.SetExternalKubeInformerFactory(factory)
	m.configurations = factory.Admissionregistration().V1().MutatingWebhookConfigurations().Informer()
}

func (m *mutatingWebhooks) Admit(ctx context.Context, attr admission.Attributes, o admission.ObjectInterfaces) error {
	if m.configurations.HasSynced() && len(m.configurations.GetStore().ListKeys()) == 0 {
		return nil
	}
	return m.Plugin.Admit(ctx, attr, o)
}
