package admission

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kube-openapi/pkg/handler3"
	api "k8s.io/kubernetes/pkg/apis/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"

	"byre/sqlstore/storetest"
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

// mutation and validation are plugins that count how often they are called.
type mutation struct{ calls int }

func (m *mutation) Handles(admission.Operation) bool { return true }

func (m *mutation) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	m.calls++
	return nil
}

type validation struct{ calls int }

func (v *validation) Handles(admission.Operation) bool { return true }

func (v *validation) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	v.calls++
	return nil
}

// TestConfiguration_DecidesWhetherAPluginIsCalled: a plugin is called as long as it is not known
// whether there are objects, and while there are: those of before the start, and those that come
// later.
func TestConfiguration_DecidesWhetherAPluginIsCalled(t *testing.T) {
	for name, object := range configurations() {
		t.Run(name, func(t *testing.T) {
			for _, objects := range [][]runtime.Object{nil, {object}} {
				ctx, cfg := newConfig(t, objects...)
				admits, validates := new(mutation), new(validation)
				decorator := idleUnlessConfigured(cfg.Informers, cfg.FeatureGate, false)
				mutating := decorator.Decorate(admits, name).(admission.MutationInterface)
				validating := decorator.Decorate(validates, name).(admission.ValidationInterface)
				areCalled := func() bool {
					before := [2]int{admits.calls, validates.calls}
					if err := errors.Join(mutating.Admit(ctx, nil, nil), validating.Validate(ctx, nil, nil)); err != nil {
						t.Error(err)
					}
					called := [2]bool{admits.calls > before[0], validates.calls > before[1]}
					if called[0] != called[1] {
						t.Errorf("called: %v", called)
					}
					return called[0]
				}
				if !areCalled() {
					t.Error("not called before the objects are known")
				}
				cfg.Informers.StartWithContext(ctx)
				cfg.Informers.WaitForCacheSyncWithContext(ctx)
				if got := areCalled(); got != (len(objects) > 0) {
					t.Errorf("with %d objects, called: %v", len(objects), got)
				}
				client, resource := cfg.Client.(fakeClient).Clientset, resourceOf(object)
				// A watch of the fake client does not have what happened before it began.
				storetest.Eventually(t, "watched", func() bool {
					return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool {
						return a.Matches("watch", resource.Resource)
					})
				})
				tracker := client.Tracker()
				if len(objects) == 0 {
					if err := tracker.Create(resource, object, ""); err != nil {
						t.Fatal(err)
					}
					storetest.Eventually(t, "called after the first object was created", areCalled)
				}
				if err := tracker.Delete(resource, "", "c"); err != nil {
					t.Fatal(err)
				}
				storetest.Eventually(t, "not called after the last object was deleted", func() bool { return !areCalled() })
			}
		})
	}
}

// resourceOf returns the resource of an object that configurations returns.
func resourceOf(object runtime.Object) schema.GroupVersionResource {
	resource, _ := meta.UnsafeGuessKindToResource(
		registrationv1.SchemeGroupVersion.WithKind(reflect.TypeOf(object).Elem().Name()))
	return resource
}

// TestConfiguration_LeavesOthersAlone: a plugin that no such object tells what to do is not
// decorated.
func TestConfiguration_LeavesOthersAlone(t *testing.T) {
	_, cfg := newConfig(t)
	upstream := new(validation)
	if got := idleUnlessConfigured(cfg.Informers, cfg.FeatureGate, false).Decorate(upstream,
		resourcequota.PluginName); got != admission.Interface(upstream) {
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
	registry := cfg.Options.GenericAdmission.Plugins
	pairs := map[string]pluginPair{}
	decorator := idleUnlessConfigured(cfg.Informers, cfg.FeatureGate, false)
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

// TestConfiguration_KeepsWhatAPluginImplements: a plugin that only mutates does not validate
// when it is decorated, which the metrics of plugins would count, and the other way round.
func TestConfiguration_KeepsWhatAPluginImplements(t *testing.T) {
	for name, pair := range newPluginPairs(t) {
		if pair.upstream == pair.byre {
			t.Errorf("%s is not decorated", name)
		}
		for _, plugin := range []admission.Interface{pair.upstream, pair.byre} {
			_, mutates := plugin.(admission.MutationInterface)
			_, validates := plugin.(admission.ValidationInterface)
			if want := strings.HasPrefix(name, "Mutating"); mutates != want || validates == want {
				t.Errorf("%T of %s mutates: %v, validates: %v", plugin, name, mutates, validates)
			}
		}
	}
}

// TestConfiguration_IsNeededForUpstreamsPlugins: without objects no plugin of upstream changes
// or refuses a Pod. That of the mutating webhooks copies it nevertheless.
func TestConfiguration_IsNeededForUpstreamsPlugins(t *testing.T) {
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

// BenchmarkConfiguration admits a Pod without objects, by these plugins and by upstream's.
func BenchmarkConfiguration(b *testing.B) {
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

// A request that one quota refuses is refused, also where the status of another quota is in conflict.
func TestQuota_RefusedRequestIsNotAdmittedByAnotherQuota(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		serial bool
		admits bool
	}{
		{"upstream's plugin admits it", false, true},
		{"in a namespace with several quotas", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := refusedAmongOthers(t, test.serial); (err == nil) != test.admits || err != nil &&
					!strings.Contains(err.Error(), "exceeded quota: maps") {
					t.Errorf("the ConfigMap beyond the quota: %v", err)
				}
			})
		})
	}
}

