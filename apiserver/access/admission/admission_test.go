package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/tracing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/utils/ptr"

	"byre/apiserver/apitest"
	"byre/apiserver/process"
)

// start builds a chain over a fake client that has the objects, and starts its informers.
func start(t *testing.T, o *Options, objects ...runtime.Object) (*Admission, error) {
	t.Helper()
	ctx, cfg := newConfig(t, objects...)
	cfg.Options = o
	a, err := New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Informers.Start(ctx.Done())
	cfg.Informers.WaitForCacheSync(ctx.Done())
	return a, nil
}

// newConfig returns a configuration over a fake client that has the objects, and the context
// that its informers run with.
func newConfig(t testing.TB, objects ...runtime.Object) (context.Context, Config) {
	t.Helper()
	client := fakeClient{fake.NewClientset(objects...), newOpenAPIClient(t)}
	factory := informers.NewSharedInformerFactory(client, 0)
	resources := serverstorage.NewResourceConfig()
	resources.EnableVersions(v1.SchemeGroupVersion)
	reader := apitest.NewStores(t).Reader
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	return ctx, Config{
		Options:                 NewOptions(),
		ServerID:                "test",
		Client:                  client,
		DynamicClient:           dynamicfake.NewSimpleDynamicClient(legacyscheme.Scheme),
		Informers:               factory,
		Reader:                  reader,
		Authorizer:              authorizerfactory.NewAlwaysAllowAuthorizer(),
		FeatureGate:             utilfeature.DefaultFeatureGate,
		APIResourceConfigSource: resources,
		EffectiveVersion:        compatibility.DefaultBuildEffectiveVersion(),
		ServiceResolver:         process.NewServiceResolver(reader, false, nil),
		AuthenticationInfoResolverWrapper: func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
			return r
		},
	}
}

func podAttributes(pod *core.Pod) admission.Attributes {
	return admission.NewAttributesRecord(pod, nil, core.Kind("Pod").WithVersion("v1"), pod.Namespace, pod.Name,
		core.Resource("pods").WithVersion("v1"), "", admission.Create, &metav1.CreateOptions{}, false,
		&user.DefaultInfo{Name: "someone"})
}

func newPod() *core.Pod {
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"},
		Spec: core.PodSpec{
			RestartPolicy: core.RestartPolicyAlways,
			Containers:    []core.Container{{Name: "c", Image: "i"}},
		},
	}
}

var (
	namespace = &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: v1.NamespaceStatus{Phase: v1.NamespaceActive}}
	account = &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "default"}}
)

func interfaces() admission.ObjectInterfaces {
	return admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
}

// TestChain_AdmitsAPodByDefault admits a Pod through every plugin that is on by default and
// checks the changes that several of them make to it.
func TestChain_AdmitsAPodByDefault(t *testing.T) {
	limits := &v1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "l"},
		Spec: v1.LimitRangeSpec{Limits: []v1.LimitRangeItem{{
			Type:           v1.LimitTypeContainer,
			DefaultRequest: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")},
		}}},
	}
	a, err := start(t, NewOptions(), namespace, account, limits)
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod()
	attributes := podAttributes(pod)
	if err := a.Plugins.(admission.MutationInterface).Admit(context.Background(), attributes, interfaces()); err != nil {
		t.Fatal(err)
	}
	if err := a.Plugins.(admission.ValidationInterface).Validate(context.Background(), attributes,
		interfaces()); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.ServiceAccountName != "default" {
		t.Error("ServiceAccount did not run")
	}
	if cpu := pod.Spec.Containers[0].Resources.Requests[core.ResourceCPU]; cpu.String() != "100m" {
		t.Error("LimitRanger did not run")
	}
	if len(pod.Spec.Tolerations) < 2 {
		t.Error("DefaultTolerationSeconds did not run")
	}
	if pod.Spec.Priority == nil {
		t.Error("Priority did not run")
	}
}

