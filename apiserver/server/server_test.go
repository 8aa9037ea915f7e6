package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
			api:     &builtinAPI{},
			hooks:   &hooks{bootstrap: &bootstrap.Bootstrap{}},
			chain:   &chain{},
			http:    &httpServers{},
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
		"built-in API": {"built-in groups", "watches of changes"},
		"controllers":  {"bootstrap objects", "record of trusted keys", "readiness", "watchdog", "memory", "controllers"},
		"membership":   {"endpoint of the kubernetes Service", "control plane"},
		"serving":      {"listener"},
	}
	if diff := cmp.Diff(want, order(false)); diff != "" {
		t.Errorf("a server that has the database for itself (-want +got):\n%s", diff)
	}
	want["controllers"] = []string{"bootstrap objects", "record of trusted keys", "readiness", "watchdog", "memory"}
	want["membership"] = append(want["membership"], "controllers")
	if diff := cmp.Diff(want, order(true)); diff != "" {
		t.Errorf("one of several replicas (-want +got):\n%s", diff)
	}
}