// refusedAmongOthers has a ConfigMap, of which the quota has no more, wait together with a Secret, whose quota is in
// conflict. It returns what the ConfigMap gets.
func refusedAmongOthers(t *testing.T, serial bool) error {
	quota := func(name string, of corev1.ResourceName, hard, used string) *corev1.ResourceQuota {
		limits := corev1.ResourceList{of: resource.MustParse(hard)}
		return &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", ResourceVersion: "1"},
			Spec:       corev1.ResourceQuotaSpec{Hard: limits},
			Status:     corev1.ResourceQuotaStatus{Hard: limits, Used: corev1.ResourceList{of: resource.MustParse(used)}},
		}
	}
	client := fake.NewClientset(quota("maps", "configmaps", "1", "1"), quota("secrets", "secrets", "9", "0"))
	updates, proceed := 0, make(chan struct{})
	client.PrependReactor("update", "resourcequotas", func(clienttesting.Action) (bool, runtime.Object, error) {
		switch updates++; updates {
		case 1:
			<-proceed
		case 2:
			return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), "secrets", nil)
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	upstream, err := resourcequota.NewResourceQuota(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	configuration, err := quotainstall.NewQuotaConfigurationForAdmission(factory, nil)
	if err != nil {
		t.Fatal(err)
	}
	upstream.SetDrainedNotification(ctx.Done())
	upstream.SetExternalKubeClientSet(client)
	upstream.SetExternalKubeInformerFactory(factory)
	upstream.SetQuotaConfiguration(configuration)
	plugin := admission.ValidationInterface(upstream)
	if serial {
		all := (&Config{Informers: factory, FeatureGate: utilfeature.DefaultFeatureGate}).decorators(true)
		plugin = all.Decorate(upstream, resourcequota.PluginName).(admission.ValidationInterface)
	}
	quotas := factory.Core().V1().ResourceQuotas().Informer()
	go quotas.RunWithContext(ctx)
	synctest.Wait()

	ask := func(kind, plural string, object runtime.Object) chan error {
		answer := make(chan error, 1)
		attributes := admission.NewAttributesRecord(object, nil, corev1.SchemeGroupVersion.WithKind(kind), "ns", "a",
			corev1.SchemeGroupVersion.WithResource(plural), "", admission.Create, &metav1.CreateOptions{}, false, nil)
		go func() { answer <- plugin.Validate(ctx, attributes, nil) }()
		synctest.Wait()
		return answer
	}
	first := ask("Secret", "secrets", &corev1.Secret{})
	refused := ask("ConfigMap", "configmaps", &corev1.ConfigMap{})
	second := ask("Secret", "secrets", &corev1.Secret{})
	close(proceed)
	for _, answer := range []chan error{first, second} {
		if err := <-answer; err != nil {
			t.Errorf("a Secret within its quota: %v", err)
		}
	}
	return <-refused
}

// fakeClient is a fake clientset with a discovery client that makes requests.
type fakeClient struct {
	*fake.Clientset
	discovery discovery.DiscoveryInterfaces
}

func (c fakeClient) Discovery() discovery.DiscoveryInterfaces { return c.discovery }

// newOpenAPIClient returns a client of a server that has the OpenAPI index of the group "g".
func newOpenAPIClient(t testing.TB) discovery.DiscoveryInterfaces {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/openapi/v3", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{
			"apis/g/v1": {ServerRelativeURL: "/openapi/v3/apis/g/v1?hash=1"},
		}})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestOpenAPIClient_WaitsForTheServer: the index is asked for once the informer has synced, and not
// after the server has stopped.
func TestOpenAPIClient_WaitsForTheServer(t *testing.T) {
	stop := make(chan struct{})
	polls, hasSynced := 0, false
	synced := func() bool {
		polls++
		hasSynced = polls > 2
		return hasSynced
	}
	client := openAPIClientset{fakeClient{fake.NewClientset(), newOpenAPIClient(t)}, synced, stop}.Discovery().OpenAPIV3()
	paths, err := client.Paths()
	if err != nil || len(paths) != 1 || paths["apis/g/v1"] == nil || !hasSynced {
		t.Errorf("got %v, %v, after %d polls", paths, err, polls)
	}
	close(stop)
	polls = -100
	if paths, err := client.Paths(); err == nil {
		t.Errorf("the server has stopped: got %v", paths)
	}
}
