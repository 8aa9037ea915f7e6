package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/cmd/byre/client"
	"byre/sqlstore/storetest"
)

// newAnnotator serves a mutating webhook that sets the annotation "hooked" of the Deployments of who is called hooked.
func newAnnotator(t *testing.T) *httptest.Server {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if review.Request.UserInfo.Username == "hooked" {
			review.Response.PatchType = new(admissionv1.PatchTypeJSONPatch)
			review.Response.Patch = []byte(`[{"op":"add","path":"/metadata/annotations/hooked","value":"yes"}]`)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	return hook
}

// Each way to write an object names its user as who set the fields that it has changed: also those that a webhook has set. That
// blame follows from the changes is shown in memory (TestBlame_EqualsTheLogOfRandomEdits in plugin).
func TestBlame_OfEachWayToWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startServer(t, dir, "--controllers=")
	p := past{t, filepath.Join(dir, "admin.kubeconfig")}
	config := server.config(t)
	as := func(user string) dynamic.ResourceInterface {
		config := rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		return dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("default")
	}
	must := func(_ *unstructured.Unstructured, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	patch := func(user string, kind types.PatchType, text string, subresources ...string) error {
		_, err := as(user).Patch(t.Context(), "d", kind, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	const identity = `"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"`
	must(as("created").Create(t.Context(), parseObject(t, `{`+identity+`,"annotations":{"made":"1","removed":"1"}},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":`+podOf("Always")+`}}`), metav1.CreateOptions{}))
	must(as("applied").Apply(t.Context(), "d", parseObject(t, `{`+identity+`,"labels":{"applied":"1"}}}`), metav1.ApplyOptions{FieldManager: "tool"}))
	now, err := as("updated").Get(t.Context(), "d", metav1.GetOptions{})
	must(now, err)
	now.SetAnnotations(map[string]string{"made": "1", "removed": "1", "updated": "1"})
	must(as("updated").Update(t.Context(), now, metav1.UpdateOptions{}))
	must(nil, patch("merged", types.MergePatchType, `{"metadata":{"annotations":{"merged":"1","removed":null}}}`))
	must(nil, patch("scaled", types.MergePatchType, `{"spec":{"replicas":3}}`, "scale"))
	must(nil, patch("status", types.MergePatchType, `{"status":{"observedGeneration":7}}`, "status"))
	must(nil, patch("strategic", types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"a","image":"b"}]}}}}`))
	hook := newAnnotator(t)
	_, err = kubernetes.NewForConfigOrDie(config).AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "annotator"},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "annotator.example.com", SideEffects: new(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{URL: &hook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Update},
				Rule:       registrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}},
		}},
	}, metav1.CreateOptions{})
	must(nil, err)
	written := 0
	storetest.EventuallyDone(t, "the webhook is called", func(context.Context) (bool, error) {
		written++
		err := patch("hooked", types.JSONPatchType, fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/patched","value":"%d"}]`, written))
		now, getErr := as("hooked").Get(t.Context(), "d", metav1.GetOptions{})
		return getErr == nil && now.GetAnnotations()["hooked"] != "", err
	})

	var leaves []client.Leaf
	if err := json.Unmarshal([]byte(p.run("", nil, "blame", "deployments/d", "-o", "json")), &leaves); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, leaf := range leaves {
		if leaf.Change == nil || leaf.Change.RealUser != "byre-admin" {
			t.Errorf("%s is of %+v", leaf.Path, leaf.Change)
			continue
		}
		found[leaf.Path] = strings.TrimSuffix(leaf.Change.Who+"/"+leaf.Change.Subresource, "/")
	}
	for path, want := range map[string]string{
		"metadata.name": "created", "metadata.annotations.made": "created", "metadata.labels.applied": "applied", "metadata.annotations.updated": "updated",
		"metadata.annotations.merged": "merged", "metadata.annotations.removed": "", "spec.replicas": "scaled/scale", "status.observedGeneration": "status/status",
		"spec.template.spec.containers[name=a].image": "strategic", "metadata.annotations.patched": "hooked", "metadata.annotations.hooked": "hooked",
	} {
		if found[path] != want {
			t.Errorf("%s is %q's, want %q's", path, found[path], want)
		}
	}
}
