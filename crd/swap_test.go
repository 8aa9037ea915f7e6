package crd_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"byre/sqlstore/storetest"
)

const lastWidget = "last"

// TestDefinition_ChangesUnderLoad changes a definition repeatedly while clients write,
// read, list and watch: no request fails. A watch that ends is continued from its last
// revision; it loses no event and repeats none.
func TestDefinition_ChangesUnderLoad(t *testing.T) {
	t.Parallel()
	onDatabases(t, testDefinitionChangesUnderLoad)
}

func testDefinitionChangesUnderLoad(t *testing.T, s *server) {
	if testing.Short() {
		t.Skip("changes definitions for seconds")
	}
	s.define(t, widgetDefinition)
	ctx, stop := context.WithCancel(t.Context())
	var requests, watches atomic.Int64
	var writers, watcher sync.WaitGroup
	var seen map[string]int
	watcher.Go(func() { seen = s.watchUntilLast(t, &watches) })
	created := make([][]string, 4)
	for worker := range created {
		writers.Go(func() { created[worker] = s.useWidgets(ctx, t, worker, &requests) })
	}
	for i := range 20 {
		before := requests.Load()
		s.change(t, "widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
			size := properties["size"]
			size.Maximum = new(float64(100 + i))
			properties["size"] = size
		})
		storetest.Eventually(t, "requests after a change", func() bool { return requests.Load() > before+20 || t.Failed() })
	}
	stop()
	writers.Wait()
	s.create(t, widget(t, lastWidget, `{"size":3}`))
	watcher.Wait()
	for _, names := range created {
		for _, name := range names {
			if seen[name] != 1 {
				t.Errorf("%s was seen %d times", name, seen[name])
			}
		}
	}
	if watches.Load() < 2 {
		t.Error("no watch has ended: nothing was tested")
	}
	t.Logf("%d requests, %d watches, %d events", requests.Load(), watches.Load(), len(seen))
}

// useWidgets creates and reads widgets until ctx ends, and returns the names of those that
// it created.
func (s *server) useWidgets(ctx context.Context, t *testing.T, worker int, requests *atomic.Int64) []string {
	var created []string
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("w%d-%d", worker, i)
		if w := s.do(t, http.MethodPost, widgetPath, widget(t, name, `{"size":3}`)); w.Code != http.StatusCreated {
			t.Errorf("create: %d %s", w.Code, w.Body)
			return created
		}
		created = append(created, name)
		one := widgetPath + "/" + name
		for _, path := range []string{one, one + "?pretty=1", one + "/scale", widgetPath + "?limit=3"} {
			if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK {
				t.Errorf("GET %s: %d %s", path, w.Code, w.Body)
				return created
			}
		}
		requests.Add(5)
	}
	return created
}

// watchUntilLast counts the events of each created widget, over as many watches as it
// needs.
func (s *server) watchUntilLast(t *testing.T, watches *atomic.Int64) map[string]int {
	seen := map[string]int{}
	client := s.dynamic.Resource(widgets)
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Error(err)
		return seen
	}
	for _, item := range list.Items {
		seen[item.GetName()]++
	}
	from := list.GetResourceVersion()
	for t.Context().Err() == nil {
		watches.Add(1)
		events, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from})
		if err != nil {
			t.Error(err)
			return seen
		}
		for event := range events.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type != apiwatch.Added {
				t.Errorf("event %s: %v", event.Type, event.Object)
				events.Stop()
				return seen
			}
			seen[object.GetName()]++
			if from = object.GetResourceVersion(); object.GetName() == lastWidget {
				events.Stop()
				return seen
			}
		}
	}
	t.Error("the last event did not come")
	return seen
}

// TestDefinition_ManyAtOnce creates many definitions concurrently: each is established, and
// is served as soon as a client sees that.
func TestDefinition_ManyAtOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes twenty definitions")
	}
	onDatabases(t, func(t *testing.T, s *server) {
		for i := range 20 {
			t.Run(fmt.Sprintf("widgets%d", i), func(t *testing.T) {
				t.Parallel()
				crd := parse(t, widgetDefinition)
				crd.Name = fmt.Sprintf("widgets%d.example.com", i)
				crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
					Plural: fmt.Sprintf("widgets%d", i), Kind: fmt.Sprintf("Widget%d", i),
				}
				s.establish(t, crd)
				path := "/apis/example.com/v1/namespaces/default/" + crd.Spec.Names.Plural
				if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	})
}
