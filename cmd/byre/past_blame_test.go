package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/cmd/byre/plugin"
	"byre/sqlstore/eventually"
)

// edits are random edits of objects, with a log of who gave each field its value.
type edits struct {
	*testing.T
	config *rest.Config
	random *rand.Rand
	// values and who are those of each object's fields, as blame calls them.
	values, who map[string]map[string]string
	hook        *annotator
}

var edited = map[string]schema.GroupVersionResource{
	"configmaps/a": {Version: "v1", Resource: "configmaps"}, "configmaps/b": {Version: "v1", Resource: "configmaps"},
	"deployments/d": {Group: "apps", Version: "v1", Resource: "deployments"},
}

func (e *edits) client(user, object string) dynamic.ResourceInterface {
	config := rest.CopyConfig(e.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	return dynamic.NewForConfigOrDie(config).Resource(edited[object]).Namespace("default")
}

// one makes an edit: of a label or an annotation in one of four ways, or of the scale or the status.
func (e *edits) one(i int, object string) {
	e.Helper()
	user := fmt.Sprintf("user-%d", e.random.IntN(20))
	client, name := e.client(user, object), object[strings.Index(object, "/")+1:]
	list := []string{"labels", "annotations"}[e.random.IntN(2)]
	key, value := fmt.Sprintf("k%d", e.random.IntN(6)), fmt.Sprintf("v%d", e.random.IntN(3))
	path := "metadata." + list + "." + key
	patch := fmt.Sprintf(`{"metadata":{%q:{%q:%q}}}`, list, key, value)
	var err error
	switch way := e.random.IntN(6); {
	case way == 0:
		object := parseObject(e.T, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,%q:{%q:%q}}}`,
			edited[object].GroupVersion(), map[bool]string{true: "Deployment", false: "ConfigMap"}[name == "d"], name, list, key, value))
		_, err = client.Apply(e.Context(), name, object, metav1.ApplyOptions{FieldManager: fmt.Sprintf("tool-%d", i), Force: true})
	case way == 1:
		now, getErr := client.Get(e.Context(), name, metav1.GetOptions{})
		if getErr != nil {
			e.Fatal(getErr)
		}
		all := now.GetLabels()
		if list == "annotations" {
			all = now.GetAnnotations()
		}
		if all == nil {
			all = map[string]string{}
		}
		all[key] = value
		if list == "annotations" {
			now.SetAnnotations(all)
		} else {
			now.SetLabels(all)
		}
		_, err = client.Update(e.Context(), now, metav1.UpdateOptions{})
	case way == 2:
		value = ""
		patch = fmt.Sprintf(`{"metadata":{%q:{%q:null}}}`, list, key)
		_, err = client.Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	case way == 3 && name == "d":
		path, value = "spec.replicas", fmt.Sprint(1+e.random.IntN(3))
		_, err = client.Patch(e.Context(), name, types.MergePatchType, []byte(`{"spec":{"replicas":`+value+`}}`), metav1.PatchOptions{}, "scale")
	case way == 4 && name == "d":
		path, value = "status.observedGeneration", fmt.Sprint(1+i)
		_, err = client.Patch(e.Context(), name, types.MergePatchType, []byte(`{"status":{"observedGeneration":`+value+`}}`), metav1.PatchOptions{}, "status")
	default:
		_, err = client.Patch(e.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	if err != nil {
		e.Fatalf("edit %d of %s: %v", i, object, err)
	}
	e.note(object, path, value, user)
	if set := e.hook.taken(); set != "" {
		e.note(object, "metadata.annotations.hooked", set, user)
	}
}

// note notes who gave a field a value; an empty one removes the field.
func (e *edits) note(object, path, value, user string) {
	if e.values[object][path] == value {
		return
	}
	e.values[object][path], e.who[object][path] = value, user
	if value == "" {
		delete(e.values[object], path)
		delete(e.who[object], path)
	}
}

// annotator is a mutating webhook that sets the annotation "hooked" of each third object that it sees, to
// another value each second time.
type annotator struct {
	*httptest.Server
	mu    sync.Mutex
	calls int
	// set is the value that the last request was given; empty if there is none.
	set string
}

func newAnnotator(t *testing.T) *annotator {
	hook := &annotator{}
	hook.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var object struct{ Metadata metav1.ObjectMeta }
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		} else if err := json.Unmarshal(review.Request.Object.Raw, &object); err != nil {
			t.Error(err)
		}
		hook.mu.Lock()
		defer hook.mu.Unlock()
		hook.calls++
		hook.set = ""
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if hook.calls%3 == 0 {
			hook.set = fmt.Sprint(hook.calls / 6)
			patch := fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/hooked","value":%q}]`, hook.set)
			if object.Metadata.Annotations == nil {
				patch = fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":{"hooked":%q}}]`, hook.set)
			}
			review.Response.PatchType, review.Response.Patch = new(admissionv1.PatchTypeJSONPatch), []byte(patch)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	return hook
}

// taken returns what the webhook has set since the last call.
func (a *annotator) taken() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	set := a.set
	a.set = ""
	return set
}

