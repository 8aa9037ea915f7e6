package aggregator_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"

	"byre/aggregator"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"

	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
)

// onDatabases runs a test on each database.
func onDatabases(t *testing.T, test func(*testing.T, func(...option) *server)) {
	t.Helper()
	for _, kind := range dbtest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			test(t, func(options ...option) *server { return startOn(t, kind.Open(t), options...) })
		})
	}
}

// TestRegistration_CreatesAPIServicesOfLocalGroups: local group versions have APIServices
// with upstream's priorities and labels. Those of custom resources are created and deleted
// with their definitions, and are created again after a deletion. APIServices that others
// have made stay as they are.
func TestRegistration_CreatesAPIServicesOfLocalGroups(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, start func(...option) *server) {
		synced := make(chan struct{})
		s := start(func(d *process.Dependencies, o *aggregator.Options) {
			for _, gv := range []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "batch", Version: "v1"}, {Group: "nobody.k8s.io", Version: "v1"}} {
				if err := d.Discovery.Add(documents.DiscoveryVersion{GroupVersion: gv, Resources: []metav1.APIResource{}}); err != nil {
					t.Fatal(err)
				}
			}
			o.CustomSynced = synced
		})
		if err := s.check("autoregister-completion"); err == nil {
			t.Error("ready before anything is registered")
		}
		// This one belongs to a custom resource that was deleted before the last start.
		left := service("left.example.com", "v1")
		left.Labels = map[string]string{autoregister.AutoRegisterManagedLabel: "true"}
		mine := service("mine.example.com", "v1")
		for _, made := range []*apiregistrationv1.APIService{left, mine} {
			if _, err := s.services.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		add(t, s, documents.Custom, "example.com", "v1")
		close(synced)
		s.awaitServices(t, map[string]registered{
			"v1.":                 {"onstart", 18000, 1},
			"v1.apps":             {"onstart", 17800, 15},
			"v1.batch":            {"onstart", 17400, 15},
			"v1.example.com":      {"true", 1000, 100},
			"v1.mine.example.com": {"", 1000, 10},
		})
		storetest.EventuallyDone(t, "readiness", func(context.Context) (bool, error) { return s.check("autoregister-completion") == nil, nil })

		if err := s.services.Delete(t.Context(), "v1.example.com", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		add(t, s, documents.Custom, "example.com", "v2")
		s.condition(t, "v1.example.com", apiregistrationv1.ConditionTrue, "Local")
		s.condition(t, "v2.example.com", apiregistrationv1.ConditionTrue, "Local")
		s.registry.Remove(schema.GroupVersion{Group: "example.com", Version: "v1"}, documents.Custom)
		s.awaitServices(t, map[string]registered{
			"v1.":                 {"onstart", 18000, 1},
			"v1.apps":             {"onstart", 17800, 15},
			"v1.batch":            {"onstart", 17400, 15},
			"v2.example.com":      {"true", 1000, 100},
			"v1.mine.example.com": {"", 1000, 10},
		})
	})
}

type registered struct {
	managed        string
	group, version int32
}

func service(group, version string) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec:       apiregistrationv1.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 10},
	}
}

func (s *server) awaitServices(t testing.TB, want map[string]registered) {
	t.Helper()
	var got map[string]registered
	storetest.EventuallyDone(t, "APIServices", func(ctx context.Context) (bool, error) {
		list, err := s.services.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		got = map[string]registered{}
		for _, item := range list.Items {
			got[item.Name] = registered{item.Labels[autoregister.AutoRegisterManagedLabel], item.Spec.GroupPriorityMinimum, item.Spec.VersionPriority}
		}
		return maps.Equal(got, want), nil
	})
}

// check asks one of the server's readiness checks.
func (s *server) check(name string) error {
	checks := s.Checks()
	i := slices.IndexFunc(checks, func(c process.HealthChecker) bool { return c.Name() == name })
	return checks[i].Check(nil)
}
