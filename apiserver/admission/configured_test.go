package admission

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// configurations has an object for each plugin that objects tell what to do.
func configurations() map[string]runtime.Object {
	named := metav1.ObjectMeta{Name: "c"}
	return map[string]runtime.Object{
		mutatingwebhook.PluginName:   &registrationv1.MutatingWebhookConfiguration{ObjectMeta: named},
		validatingwebhook.PluginName: &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: named},
		mutatingpolicy.PluginName:    &registrationv1.MutatingAdmissionPolicy{ObjectMeta: named},
		validatingpolicy.PluginName:  &registrationv1.ValidatingAdmissionPolicy{ObjectMeta: named},
	}
}

// calls is an admission plugin that records how it is called.
type calls struct{ names []string }

func (c *calls) Handles(admission.Operation) bool { return true }

func (c *calls) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.names = append(c.names, "Admit")
	return nil
}

func (c *calls) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.names = append(c.names, "Validate")
	return nil
}

// TestConfiguredPlugin_CallsUpstreamsOnlyWithObjects: upstream's plugin is called as long as it is
// not known whether there are objects, and when there are.
func TestConfiguredPlugin_CallsUpstreamsOnlyWithObjects(t *testing.T) {
	for name, object := range configurations() {
		for _, objects := range [][]runtime.Object{nil, {object}} {
			ctx, cfg := newConfig(t, objects...)
			upstream := new(calls)
			plugin := idleUnlessConfigured(cfg.Informers, cfg.FeatureGate).Decorate(upstream, name)
			expect := func(when string, want []string) {
				t.Helper()
				upstream.names = nil
				if err := plugin.(admission.MutationInterface).Admit(ctx, nil, nil); err != nil {
					t.Error(err)
				}
				if err := plugin.(admission.ValidationInterface).Validate(ctx, nil, nil); err != nil {
					t.Error(err)
				}
				if !slices.Equal(upstream.names, want) {
					t.Errorf("%s %s, with %d objects: got the calls %q, want %q", name, when, len(objects), upstream.names, want)
				}
			}
			expect("before the objects are known", []string{"Admit", "Validate"})
			cfg.Informers.StartWithContext(ctx)
			cfg.Informers.WaitForCacheSyncWithContext(ctx)
			if len(objects) == 0 {
				expect("afterwards", nil)
			} else {
				expect("afterwards", []string{"Admit", "Validate"})
			}
		}
	}
}

// TestConfiguredPlugin_LeavesOthersAlone: a plugin that no such object tells what to do is not
// decorated.
func TestConfiguredPlugin_LeavesOthersAlone(t *testing.T) {
	_, cfg := newConfig(t)
	upstream := new(calls)
	if got := idleUnlessConfigured(cfg.Informers, cfg.FeatureGate).Decorate(upstream, resourcequota.PluginName); got != admission.Interface(upstream) {
		t.Errorf("got %T", got)
	}
}

// copied is an object that counts its deep copies.
type copied struct {
	api.Pod
	times int
}

func (c *copied) DeepCopyObject() runtime.Object {
	c.times++
	return c.Pod.DeepCopyObject()
}

// pluginPair is a plugin of upstream, and the same one decorated. Their informers are in sync, and
// there are no objects.
type pluginPair struct{ upstream, byre admission.Interface }

func newPluginPairs(t testing.TB) map[string]pluginPair {
	t.Helper()
	ctx, cfg := newConfig(t)
	initializers, _, err := cfg.initializers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	registry := admission.NewPlugins()
	for _, p := range plugins() {
		p.register(registry)
	}
	pairs := map[string]pluginPair{}
	decorator := idleUnlessConfigured(cfg.Informers, cfg.FeatureGate)
	for name := range configurations() {
		upstream, err := registry.InitPlugin(name, nil, initializers)
		if err != nil {
			t.Fatal(err)
		}
		pairs[name] = pluginPair{upstream, decorator.Decorate(upstream, name)}
	}
	cfg.Informers.StartWithContext(ctx)
	cfg.Informers.WaitForCacheSyncWithContext(ctx)
	return pairs
}

// admitPod passes a Pod through a plugin.
func admitPod(ctx context.Context, plugin admission.Interface, pod runtime.Object) error {
	attributes := admission.NewAttributesRecord(pod, nil, api.Kind("Pod").WithVersion("v1"), "n", "p",
		api.Resource("pods").WithVersion("v1"), "", admission.Create, &metav1.CreateOptions{}, false, nil)
	if mutating, ok := plugin.(admission.MutationInterface); ok {
		if err := mutating.Admit(ctx, attributes, interfaces()); err != nil {
			return err
		}
	}
	if validating, ok := plugin.(admission.ValidationInterface); ok {
		return validating.Validate(ctx, attributes, interfaces())
	}
	return nil
}

// TestConfiguredPlugin_IsLikeUpstreamsWithoutObjects: without objects no plugin of upstream changes
// or refuses a Pod. That of the mutating webhooks copies it nevertheless.
func TestConfiguredPlugin_IsLikeUpstreamsWithoutObjects(t *testing.T) {
	for name, pair := range newPluginPairs(t) {
		for of, plugin := range map[string]admission.Interface{"upstream": pair.upstream, "byre": pair.byre} {
			pod := &copied{Pod: *newPod()}
			if err := admitPod(t.Context(), plugin, pod); err != nil {
				t.Errorf("%s of %s: %v", name, of, err)
			}
			if diff := cmp.Diff(*newPod(), pod.Pod); diff != "" {
				t.Errorf("%s of %s changed the Pod (-want +got):\n%s", name, of, diff)
			}
			if want := name == mutatingwebhook.PluginName && of == "upstream"; (pod.times > 0) != want {
				t.Errorf("%s of %s made %d copies", name, of, pod.times)
			}
		}
	}
}

// BenchmarkConfiguredPlugin admits a Pod without objects, by these plugins and by upstream's.
func BenchmarkConfiguredPlugin(b *testing.B) {
	pairs := newPluginPairs(b)
	pod := newPod()
	pod.Spec.Containers = []api.Container{
		{Name: "c", Image: "i", Env: []api.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}}, {Name: "d", Image: "i"},
	}
	for of, choose := range map[string]func(pluginPair) admission.Interface{
		"upstream": func(p pluginPair) admission.Interface { return p.upstream },
		"byre":     func(p pluginPair) admission.Interface { return p.byre },
	} {
		b.Run(of, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, pair := range pairs {
					if err := admitPod(b.Context(), choose(pair), pod); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