// install registers the webhook, and waits until it is called.
func (a *annotator) install(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "annotator"},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "annotator.example.com", SideEffects: new(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{URL: &a.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
				Rule:       registrationv1.Rule{APIGroups: []string{"", "apps"}, APIVersions: []string{"v1"}, Resources: []string{"configmaps", "deployments"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually.Done(t, "the webhook is called", func(ctx context.Context) (bool, error) {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.calls > 0, err
	})
	a.taken()
}

// expectSteps expects of each change of an object that its fields, changed in the object before, give the
// object after, which is the one before the next change.
func (e *edits) expectSteps(object string) {
	e.Helper()
	client := dynamic.NewForConfigOrDie(e.config).Resource(schema.GroupVersionResource{Group: "history.byre.dev", Version: "v1", Resource: "changes"}).Namespace("default")
	resource, name, _ := strings.Cut(object, "/")
	list, err := client.List(e.Context(), metav1.ListOptions{FieldSelector: "subresource!=none,object.resource=" + resource + ",object.name=" + name})
	if err != nil {
		e.Fatal(err)
	}
	if len(list.Items) < 40 {
		e.Errorf("%s has %d changes", object, len(list.Items))
	}
	var last map[string]any
	for _, listed := range list.Items {
		change, err := client.Get(e.Context(), listed.GetName(), metav1.GetOptions{})
		if err != nil {
			e.Fatal(err)
		}
		before, _, _ := unstructured.NestedMap(change.Object, "before")
		after, _, _ := unstructured.NestedMap(change.Object, "after")
		if !reflect.DeepEqual(before, last) {
			e.Errorf("before revision %s %s is %v, and was %v", change.GetName(), object, before, last)
		}
		last = runtime.DeepCopyJSON(after)
		fields, _, _ := unstructured.NestedSlice(change.Object, "changed")
		for _, field := range fields {
			e.change(before, field.(map[string]any))
		}
		for _, of := range []map[string]any{before, after} { // every write changes them
			unstructured.RemoveNestedField(of, "metadata", "resourceVersion")
			unstructured.RemoveNestedField(of, "metadata", "generation")
		}
		if before != nil && !reflect.DeepEqual(before, after) {
			e.Errorf("%v make revision %s of %s %v, want %v", fields, change.GetName(), object, before, after)
		}
	}
}

// change changes a field of an object, as an item of the history says it, whose path has names only.
func (e *edits) change(object, field map[string]any) {
	e.Helper()
	path := strings.Split(field["path"].(string), ".")
	is, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	decode := func(name string) (value any) {
		if encoded, exists := field[name].(string); exists {
			if err := utiljson.Unmarshal([]byte(encoded), &value); err != nil {
				e.Error(err)
			}
		}
		return value
	}
	if was := decode("old"); !reflect.DeepEqual(is, was) {
		e.Errorf("%v: it is %v", field, is)
	}
	unstructured.RemoveNestedField(object, path...)
	if value := decode("new"); value != nil {
		if err := unstructured.SetNestedField(object, value, path...); err != nil {
			e.Error(err)
		}
	}
}

// blame tells of each field who set it last, after random edits of 20 users: what a webhook has set was set
// by the user of the request.
func TestBlame_EqualsTheLogOfRandomEdits(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir := t.TempDir()
		server := startServer(t, dir, append(flags, "--controllers=")...)
		p := past{t, filepath.Join(dir, "admin.kubeconfig")}
		e := &edits{t, server.config(t), rand.New(rand.NewPCG(1, 2)), map[string]map[string]string{}, map[string]map[string]string{}, newAnnotator(t)}
		objects := []string{"configmaps/a", "configmaps/b", "deployments/d"}
		for _, object := range objects {
			content := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + object[len(object)-1:] + `"}}`
			e.values[object], e.who[object] = map[string]string{}, map[string]string{}
			if object == "deployments/d" {
				content = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}}`
				e.values[object]["spec.replicas"], e.who[object]["spec.replicas"] = "1", "first"
			}
			if _, err := e.client("first", object).Create(t.Context(), parseObject(t, content), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		e.hook.install(t, kubernetes.NewForConfigOrDie(e.config))
		for i := range 200 {
			e.one(i, objects[e.random.IntN(len(objects))])
		}
		for _, object := range objects {
			var leaves []plugin.Leaf
			if err := json.Unmarshal([]byte(p.run("", nil, "blame", object, "-o", "json")), &leaves); err != nil {
				t.Fatal(err)
			}
			found := map[string]string{}
			for _, leaf := range leaves {
				if leaf.Change != nil {
					found[leaf.Path] = leaf.Change.Who
					if leaf.Change.RealUser != "byre-admin" {
						t.Errorf("%s was impersonated by %q", leaf.Path, leaf.Change.RealUser)
					}
				}
			}
			for path, want := range e.who[object] {
				if found[path] != want {
					t.Errorf("%s of %s is %q's, want %q's", path, object, found[path], want)
				}
			}
			if len(e.who[object]) < 5 || e.who[object]["metadata.annotations.hooked"] == "" {
				t.Errorf("%s has few fields: %v", object, e.who[object])
			}
			e.expectSteps(object)
		}
	})
}
