package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/query"
	"byre/sqlstore/storetest"
)

// A table at a moment is the list that was recorded then, on the server itself and on another replica. What a compaction or a
// restore has put out of reach is 410, never other rows.
func TestSQL_MomentsEqualRecordedLists(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		t.Parallel()
		h := newChronicle(t, flags...)
		h.config.QPS = -1
		h.kube = kubernetes.NewForConfigOrDie(h.config)
		recorded := h.recordLists()
		for name, server := range map[string]*chronicle{"itself": h, "replica": h.replica()} {
			if server == nil {
				continue
			}
			for revision, want := range recorded {
				if got := server.csv("", "SELECT name, data ->> 'key' FROM configmaps("+revision+") WHERE namespace = 'default' AND name LIKE 'c_' ORDER BY name"); !slices.Equal(got, want) {
					t.Errorf("%s at %s: %q, want %q", name, revision, got, want)
				}
			}
		}
		h.restored().expectOutOfReach(recorded)
		h.write("default", "later", "") // a compaction keeps the last revision
		succeed(t, append([]string{"compact", "--keep=0s", "--resource=configmaps"}, h.database()...)...)
		h.expectOutOfReach(recorded)
	})
}

// recordLists changes ConfigMaps at random, and returns the lists meanwhile, as rows of a query, by their resourceVersion.
func (h *chronicle) recordLists() map[string][]string {
	h.Helper()
	maps, random := h.kube.CoreV1().ConfigMaps("default"), rand.New(rand.NewPCG(5, 6)) //nolint:gosec // a test
	recorded := map[string][]string{}
	for i := range 60 {
		name := fmt.Sprint("c", random.IntN(5))
		if err := maps.Delete(h.Context(), name, metav1.DeleteOptions{}); err != nil || random.IntN(3) > 0 {
			h.write("default", name, fmt.Sprint(i))
		}
		list, err := maps.List(h.Context(), metav1.ListOptions{})
		h.must(err)
		rows := []string{""} // what csv returns of no rows
		for j := range list.Items {
			if item := &list.Items[j]; strings.HasPrefix(item.Name, "c") && len(item.Name) == 2 {
				rows = append(rows, item.Name+","+item.Data["key"])
			}
		}
		recorded[list.ResourceVersion] = rows[min(1, len(rows)-1):]
	}
	return recorded
}

// expectOutOfReach expects each moment to be 410.
func (h *chronicle) expectOutOfReach(recorded map[string][]string) {
	h.Helper()
	for revision := range recorded {
		if response, body := h.ask("", query.CSV, "SELECT count(*) FROM configmaps("+revision+")"); response.StatusCode != http.StatusGone {
			h.Errorf("at %s: %d %s", revision, response.StatusCode, body)
		}
	}
}

// Past states of custom resources are as they were stored: without the defaults of today's definition, and also in a version
// that is gone.
func TestSQL_PastIsWithoutTodaysDefinition(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		t.Parallel()
		h := newChronicle(t, flags...)
		client := dynamic.NewForConfigOrDie(h.config)
		definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		define := func(version, mode string) map[string]any {
			var object map[string]any
			h.must(json.Unmarshal(fmt.Appendf(nil, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.example.com"},
				"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"gears","singular":"gear","kind":"Gear","listKind":"GearList"},
				"versions":[{"name":%q,"served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
				"teeth":{"type":"integer"},"mode":{"type":"string"%s}}}}}}}]}}`, version, mode), &object))
			return object
		}
		_, err := definitions.Create(t.Context(), &unstructured.Unstructured{Object: define("v1", "")}, metav1.CreateOptions{})
		h.must(err)
		var made *unstructured.Unstructured
		storetest.Eventually(t, "gears are served", func() (ok bool) {
			gear := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Gear", "metadata": map[string]any{"name": "big"}, "spec": map[string]any{"teeth": int64(40)}}}
			made, err = client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gears"}).Create(t.Context(), gear, metav1.CreateOptions{})
			return err == nil
		})
		redefine := func(versions ...any) {
			storetest.Eventually(t, "the definition is changed", func() bool {
				crd, err := definitions.Get(t.Context(), "gears.example.com", metav1.GetOptions{})
				h.must(err)
				h.must(unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
				_, err = definitions.Update(t.Context(), crd, metav1.UpdateOptions{})
				return err == nil
			})
		}
		version := func(name, mode string) map[string]any {
			return define(name, mode)["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		}
		expect := func(want, statement string) {
			t.Helper()
			storetest.Eventually(t, want+" is the answer to "+statement, func() bool {
				response, body := h.ask("", query.CSV, statement)
				return response.StatusCode == http.StatusOK && slices.Equal(strings.Split(strings.TrimSpace(body), "\n")[1:], []string{want})
			})
		}
		redefine(version("v1", `,"default":"fast"`))
		expect("fast", `SELECT spec_mode FROM "gears.example.com"`)
		expect("1,40", fmt.Sprintf(`SELECT spec_mode IS NULL, spec_teeth FROM "gears.example.com"(%s)`, made.GetResourceVersion()))
		expect("1,40,"+made.GetResourceVersion(), `SELECT spec_mode IS NULL, spec_teeth, object ->> '$.metadata.resourceVersion' FROM "gears.example.com_history"`)
		old := version("v1", "")
		old["storage"] = false
		redefine(old, version("v2", ""))
		_, err = definitions.Patch(t.Context(), "gears.example.com", types.MergePatchType, []byte(`{"status":{"storedVersions":["v2"]}}`), metav1.PatchOptions{}, "status")
		h.must(err)
		redefine(version("v2", ""))
		expect("v2", `SELECT spec_versions ->> '$[0].name' FROM (SELECT object -> '$.spec.versions' AS spec_versions FROM customresourcedefinitions)`)
		expect("1,40", `SELECT object IS NOT NULL, spec_teeth FROM "gears.example.com_history"`)
	})
}
