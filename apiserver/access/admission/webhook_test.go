package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/component-base/tracing"
	"k8s.io/utils/ptr"

	"byre/apiserver/process"
)

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
		Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: ptr.To(registrationv1.AllScopes)},
	}}
	mutating := &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "m.example.com", ClientConfig: at("/mutate"), Rules: rules, FailurePolicy: ptr.To(registrationv1.Fail),
			MatchPolicy: ptr.To(registrationv1.Equivalent), NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
			SideEffects: ptr.To(registrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](30), AdmissionReviewVersions: []string{"v1"},
			ReinvocationPolicy: ptr.To(registrationv1.NeverReinvocationPolicy),
		}},
	}
	validating := &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "v.example.com", ClientConfig: at("/validate"), Rules: rules, FailurePolicy: ptr.To(registrationv1.Fail),
			MatchPolicy: ptr.To(registrationv1.Equivalent), NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
			SideEffects: ptr.To(registrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](30), AdmissionReviewVersions: []string{"v1"},
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
		if who, ok, err := process.LoopbackAuthenticator().AuthenticateRequest(r); err != nil || !ok || who.User.GetName() != process.LoopbackUserName {
			t.Errorf("the webhook is called by %v (%v)", who, err)
		}
		answer(w, r)
	}))
	t.Cleanup(func() { transport.Close(); transport.Wait() })
	wrapper := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, process.SelfConfig(transport), tracing.NewNoopTracerProvider())
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
