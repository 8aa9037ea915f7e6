package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/query"
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
