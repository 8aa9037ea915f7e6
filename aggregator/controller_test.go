package aggregator_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics/testutil"
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
			for _, gv := range []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"},
				{Group: "batch", Version: "v1"}, {Group: "nobody.k8s.io", Version: "v1"}} {
				if err := d.Discovery.Add(documents.DiscoveryVersion{GroupVersion: gv,
					Resources: []metav1.APIResource{}}); err != nil {
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
		storetest.EventuallyDone(t, "readiness", func(context.Context) (bool, error) {
			return s.check("autoregister-completion") == nil, nil
		})

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
		Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: 1000,
			VersionPriority: 10},
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
			got[item.Name] = registered{item.Labels[autoregister.AutoRegisterManagedLabel], item.Spec.GroupPriorityMinimum,
				item.Spec.VersionPriority}
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

// TestProxy_ShowsTheCertificateInTheFiles: the proxy shows backends the client certificate
// that the files hold at that time.
func TestProxy_ShowsTheCertificateInTheFiles(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/who", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, req.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	b.available(t, s)
	for _, name := range []string{"front-proxy-client", "second"} {
		s.newCertificate(t, name)
		var who string
		storetest.EventuallyDone(t, "certificate "+name, func(context.Context) (bool, error) {
			_, who, _ = get(t, b.url(s, "/who"))
			return who == name, nil
		})
	}
}

// TestAPIService_NewCABundleAppliesAtOnce: a backend with a new certificate is trusted as
// soon as its APIService has the new CA bundle.
func TestAPIService_NewCABundleAppliesAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets"))
	right := b.ca
	b.ca = newAuthority(t, "wrong")
	name := b.register(t, s, "v1")
	s.condition(t, name, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	for _, change := range []func(*apiregistrationv1.APIServiceSpec){
		func(spec *apiregistrationv1.APIServiceSpec) { spec.CABundle = right.pem },
		func(spec *apiregistrationv1.APIServiceSpec) { spec.CABundle, spec.InsecureSkipTLSVerify = nil, true },
	} {
		storetest.EventuallyDone(t, "update", func(ctx context.Context) (bool, error) {
			service, err := s.services.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			change(&service.Spec)
			_, err = s.services.Update(ctx, service, metav1.UpdateOptions{})
			return err == nil, ignoreConflict(err)
		})
		s.condition(t, name, apiregistrationv1.ConditionTrue, "Passed")
		b.served(t, s, "v1")
	}
}

// TestRoutes_SwapAnswersEveryRequest: while a group version moves from this server to a
// backend and back, one of the two answers every request.
func TestRoutes_SwapAnswersEveryRequest(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets"))
	b.available(t, s)
	add(t, s, documents.BuiltIn, b.group(), "v1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var client sync.WaitGroup
	answered := map[string]int{}
	client.Go(func() {
		for ctx.Err() == nil {
			status, body, _ := get(t, b.url(s, ""))
			switch {
			case status == http.StatusOK && strings.Contains(body, `"widgets"`):
				answered["backend"]++
			case status == http.StatusOK && strings.Contains(body, `"things"`):
				answered["server"]++
			default:
				t.Errorf("%d %s", status, body)
			}
		}
	})
	for i := range 6 {
		local := i%2 == 0
		storetest.EventuallyDone(t, "update", func(ctx context.Context) (bool, error) {
			service, err := s.services.Get(ctx, "v1."+b.group(), metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			if service.Spec.Service, service.Spec.CABundle = nil, nil; !local {
				service.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: namespace, Name: b.name}
				service.Spec.CABundle = b.ca.pem
			}
			_, err = s.services.Update(ctx, service, metav1.UpdateOptions{})
			return err == nil, ignoreConflict(err)
		})
		want := map[bool]string{true: `"things"`, false: `"widgets"`}[local]
		s.awaitDocument(t, "/apis/"+b.group()+"/v1", func(text string) bool { return strings.Contains(text, want) })
	}
	cancel()
	client.Wait()
	if answered["backend"] == 0 || answered["server"] == 0 {
		t.Errorf("answers: %v", answered)
	}
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// TestMetrics_HaveUpstreamsNames: upstream's metrics have upstream's names, and proxied
// requests are counted.
func TestMetrics_HaveUpstreamsNames(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/widgets", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	b.available(t, s)
	get(t, b.url(s, "/widgets"))
	b.register(t, s, "v2", func(spec *apiregistrationv1.APIServiceSpec) { spec.Service.Name = "sprockets" })
	s.condition(t, "v2."+b.group(), apiregistrationv1.ConditionFalse, "ServiceNotFound")
	// The backend still runs: an availability check that begins before this change would
	// count another reason.
	s.endpoints(t, b.name, false)
	s.condition(t, "v1."+b.group(), apiregistrationv1.ConditionFalse, "MissingEndpoints")
	storetest.Eventually(t, "the missing endpoints are counted", func() bool {
		n, err := testutil.GetCounterValuesFromGatherer(s.metrics, "aggregator_unavailable_apiservice_total",
			map[string]string{"name": "v1." + b.group()}, "reason")
		return err == nil && n["MissingEndpoints"] == 1 // the metric does not exist before it is first counted
	})
	const want = `
# HELP aggregator_unavailable_apiservice [ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.
# TYPE aggregator_unavailable_apiservice gauge
aggregator_unavailable_apiservice{name="v1.widgets.example.com"} 1
aggregator_unavailable_apiservice{name="v2.widgets.example.com"} 1
`
	if err := testutil.GatherAndCompare(s.metrics, strings.NewReader(want),
		"aggregator_unavailable_apiservice"); err != nil {
		t.Error(err)
	}
	requests, err := testutil.GetCounterValuesFromGatherer(s.metrics, "byre_aggregator_requests_total",
		map[string]string{"name": "v1." + b.group()}, "code")
	if err != nil || requests["418"] != 1 {
		t.Errorf("%v, %v", requests, err)
	}
}
