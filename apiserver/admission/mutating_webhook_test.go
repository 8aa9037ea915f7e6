package admission

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// copied is an object that counts its deep copies.
type copied struct {
	api.ConfigMap
	times int
}

func (c *copied) DeepCopyObject() runtime.Object {
	c.times++
	return c.ConfigMap.DeepCopyObject()
}

// newMutatingWebhookPlugin returns the plugin with its informers in sync. If configured,
// there is a configuration without webhooks.
func newMutatingWebhookPlugin(t testing.TB, configured bool) *mutatingWebhookPlugin {
	t.Helper()
	client := fake.NewClientset()
	if configured {
		client = fake.NewClientset(&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "none"}})
	}
	plugin, err := mutatingwebhook.NewMutatingWebhook(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &mutatingWebhookPlugin{Plugin: plugin}
	factory := informers.NewSharedInformerFactory(client, 0)
	m.SetExternalKubeClientSet(client)
	m.SetExternalKubeInformerFactory(factory)
	if err := m.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(factory.Shutdown) // after t.Context has ended
	factory.StartWithContext(t.Context())
	factory.WaitForCacheSyncWithContext(t.Context())
	return m
}

// TestMutatingWebhook_CopiesNothingWithoutWebhooks: the plugin copies objects only if there
// are webhooks.
func TestMutatingWebhook_CopiesNothingWithoutWebhooks(t *testing.T) {
	for _, configured := range []bool{false, true} {
		m := newMutatingWebhookPlugin(t, configured)
		object := &copied{}
		attributes := admission.NewAttributesRecord(object, nil, api.SchemeGroupVersion.WithKind("ConfigMap"), "n", "c",
			api.SchemeGroupVersion.WithResource("configmaps"), "", admission.Create, &metav1.CreateOptions{}, false, nil)
		if err := m.Admit(t.Context(), attributes, nil); err != nil {
			t.Fatal(err)
		}
		if (object.times > 0) != configured {
			t.Errorf("with webhooks configured: %v, objects are copied %d times", configured, object.times)
		}
	}
}

// BenchmarkMutatingWebhook admits a Pod without webhooks, by this plugin and by upstream's.
func BenchmarkMutatingWebhook(b *testing.B) {
	m := newMutatingWebhookPlugin(b, false)
	pod := &api.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}, Spec: api.PodSpec{Containers: []api.Container{
		{Name: "c", Image: "i", Env: []api.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}}, {Name: "d", Image: "i"},
	}}}
	attributes := admission.NewAttributesRecord(pod, nil, api.SchemeGroupVersion.WithKind("Pod"), "n", "p",
		api.SchemeGroupVersion.WithResource("pods"), "", admission.Create, &metav1.CreateOptions{}, false, nil)
	for name, plugin := range map[string]admission.MutationInterface{"byre": m, "upstream": m.Plugin} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := plugin.Admit(b.Context(), attributes, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
