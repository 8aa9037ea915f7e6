package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// aggregated is byre with the sample API server behind it.
type aggregated struct {
	*servers.Server
	wardle *servers.Wardle
}

const wardleService = "apiservice/v1alpha1.wardle.example.com"

var flunders = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}

// TestAggregation_SampleAPIServer registers the sample API server of Kubernetes with byre;
// clients use its resources through byre as they do byre's own.
func TestAggregation_SampleAPIServer(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testAggregated(t, openDatabase(t, name))
		})
	}
}

func testAggregated(t *testing.T, db database) {
	address, err := servers.MachineAddress()
	if err != nil {
		t.Fatal(err)
	}
	a := &aggregated{Server: startByre(t, db)}
	if a.wardle, err = servers.StartWardle(t.Context(), a.Server, t.TempDir(), address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.wardle.Close()
		a.wardle.Report(t)
	})
	runKubectl(t, a.Server, "wait", "--for=condition=Available", wardleService, "--timeout=300s")
	t.Run("kubectl", a.testKubectl)
	t.Run("access", a.testAccess)
	t.Run("versions", a.testVersions)
	t.Run("restart", a.testRestart)
	t.Run("killed backend", a.testKilledBackend)
}

// testKubectl uses a resource of the sample server with kubectl.
func (a *aggregated) testKubectl(t *testing.T) {
	storetest.EventuallySucceeds(t, "discovery of the sample server", func() error {
		got, complaints, err := tryKubectl(t, a.Server, "", "api-resources", "--api-group=wardle.example.com", "--no-headers")
		if err != nil || !strings.Contains(got, "Fischer") || !strings.Contains(got, "Flunder") {
			return fmt.Errorf("%s%s, %w", got, complaints, err)
		}
		return nil
	})
	storetest.EventuallySucceeds(t, "the documentation", func() error {
		out, complaints, err := tryKubectl(t, a.Server, "", "explain", "flunder.spec.reference")
		if err != nil || !strings.Contains(out, "A name of another flunder or fischer") {
			return fmt.Errorf("%s%s, %w", out, complaints, err)
		}
		return nil
	})
	lines := startKubectl(t, a.Server, "get", "flunders", "-w", "--output-watch-events", "--no-headers")
	expect := func(verb, name string) {
		t.Helper()
		expectLine(t, lines, `^`+verb+` +`+name+` `)
	}
	const manifests = `
apiVersion: wardle.example.com/v1alpha1
kind: Fischer
metadata: {name: fritz}
disallowedFlunders: [bad]
---
apiVersion: wardle.example.com/v1alpha1
kind: Flunder
metadata: {name: good, namespace: default, labels: {kind: fish}}
spec: {reference: other}
`
	if out, complaints, err := tryKubectl(t, a.Server, manifests, "create", "-f", "-"); err != nil {
		t.Fatalf("create: %v\n%s%s", err, out, complaints)
	}
	expect("ADDED", "good")
	// byre forwards the backend's refusals unchanged.
	bad := strings.ReplaceAll(strings.Split(manifests, "---")[1], "good", "bad")
	storetest.EventuallySucceeds(t, "the refusal of a flunder that is disallowed", func() error {
		_, complaints, err := tryKubectl(t, a.Server, bad, "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(complaints, "this name may not be used") {
			return fmt.Errorf("%w: %s", err, complaints)
		}
		return nil
	})
	if got := runKubectl(t, a.Server, "get", "flunder", "good", "-o",
		"jsonpath={.spec.reference} {.spec.referenceType}"); got != "other Flunder" {
		t.Errorf("get: %q", got)
	}
	if got := runKubectl(t, a.Server, "get", "fischers,flunders", "-l", "kind=fish", "-A", "-o",
		"name"); got != "flunder.wardle.example.com/good\n" {
		t.Errorf("list: %q", got)
	}
	runKubectl(t, a.Server, "patch", "flunder", "good", "--type=json", "-p",
		`[{"op":"replace","path":"/spec/reference","value":"another"}]`)
	expect("MODIFIED", "good")
	runKubectl(t, a.Server, "label", "flunder", "good", "size=big")
	expect("MODIFIED", "good")
	if got := runKubectl(t, a.Server, "get", "flunder", "good", "-o",
		"jsonpath={.spec.reference} {.metadata.labels.size}"); got != "another big" {
		t.Errorf("after the patches: %q", got)
	}
	runKubectl(t, a.Server, "delete", "flunder/good", "fischer/fritz")
	expect("DELETED", "good")
}

