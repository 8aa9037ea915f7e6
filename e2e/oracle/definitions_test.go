package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"
)

// compareDefinitions creates definitions on both servers, and uses their resources.
func compareDefinitions(t *testing.T, stock, byre *peer) {
	text, err := os.ReadFile(filepath.Join("..", "testdata", "definitions", "gizmos.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defineOnBoth(t, stock, byre, string(text))
	all := func(requests []request) {
		for _, r := range requests {
			compare(t, stock, byre, r)
		}
	}
	all(definitionReads("gizmos.shop.example.com"))
	for _, p := range []*peer{stock, byre} {
		p.must(t, http.StatusCreated,
			request{method: http.MethodPost, path: gizmosPath + "?dryRun=All", body: gizmo("first", `"color":"red"`)})
	}
	all(gizmos())
	all(oldGizmos())
	all(changedDefinitions())

	defineOnBoth(t, stock, byre, builtInGroup)
	all(definitionReads("things.networking.k8s.io"))
	all(inBuiltInGroup())
	newest, _, _ := strings.Cut(string(text), "  - name: v1beta1")
	defineOnBoth(t, stock, byre,
		strings.NewReplacer("gizmos", "gadgets", "singular: gizmo", "singular: gadget").Replace(newest))
	all(definitionReads("gadgets.shop.example.com"))
	all(namesTaken())

	deleteOnBoth(t, stock, byre, "things.networking.k8s.io", "gadgets.shop.example.com", "gizmos.shop.example.com")
	all([]request{
		{name: "list gizmos that are gone", path: gizmosPath, settles: true},
		{name: "create a gizmo that is gone", method: http.MethodPost, path: gizmosPath + "?dryRun=All",
			body: gizmo("a", `"color":"red"`), settles: true},
		{name: "get the definition that is gone", path: definitionsPath + "/gizmos.shop.example.com", settles: true},
	})
}

// defineOnBoth creates a definition on both servers and waits until each has accepted or
// refused its names.
func defineOnBoth(t *testing.T, stock, byre *peer, text string) {
	t.Helper()
	var meta struct{ Metadata struct{ Name string } }
	if err := yaml.Unmarshal([]byte(text), &meta); err != nil {
		t.Fatal(err)
	}
	err := onBoth(stock, byre, func(p *peer) error {
		return errors.Join(
			p.expect(t.Context(), http.StatusCreated,
				request{method: http.MethodPost, path: definitionsPath, contentType: "application/yaml", body: text}),
			p.awaitDefinition(t.Context(), meta.Metadata.Name, decided))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// deleteOnBoth deletes definitions on both servers and waits until they are gone.
func deleteOnBoth(t *testing.T, stock, byre *peer, names ...string) {
	t.Helper()
	var group errgroup.Group
	for _, name := range names {
		group.Go(func() error {
			return onBoth(stock, byre, func(p *peer) error { return p.deleteDefinition(t.Context(), name) })
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// deleteDefinition deletes a definition and waits until it is gone.
//
// A stock server's finalizer fails while the storage of the instances is being
// initialized, notes that in the definition's status, and tries again. If its
// informer has not seen that note yet, the second attempt ends with a conflict, and
// the finalizer ignores the event of its own note: it forgets the definition until
// the informer's resync, up to five minutes later (sync and
// updateCustomResourceDefinition in pkg/controller/finalizer/crd_finalizer.go).
// Any other change makes it look at the definition again.
func (p *peer) deleteDefinition(ctx context.Context, name string) error {
	at := definitionsPath + "/" + name
	if err := p.expect(ctx, http.StatusOK, request{method: http.MethodDelete, path: at}); err != nil {
		return err
	}
	isGone := func(status int, _ map[string]string) bool { return status == http.StatusNotFound }
	for attempt := 0; p.isStock && attempt < 60; attempt++ {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := p.awaitDefinition(short, name, isGone)
		cancel()
		if err == nil {
			return nil
		}
		change := fmt.Sprintf(`{"metadata":{"annotations":{"attempt":"%d"}}}`, attempt)
		if _, err := p.ask(ctx,
			request{method: http.MethodPatch, path: at, contentType: mergePatch, body: change}); err != nil {
			return err
		}
	}
	return p.awaitDefinition(ctx, name, isGone)
}

// decided reports whether a definition is established, or its names are refused.
func decided(_ int, conditions map[string]string) bool {
	return conditions["Established"] == "True" || conditions["NamesAccepted"] == "False"
}

// awaitDefinition reads a definition until wanted returns true. wanted gets the status of the
// answer and the definition's conditions.
func (p *peer) awaitDefinition(
	ctx context.Context, name string, wanted func(status int, conditions map[string]string) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		a, err := p.ask(ctx, request{path: definitionsPath + "/" + name})
		if err != nil {
			return err
		}
		if wanted(a.status, conditionsOf(a.body)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s of %s: %w: %v", name, p.server.URL, ctx.Err(), a.body)
		case <-tick.C:
		}
	}
}

func conditionsOf(body any) map[string]string {
	text, err := json.Marshal(body)
	if err != nil {
		return nil
	}
	var object struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return nil // a Status: it has no conditions
	}
	found := map[string]string{}
	for _, c := range object.Status.Conditions {
		found[c.Type] = c.Status
	}
	return found
}

// normalizeDefinition removes from a definition what its controllers change, which depends on
// when it is read.
func normalizeDefinition(body any) any {
	object, ok := body.(map[string]any)
	if !ok {
		return body
	}
	if meta, ok := object["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
	if status, ok := object["status"].(map[string]any); ok {
		if conditions, ok := status["conditions"].([]any); ok {
			slices.SortFunc(conditions, func(a, b any) int { return strings.Compare(show(a), show(b)) })
		}
	}
	return body
}

// definitionReads show a definition, and what discovery says of it.
func definitionReads(name string) []request {
	_, group, _ := strings.Cut(name, ".")
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	only := func(body any) any {
		object, ok := body.(map[string]any)
		if !ok {
			return body
		}
		items, _ := object["items"].([]any)
		for _, item := range items {
			if meta, ok := item.(map[string]any)["metadata"].(map[string]any); ok && meta["name"] == group {
				return item
			}
		}
		return nil
	}
	return []request{
		{name: "get " + name, path: definitionsPath + "/" + name, normalize: normalizeDefinition, settles: true},
		{name: "get the status of " + name, path: definitionsPath + "/" + name + "/status", normalize: normalizeDefinition,
			settles: true},
		{name: "get " + name + " as table", path: definitionsPath + "/" + name + "?includeObject=None", accept: table},
		{name: "discovery of the group of " + name, path: "/apis/" + group, settles: true},
		{name: "discovery of v1 of " + name, path: "/apis/" + group + "/v1", settles: true},
		{name: "discovery of v1beta1 of " + name, path: "/apis/" + group + "/v1beta1", settles: true},
		{name: "aggregated discovery of " + name, path: "/apis", accept: aggregated, normalize: only, settles: true},
	}
}

// builtInGroup adds a version to a group that the server has by itself.
const builtInGroup = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: things.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes/kubernetes/pull/1"}
spec:
  group: networking.k8s.io
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - {name: v7, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
`

// inBuiltInGroup are requests to a built-in group for which there is a definition. The group
// stays the server's own.
func inBuiltInGroup() []request {
	var requests []request
	for _, path := range []string{
		"/apis/networking.k8s.io/v7", "/apis/networking.k8s.io/v7/things", "/apis/networking.k8s.io/v7/namespaces/t/things",
		"/apis/networking.k8s.io/v1/things", "/apis/networking.k8s.io/v1/namespaces/t/things/x",
		"/apis/networking.k8s.io/v7/widgets",
	} {
		requests = append(requests, request{name: "in a built-in group: " + path, path: path})
	}
	return append(requests, request{
		name: "create in a built-in group", method: http.MethodPost, path: "/apis/networking.k8s.io/v7/namespaces/t/things",
		body: `{"apiVersion":"networking.k8s.io/v7","kind":"Thing","metadata":{"name":"x"}}`,
	})
}

func namesTaken() []request {
	return []request{
		{name: "list what has no name", path: "/apis/shop.example.com/v1/gadgets"},
		{name: "list what has kept its name", path: gizmosPath},
	}
}

// changedDefinitions are changes of a definition that are refused, or in force at once.
func changedDefinitions() []request {
	const at = definitionsPath + "/gizmos.shop.example.com"
	patch := func(name, body string) request {
		return request{name: "change a definition: " + name, method: http.MethodPatch, path: at, contentType: jsonPatch,
			body: body, normalize: normalizeDefinition}
	}
	return []request{
		patch("scope", `[{"op":"replace","path":"/spec/scope","value":"Cluster"}]`),
		patch("group", `[{"op":"replace","path":"/spec/group","value":"x.example.com"}]`),
		patch("plural", `[{"op":"replace","path":"/spec/names/plural","value":"things"}]`),
		patch("kind", `[{"op":"replace","path":"/spec/names/kind","value":"Thing"}]`),
		patch("without the stored version", `[{"op":"remove","path":"/spec/versions/0"}]`),
		patch("status by the main resource", `[{"op":"replace","path":"/status/storedVersions","value":["v7"]}]`),
		{name: "change a definition: stored versions", method: http.MethodPatch, path: at + "/status", contentType: jsonPatch,
			body: `[{"op":"replace","path":"/status/storedVersions","value":["v1beta1"]}]`, normalize: normalizeDefinition},
		{name: "change a definition: no stored versions", method: http.MethodPatch, path: at + "/status",
			contentType: jsonPatch, body: `[{"op":"replace","path":"/status/storedVersions","value":[]}]`,
			normalize: normalizeDefinition},
		// An existing object keeps a color that new objects may not have.
		patch("no more red",
			`[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color/enum","value":["green","blue"]}]`),
		{name: "create what may not be any more", method: http.MethodPost, path: gizmosPath + "?dryRun=All",
			body: gizmo("late", `"color":"red"`), settles: true},
		{name: "change what may not be any more", method: http.MethodPatch, path: gizmosPath + "/a", contentType: mergePatch,
			body: `{"spec":{"replicas":4}}`, settles: true},
		{name: "change it to what may not be any more", method: http.MethodPatch, path: gizmosPath + "/green?dryRun=All",
			contentType: mergePatch, body: `{"spec":{"color":"red"}}`, settles: true},
		patch("another storage version",
			`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`),
		{name: "get what another version stored", path: gizmosPath + "/a", settles: true},
		{name: "get what another version stored, in the new one",
			path: "/apis/shop.example.com/v1beta1/namespaces/custom/gizmos/a", settles: true},
		patch("a version that is not served", `[{"op":"replace","path":"/spec/versions/2/served","value":false}]`),
		{name: "get in a version that is not served", path: "/apis/shop.example.com/v1alpha1/namespaces/custom/gizmos/a",
			settles: true},
		patch("no status", `[{"op":"remove","path":"/spec/versions/1/subresources"}]`),
		{name: "get a status that is not", path: "/apis/shop.example.com/v1beta1/namespaces/custom/gizmos/a/status",
			settles: true},
		{name: "write a status that is not apart", method: http.MethodPatch,
			path: "/apis/shop.example.com/v1beta1/namespaces/custom/gizmos/a", contentType: mergePatch,
			body: `{"status":{"replicas":7}}`},
	}
}

const gizmosPath = "/apis/shop.example.com/v1/namespaces/custom/gizmos"

func gizmo(name, spec string) string {
	return fmt.Sprintf(
		`{"apiVersion":"shop.example.com/v1","kind":"Gizmo","metadata":{"name":%q,"labels":{"name":%[1]q}},"spec":{%s}}`,
		name, spec)
}
