package oracle

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	cronsPath    = "/apis/jobs.example.com/v1/namespaces/custom/crons"
	oldCronsPath = "/apis/jobs.example.com/v1beta1/namespaces/custom/crons"
)

// cronDefinition is a definition whose instances are converted by a webhook; client is its
// clientConfig.
func cronDefinition(plural, client string, ca []byte) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.jobs.example.com}
spec:
  group: jobs.example.com
  scope: Namespaced
  names: {plural: %[1]s, singular: one-of-%[1]s, kind: Kind-%[1]s, listKind: List-%[1]s}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig:
        caBundle: %[2]s
        %[3]s
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {schedule: {type: string}, zone: {type: string, default: UTC}}}}}}
  - name: v1beta1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {cron: {type: string}, zone: {type: string}}}}}}
`, plural, base64.StdEncoding.EncodeToString(ca), client)
}

func cron(version, name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"jobs.example.com/%s","kind":"Kind-crons","metadata":{"name":%q},"spec":{%s}}`,
		version, name, spec)
}

// compareConversions has both servers call one conversion webhook, which first converts
// correctly and then misbehaves in each way of badConversions and oddConversions.
func compareConversions(t *testing.T, stock, byre *peer) {
	c := newConverter(t, "converter.custom.svc")
	defineOnBoth(t, stock, byre, cronDefinition("crons", "url: "+c.URL+"/convert", c.ca))
	for _, p := range []*peer{stock, byre} {
		p.must(t, http.StatusCreated,
			request{method: http.MethodPost, path: oldCronsPath + "?dryRun=All", body: cron("v1beta1", "first", `"cron":"* *"`)})
	}
	for _, r := range converted() {
		compare(t, stock, byre, r)
	}
	compareService(t, stock, byre, c)
	// Each change is converted once, so there has to be a new one for each answer of the
	// webhook that is to be seen.
	changes := 0
	misbehave := func(how misbehavior) {
		c.setMisbehavior(misbehavior{})
		changes++
		for _, p := range []*peer{stock, byre} {
			p.must(t, http.StatusOK, request{method: http.MethodPatch, path: cronsPath + "/a", contentType: mergePatch,
				body: fmt.Sprintf(`{"metadata":{"annotations":{"change":"%d"}}}`, changes)})
		}
		c.setMisbehavior(how)
	}
	for _, bad := range badConversions() {
		misbehave(bad.how)
		compareBadConversion(t, stock, byre, bad.name)
	}
	for _, odd := range oddConversions() {
		misbehave(odd.how)
		compare(t, stock, byre, request{name: "convert to " + odd.name, path: oldCronsPath + "/a"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	misbehave(hanging(ctx))
	compare(t, stock, byre, request{name: "convert without an end", path: oldCronsPath + "/a?timeout=1s"})
	misbehave(misbehavior{})
	compare(t, stock, byre, request{name: "convert rightly again", path: oldCronsPath + "/a"})
	deleteOnBoth(t, stock, byre, "crons.jobs.example.com", "services.jobs.example.com")
}

// compareBadConversion creates on both servers. It lists and updates on byre
// alone: the stock server serves these from a cache that it filled while the webhook
// converted correctly. It gets on byre alone too: the stock server calls the object corrupt, which
// invites its unsafe deletion.
func compareBadConversion(t *testing.T, stock, byre *peer, name string) {
	name = "convert with " + name + ": "
	stored, err := byre.ask(t.Context(), request{path: cronsPath + "/a"})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, stock, byre,
		request{name: name + "create", method: http.MethodPost, path: oldCronsPath + "?dryRun=All&timeout=1s",
			body: cron("v1beta1", "b", `"cron":"1"`)})
	for _, r := range []request{
		{path: oldCronsPath + "/a?timeout=1s"},
		{path: oldCronsPath + "?timeout=1s"},
		{method: http.MethodPut, path: oldCronsPath + "/a?timeout=1s", body: cron("v1beta1", "a", `"cron":"1"`)},
		{method: http.MethodPatch, path: oldCronsPath + "/a?timeout=1s", contentType: mergePatch,
			body: `{"spec":{"cron":"2"}}`},
	} {
		a, err := byre.ask(t.Context(), r)
		if err != nil || a.status < http.StatusInternalServerError {
			t.Errorf("%s%s %s: %d %s %v", name, r.method, r.path, a.status, show(a.body), err)
		}
	}
	after, err := byre.ask(t.Context(), request{path: cronsPath + "/a"})
	if err != nil {
		t.Fatal(err)
	}
	if changed := differences(stored, after); len(changed) > 0 {
		t.Errorf("%swhat is stored has changed: %v", name, changed)
	}
}

// compareService has the webhook reached by a Service, which is an alias of this
// host: cluster addresses lead nowhere here.
func compareService(t *testing.T, stock, byre *peer, c *converter) {
	_, port, _ := strings.Cut(strings.TrimPrefix(c.URL, "https://"), ":")
	compare(t, stock, byre,
		request{name: "create the Service of a webhook", method: http.MethodPost, path: "/api/v1/namespaces/custom/services",
			body:      `{"metadata":{"name":"converter"},"spec":{"type":"ExternalName","externalName":"localhost","ports":[{"port":` + port + `}]}}`,
			normalize: normalizePorts(port)})
	defineOnBoth(t, stock, byre,
		cronDefinition("services", "service: {namespace: custom, name: converter, path: /convert, port: "+port+"}", c.ca))
	body := strings.ReplaceAll(cron("v1beta1", "a", `"cron":"* *"`), "crons", "services")
	for _, r := range []request{
		{name: "convert by a Service: create", method: http.MethodPost,
			path: strings.Replace(oldCronsPath, "crons", "services", 1), body: body},
		{name: "convert by a Service: get", path: strings.Replace(cronsPath, "crons", "services", 1) + "/a"},
		{name: "convert by a Service: list", path: strings.Replace(oldCronsPath, "crons", "services", 1)},
	} {
		compare(t, stock, byre, r)
	}
}

func normalizePorts(port string) func(any) any {
	return func(body any) any {
		return strings.ReplaceAll(show(body), port, "PORT")
	}
}

// converted are requests that need a conversion by the webhook.
func converted() []request {
	return []request{
		{name: "convert: create", method: http.MethodPost, path: oldCronsPath,
			body: cron("v1beta1", "a", `"cron":"* *","unknown":1`)},
		{name: "convert: create in the stored version", method: http.MethodPost, path: cronsPath,
			body: cron("v1", "z", `"schedule":"@daily"`)},
		{name: "convert: get", path: oldCronsPath + "/a"},
		{name: "convert: get what is stored", path: cronsPath + "/a"},
		{name: "convert: list", path: oldCronsPath},
		{name: "convert: list as table", path: oldCronsPath, accept: table},
		{name: "convert: watch",
			path: oldCronsPath + "?watch=1&resourceVersion=0&timeoutSeconds=60&fieldSelector=metadata.name%3Da", events: 1},
		{name: "convert: patch", method: http.MethodPatch, path: oldCronsPath + "/a", contentType: mergePatch,
			body: `{"spec":{"zone":"CET"}}`},
		{name: "convert: apply", method: http.MethodPatch, path: oldCronsPath + "/a?fieldManager=one&force=true",
			contentType: apply, body: cron("v1beta1", "a", `"cron":"@hourly"`)},
		{name: "convert: apply in the stored version", method: http.MethodPatch, path: cronsPath + "/a?fieldManager=two",
			contentType: apply, body: cron("v1", "a", `"schedule":"@weekly"`)},
		{name: "convert: replace", method: http.MethodPut, path: oldCronsPath + "/z",
			body: cron("v1beta1", "z", `"cron":"@monthly"`)},
		{name: "convert: delete", method: http.MethodDelete, path: oldCronsPath + "/z"},
	}
}

type badConversion struct {
	name string
	how  misbehavior
}

func badConversions() []badConversion {
	return []badConversion{
		{"a failure", misbehavior{convert: func(r *apiextensionsv1.ConversionResponse) {
			r.Result = metav1.Status{Status: metav1.StatusFailure, Message: "no such zone"}
		}}},
		{"no verdict", misbehavior{convert: func(r *apiextensionsv1.ConversionResponse) { r.Result = metav1.Status{} }}},
		{"another uid", misbehavior{convert: func(r *apiextensionsv1.ConversionResponse) { r.UID = "another" }}},
		{"no objects", misbehavior{convert: func(r *apiextensionsv1.ConversionResponse) { r.ConvertedObjects = nil }}},
		{"too many objects", misbehavior{convert: func(r *apiextensionsv1.ConversionResponse) {
			r.ConvertedObjects = append(r.ConvertedObjects, r.ConvertedObjects...)
		}}},
		{"the same version", editing(func(u *unstructured.Unstructured) { u.SetAPIVersion("jobs.example.com/v1") })},
		{"another group", editing(func(u *unstructured.Unstructured) { u.SetAPIVersion("example.com/v1beta1") })},
		{"another kind", editing(func(u *unstructured.Unstructured) { u.SetKind("Other") })},
		{"another name", editing(func(u *unstructured.Unstructured) { u.SetName("b") })},
		{"another namespace", editing(func(u *unstructured.Unstructured) { u.SetNamespace("b") })},
		{"another identity", editing(func(u *unstructured.Unstructured) { u.SetUID("b") })},
		{"no metadata", editing(func(u *unstructured.Unstructured) { delete(u.Object, "metadata") })},
		{"metadata of another type", editing(func(u *unstructured.Unstructured) { u.Object["metadata"] = 1 })},
		{"labels of another type", editing(func(u *unstructured.Unstructured) {
			u.Object["metadata"].(map[string]any)["labels"] = map[string]any{"a": 1}
		})},
		{"bad labels", editing(func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a b": "c d"}) })},
		{"no answer", answering(http.StatusOK, "application/json", "")},
		{"an answer that is no JSON", answering(http.StatusOK, "application/json", "hello")},
		{"an answer that is no review", answering(http.StatusOK, "application/json", `{"apiVersion":"v1","kind":"Pod"}`)},
		{"an empty review",
			answering(http.StatusOK, "application/json", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}`)},
		{"an old review",
			answering(http.StatusOK, "application/json",
				`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview"}`)},
		{"an error", answering(http.StatusInternalServerError, "text/plain", "out of order")},
		{"a page", answering(http.StatusOK, "text/html", "<html>")},
		{"a redirect", misbehavior{answer: func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "/elsewhere", http.StatusFound)
		}}},
	}
}

// oddConversions are wrong conversions that both servers accept.
func oddConversions() []badConversion {
	return []badConversion{
		{"an object with an owner", editing(func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}})
		})},
		{"a spec of another type", editing(func(u *unstructured.Unstructured) { u.Object["spec"] = "x" })},
		{"an object with other labels", editing(func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{"a": "b"})
		})},
		{"fields that are not in the schema", editing(func(u *unstructured.Unstructured) {
			u.Object["spec"] = map[string]any{"hello": 1}
		})},
	}
}