// testAccess checks that byre authenticates and authorizes for the backend.
func (a *aggregated) testAccess(t *testing.T) {
	const list, create = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", `{"metadata":{"name":"alices"}}`
	if code, body := get(t, a.Server, servers.AliceToken, list); code != http.StatusForbidden ||
		!strings.Contains(body, `User \"alice\" cannot list resource \"flunders\" in API group \"wardle.example.com\"`) {
		t.Errorf("without a right: %d %s", code, body)
	}
	runKubectl(t, a.Server, "create", "role", "reader", "--verb=get,list", "--resource=flunders.wardle.example.com")
	runKubectl(t, a.Server, "create", "rolebinding", "reader", "--role=reader", "--group=staff")
	storetest.EventuallySucceeds(t, "the right to list", func() error {
		if code, body := get(t, a.Server, servers.AliceToken, list); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	raw := clientFor(t, a.Config(servers.AliceToken)).Discovery().RESTClient().Post().AbsPath(list).
		SetHeader("Content-Type", "application/json").Body([]byte(create)).Do(t.Context())
	if err := raw.Error(); !apierrors.IsForbidden(err) {
		t.Errorf("with a right to read, a create: %v", err)
	}
	// byre does not forward a client's own headers of a front proxy.
	config := a.Config(servers.AliceToken)
	pretending := clientFor(t, config).Discovery().RESTClient().Delete().AbsPath(list).
		SetHeader("X-Remote-User", "admin").SetHeader("X-Remote-Group", "system:masters").Do(t.Context())
	if err := pretending.Error(); !apierrors.IsForbidden(err) {
		t.Errorf("with headers of a front proxy, a delete: %v", err)
	}
}

// testVersions registers a second version with a higher priority, and removes it.
func (a *aggregated) testVersions(t *testing.T) {
	c, err := dynamic.NewForConfig(a.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	services := c.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1",
		Resource: "apiservices"})
	first, err := services.Get(t.Context(), "v1alpha1.wardle.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _, err := unstructured.NestedMap(first.Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	spec["version"], spec["versionPriority"] = "v1beta1", int64(20)
	second := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1beta1.wardle.example.com"}, "spec": spec,
	}}
	a.make(t, "versioned")
	a.awaitVersion(t, "v1alpha1")
	if _, err := services.Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.awaitVersion(t, "v1beta1")
	// The new version has no fischers, whose preferred version stays the other one.
	if got := runKubectl(t, a.Server, "api-resources", "--api-group=wardle.example.com",
		"--no-headers"); !strings.Contains(got, "wardle.example.com/v1beta1") ||
		!strings.Contains(got, "wardle.example.com/v1alpha1") {
		t.Errorf("api-resources: %s", got)
	}
	if err := services.Delete(t.Context(), "v1beta1.wardle.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.awaitVersion(t, "v1alpha1")
	if code, body := get(t, a.Server, servers.AdminToken,
		"/apis/wardle.example.com/v1beta1/flunders"); code != http.StatusNotFound {
		t.Errorf("the version that is gone: %d %s", code, body)
	}
}

// awaitVersion waits until kubectl, without a version given, requests flunders in a version.
func (a *aggregated) awaitVersion(t *testing.T, version string) {
	t.Helper()
	storetest.EventuallySucceeds(t, "flunders of "+version, func() error {
		out, complaints, err := tryKubectl(t, a.Server, "", "get", "flunder", "versioned", "-o", "jsonpath={.apiVersion}")
		if err != nil || out != "wardle.example.com/"+version {
			return fmt.Errorf("%q, %s, %w", out, complaints, err)
		}
		return nil
	})
}

// make makes a flunder.
func (a *aggregated) make(t *testing.T, name string) {
	t.Helper()
	c, err := dynamic.NewForConfig(a.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	flunder := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": flunders.GroupVersion().String(), "kind": "Flunder", "metadata": map[string]any{"name": name},
	}}
	if _, err := c.Resource(flunders).Namespace("default").Create(t.Context(), flunder,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testRestart kills the backend while clients watch: the backend's resources are unavailable
// until it is back, and then the watches continue.
func (a *aggregated) testRestart(t *testing.T) {
	const clients = 5
	seen := make(chan string, 1000)
	for range clients {
		a.inform(t, seen)
	}
	expect := func(name string) {
		t.Helper()
		timeout := time.After(storetest.Patience)
		for n := 0; n < clients; {
			select {
			case got := <-seen:
				if got == name {
					n++
				}
			case <-timeout:
				t.Fatalf("%d of %d clients saw %s", n, clients, name)
			}
		}
	}
	a.make(t, "before")
	expect("before")

	a.wardle.Kill()
	storetest.EventuallySucceeds(t, "503 for the resources of the killed backend", func() error {
		if code, body := get(t, a.Server, servers.AdminToken,
			"/apis/wardle.example.com/v1alpha1/flunders"); code != http.StatusServiceUnavailable {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	if err := a.wardle.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The backend serves before it has read which front proxy to trust.
	storetest.EventuallySucceeds(t, "the restarted backend trusts byre as its front proxy", func() error {
		if code, body := get(t, a.Server, servers.AdminToken,
			"/apis/wardle.example.com/v1alpha1/flunders"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	a.make(t, "after")
	expect("after")
}

// testKilledBackend: byre notices without a request that a backend has gone, and discovery of other
// groups still works.
func (a *aggregated) testKilledBackend(t *testing.T) {
	a.wardle.Kill()
	runKubectl(t, a.Server, "wait", "--for=condition=Available=False", wardleService, "--timeout=300s")
	// kubectl reads all of discovery first.
	if got := runKubectl(t, a.Server, "get", "namespace", "wardle", "-o", "name"); got != "namespace/wardle\n" {
		t.Errorf("a namespace: %q", got)
	}
}

// inform watches flunders by an informer, and sends the names of those that are added.
func (a *aggregated) inform(t *testing.T, added chan<- string) {
	t.Helper()
	c, err := dynamic.NewForConfig(a.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	informers := dynamicinformer.NewDynamicSharedInformerFactory(c, 0)
	informer := informers.ForResource(flunders).Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		select {
		case added <- object.(*unstructured.Unstructured).GetName():
		case <-t.Context().Done():
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	informers.Start(t.Context().Done())
	t.Cleanup(informers.Shutdown)
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
}
