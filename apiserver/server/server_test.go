package server

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/mux"

	"byre/apiserver/access/auth"
	"byre/apiserver/bootstrap"
	"byre/apiserver/process"
)

// TestStages_StartAndStopInOrder compares the table of stages with the order in which the
// parts of a server start and, in reverse, stop.
func TestStages_StartAndStopInOrder(t *testing.T) {
	order := func(shared bool) map[string][]string {
		s := &Server{
			options: Completed{Options: NewOptions()},
			signals: process.NewSignals(),
			storage: &storageBackend{database: Database{Shared: shared}},
			access:  &access{auth: &auth.Auth{}},
			features: Part{
				Handling: []process.Component{{Name: "handling"}}, Work: []process.Component{{Name: "work"}},
				Member: []process.Component{{Name: "member"}},
			},
			hooks: &hooks{bootstrap: &bootstrap.Bootstrap{}},
			chain: &chain{},
			http:  &httpServers{},
		}
		components := map[string][]string{}
		for _, stage := range s.stages() {
			components["order"] = append(components["order"], stage.Name)
			for _, c := range stage.Components {
				components[stage.Name] = append(components[stage.Name], c.Name)
			}
		}
		return components
	}
	want := map[string][]string{
		"order": {"store", "feed", "request handling", "built-in API", "controllers", "membership", "serving"},
		"store": {"store"},
		"feed":  {"feed"},
		"request handling": {"audit", "certificates", "certificate renewal", "authentication and authorization", "admission",
			"priority and fairness"},
		"built-in API": {"built-in groups", "handling"},
		"controllers":  {"bootstrap objects", "record of trusted keys", "readiness", "watchdog", "memory", "work", "member"},
		"membership":   {"endpoint of the kubernetes Service", "control plane"},
		"serving":      {"listener"},
	}
	if diff := cmp.Diff(want, order(false)); diff != "" {
		t.Errorf("a server that has the database for itself (-want +got):\n%s", diff)
	}
	want["controllers"] = []string{"bootstrap objects", "record of trusted keys", "readiness", "watchdog", "memory", "work"}
	want["membership"] = append(want["membership"], "member")
	if diff := cmp.Diff(want, order(true)); diff != "" {
		t.Errorf("one of several replicas (-want +got):\n%s", diff)
	}
}

// TestFeatures_AreJoined: no part loses anything of another, and a part that is off adds nothing.
func TestFeatures_AreJoined(t *testing.T) {
	var said []string
	say := func(text string) { said = append(said, text) }
	feature := func(name string) Feature {
		return Feature{New: func(*Base) (Part, error) {
			return Part{
				Expensive:         []schema.GroupResource{{Resource: name}},
				ComponentStatuses: []string{name},
				Complete:          func(Chain) error { say("complete " + name); return nil },
				Handle:            func(*mux.PathRecorderMux, http.Handler) { say("handle " + name) },
				Wrap: func(next http.Handler) (http.Handler, error) {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						say("request " + name)
						next.ServeHTTP(w, r)
					}), nil
				},
				Work: []process.Component{{Name: name}},
			}, nil
		}}
	}
	off := Feature{New: func(*Base) (Part, error) { return Part{}, nil }}
	o := &Options{features: []Feature{feature("a"), off, feature("b")}}
	joined, err := newParts(&Base{Options: Completed{Options: o}})
	if err != nil {
		t.Fatal(err)
	}
	if err := joined.Complete(Chain{}); err != nil {
		t.Fatal(err)
	}
	joined.Handle(nil, nil)
	handler, err := joined.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { say("request") }))
	if err != nil {
		t.Fatal(err)
	}
	handler.ServeHTTP(nil, nil)
	want := []string{"complete a", "complete b", "handle a", "handle b", "request b", "request a", "request"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if len(joined.Work) != 2 || len(joined.Expensive) != 2 || !slices.Equal(joined.ComponentStatuses, []string{"a", "b"}) {
		t.Errorf("joined are %+v", joined)
	}
	broken := errors.New("broken")
	o.features = append(o.features, Feature{New: func(*Base) (Part, error) { return Part{}, broken }})
	if _, err := newParts(&Base{Options: Completed{Options: o}}); !errors.Is(err, broken) {
		t.Errorf("a feature that can't be made: %v", err)
	}
}