func TestChain_RefusesWhatPluginsForbid(t *testing.T) {
	terminating := namespace.DeepCopy()
	terminating.Status.Phase = v1.NamespaceTerminating
	restricted := namespace.DeepCopy()
	restricted.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	full := &v1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "q"},
		Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{v1.ResourcePods: resource.MustParse("0")}},
		Status: v1.ResourceQuotaStatus{
			Hard: v1.ResourceList{v1.ResourcePods: resource.MustParse("0")},
			Used: v1.ResourceList{v1.ResourcePods: resource.MustParse("0")},
		},
	}
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		want    string
	}{
		{"no namespace", nil, `namespaces "n" not found`},
		{"terminating namespace", []runtime.Object{terminating, account}, "because it is being terminated"},
		{"pod security", []runtime.Object{restricted, account}, "violates PodSecurity"},
		{"quota", []runtime.Object{namespace, account, full}, "exceeded quota: q"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, err := start(t, NewOptions(), test.objects...)
			if err != nil {
				t.Fatal(err)
			}
			attributes := podAttributes(newPod())
			err = a.Plugins.(admission.MutationInterface).Admit(context.Background(), attributes, interfaces())
			if err == nil {
				err = a.Plugins.(admission.ValidationInterface).Validate(context.Background(), attributes, interfaces())
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestChain_InitializesEveryPlugin turns on all plugins that need no configuration. New
// returns an error if one of them does not get a dependency that it requires.
func TestChain_InitializesEveryPlugin(t *testing.T) {
	o := NewOptions()
	for _, name := range o.GenericAdmission.RecommendedPluginOrder {
		if name != "EventRateLimit" && name != "ImagePolicyWebhook" {
			o.GenericAdmission.EnablePlugins = append(o.GenericAdmission.EnablePlugins, name)
		}
	}
	if _, err := start(t, o); err != nil {
		t.Error(err)
	}
}

func TestConfig_ConfiguresPlugins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admission.yaml")
	const settings = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - {type: Server, qps: 1, burst: 1}
`
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	o := parse(t, "--enable-admission-plugins=EventRateLimit", "--admission-control-config-file="+file)
	if _, err := start(t, o); err != nil {
		t.Error(err)
	}
	o.GenericAdmission.ConfigFile = filepath.Join(t.TempDir(), "none")
	if _, err := start(t, o); err == nil || !strings.HasPrefix(err.Error(), "--admission-control-config-file") {
		t.Errorf("got %v", err)
	}
}

// parse returns the options of a command line.
func parse(t *testing.T, args ...string) *Options {
	t.Helper()
	o := NewOptions()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOptions_EnableAndDisablePlugins(t *testing.T) {
	got := parse(t, "--enable-admission-plugins=AlwaysPullImages",
		"--disable-admission-plugins=ResourceQuota").EnabledPluginNames()
	if !slices.Contains(got, "AlwaysPullImages") || slices.Contains(got, "ResourceQuota") ||
		len(got) != len(NewOptions().EnabledPluginNames()) {
		t.Errorf("got %v", got)
	}
	if got := parse(t, "--admission-control=ResourceQuota,LimitRanger").EnabledPluginNames(); !slices.Equal(got,
		[]string{"LimitRanger", "ResourceQuota"}) {
		t.Errorf("got %v", got)
	}
}

func TestOptions_Validate(t *testing.T) {
	for _, test := range []struct {
		args, want string
	}{
		{"", ""},
		{"--enable-admission-plugins=NoSuch", `enable-admission-plugins plugin "NoSuch" is unknown`},
		{"--disable-admission-plugins=NoSuch", `disable-admission-plugins plugin "NoSuch" is unknown`},
		{"--admission-control=NoSuch", `admission-control plugin "NoSuch" is unknown`},
		{"--enable-admission-plugins=Priority --disable-admission-plugins=Priority",
			"[Priority] in enable-admission-plugins and disable-admission-plugins overlapped"},
		{"--admission-control=Priority --enable-admission-plugins=Priority",
			"admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive"},
	} {
		t.Run(test.args, func(t *testing.T) {
			var got string
			if errs := parse(t, strings.Fields(test.args)...).Validate(); len(errs) > 0 {
				got = errs[0].Error()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// hook is a webhook that labels every Pod, or refuses Pods called "bad".
func hook(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(reviewer(t))
	t.Cleanup(server.Close)
	return server
}

func reviewer(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		bad := r.URL.Path == "/validate" && review.Request.Name == "bad"
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !bad}
		switch {
		case bad:
			review.Response.Result = &metav1.Status{Message: "that is a bad name"}
		case r.URL.Path == "/mutate":
			review.Response.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
			review.Response.Patch = []byte(`[{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]`)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}
}

func TestWebhooks_AreCalled(t *testing.T) {
	server := hook(t)
	ca := authority(server)
	at := func(path string) registrationv1.WebhookClientConfig {
		return registrationv1.WebhookClientConfig{URL: new(server.URL + path), CABundle: ca}
	}
	rules := []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{registrationv1.Create},
		Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"},
			Scope: ptr.To(registrationv1.AllScopes)},
	}}
	mutating := &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "m.example.com", ClientConfig: at("/mutate"), Rules: rules, FailurePolicy: ptr.To(registrationv1.Fail),
			MatchPolicy: ptr.To(registrationv1.Equivalent), NamespaceSelector: &metav1.LabelSelector{},
			ObjectSelector: &metav1.LabelSelector{},
			SideEffects:    ptr.To(registrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](30),
			AdmissionReviewVersions: []string{"v1"},
			ReinvocationPolicy:      ptr.To(registrationv1.NeverReinvocationPolicy),
		}},
	}
	validating := &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "v.example.com", ClientConfig: at("/validate"), Rules: rules, FailurePolicy: ptr.To(registrationv1.Fail),
			MatchPolicy: ptr.To(registrationv1.Equivalent), NamespaceSelector: &metav1.LabelSelector{},
			ObjectSelector: &metav1.LabelSelector{},
			SideEffects:    ptr.To(registrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](30),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	a, err := start(t, NewOptions(), namespace, account, mutating, validating)
	if err != nil {
		t.Fatal(err)
	}
	// admit puts a Pod through the whole chain and returns its labels.
	admit := func(name string) (map[string]string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		pod := newPod()
		pod.Name = name
		attributes := podAttributes(pod)
		err := a.Plugins.(admission.MutationInterface).Admit(ctx, attributes, interfaces())
		if err == nil {
			err = a.Plugins.(admission.ValidationInterface).Validate(ctx, attributes, interfaces())
		}
		return pod.Labels, err
	}
	if labels, err := admit("good"); err != nil || labels["seen"] != "yes" {
		t.Errorf("got %v, %v", labels, err)
	}
	if _, err := admit("bad"); err == nil || !strings.Contains(err.Error(), "that is a bad name") {
		t.Errorf("got %v", err)
	}
	server.Close()
	if _, err := admit("good"); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("with the webhook gone: %v", err)
	}
}

// TestWebhooks_CallAServiceOfThisServer calls a webhook whose Service is this server
// itself, as that of a webhook behind an aggregated API is. The server calls it in the
// process, as its own user.
func TestWebhooks_CallAServiceOfThisServer(t *testing.T) {
	transport := new(process.LoopbackTransport)
	answer, called := reviewer(t), false
	transport.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called = true
		if who, ok, err := process.LoopbackAuthenticator().AuthenticateRequest(r); err != nil || !ok ||
			who.User.GetName() != process.LoopbackUserName {
			t.Errorf("the webhook is called by %v (%v)", who, err)
		}
		answer(w, r)
	}))
	t.Cleanup(func() { transport.Close(); transport.Wait() })
	wrapper := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, process.SelfConfig(transport),
		tracing.NewNoopTracerProvider())
	manager, err := webhook.NewClientManager(
		[]schema.GroupVersion{admissionv1.SchemeGroupVersion}, admissionv1.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := webhook.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		t.Fatal(err)
	}
	manager.SetAuthenticationInfoResolver(resolver)
	manager.SetAuthenticationInfoResolverWrapper(wrapper)
	manager.SetServiceResolver(webhook.NewDefaultServiceResolver())
	client, err := manager.HookClient(webhook.ClientConfig{
		Name:     "own",
		CABundle: authority(hook(t)),
		Service:  &webhook.ClientConfigService{Namespace: "default", Name: "kubernetes", Path: "/mutate", Port: 443},
	})
	if err != nil {
		t.Fatal(err)
	}
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "1", Name: "good"}}
	got := &admissionv1.AdmissionReview{}
	if err := client.Post().Body(review).Do(t.Context()).Into(got); err != nil {
		t.Fatal(err)
	}
	if !called || got.Response == nil || !got.Response.Allowed {
		t.Errorf("the answer is %v", got.Response)
	}
}

func authority(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
