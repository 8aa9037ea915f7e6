package aggregator_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"byre/sqlstore/storetest"
)

// documented adds OpenAPI documents to an API: of version 3, and of version 2 unless broken
// is set.
func documented(a *api, broken *atomic.Bool) *api {
	text := func(path, text string) {
		a.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if path == "/openapi/v2" && broken.Load() {
				http.Error(w, "broken", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		})
	}
	text("/openapi/v2", `{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{"/apis/`+a.group+`/v1/widgets":{"get":{"description":"widgets of `+a.group+
		`","responses":{"200":{"description":"OK"}}}}}}`)
	text("/openapi/v3", `{"paths":{"apis/`+a.group+`/v1":{"serverRelativeURL":"/openapi/v3/apis/`+a.group+`/v1?hash=1"}}}`)
	text("/openapi/v3/apis/"+a.group+"/v1", `{"openapi":"3.0.0","info":{"title":"third of `+a.group+`","version":"1"},"paths":{}}`)
	return a
}

// TestOpenAPI_ShowsVersion3WithoutVersion2: the v3 documents of a backend are merged even
// when its v2 document cannot be read.
func TestOpenAPI_ShowsVersion3WithoutVersion2(t *testing.T) {
	t.Parallel()
	s := start(t)
	var broken atomic.Bool
	broken.Store(true)
	newBackend(t, s, "widgets", documented(newAPI("widgets"), &broken)).register(t, s, "v1")
	s.awaitText(t, "/openapi/v3", `"apis/widgets.example.com/v1"`)
	if _, text, _ := get(t, s.front.URL+"/openapi/v3/apis/widgets.example.com/v1"); !strings.Contains(text, "third of widgets") {
		t.Error(text)
	}
}

// TestDiscovery_StaysWhileCertificatesRotate: when the CA bundle of a backend changes, its
// group stays in discovery and in the OpenAPI documents until the backend has been asked
// with the new bundle, even if it then fails to answer.
func TestDiscovery_StaysWhileCertificatesRotate(t *testing.T) {
	t.Parallel()
	s := start(t)
	var silent atomic.Bool
	var refused atomic.Int32
	a := documented(newAPI("widgets"), &atomic.Bool{})
	b := newBackend(t, s, "widgets", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if silent.Load() && req.Header.Get("X-Remote-User") != "" {
			refused.Add(1)
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		a.ServeHTTP(w, req)
	}))
	b.available(t, s)
	s.awaitText(t, "/openapi/v3", `"apis/widgets.example.com/v1"`)
	s.awaitText(t, "/openapi/v2", "widgets of widgets.example.com")

	update := func(change func(*apiregistrationv1.APIService)) {
		t.Helper()
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			service, err := s.services.Get(t.Context(), "v1."+b.group(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(service)
			_, err = s.services.Update(t.Context(), service, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	silent.Store(true)
	for i, change := range []func(*apiregistrationv1.APIService){
		func(service *apiregistrationv1.APIService) {
			service.Spec.CABundle = append(service.Spec.CABundle, newAuthority(t, "next").pem...)
		},
		func(service *apiregistrationv1.APIService) {
			service.Spec.CABundle = append(service.Spec.CABundle, newAuthority(t, "next").pem...)
		},
		func(service *apiregistrationv1.APIService) { service.Spec.Service.Name = "nosuch" },
	} {
		before := refused.Load()
		update(change)
		if i < 2 { // the backend was asked with the new bundle and answered 503
			awaitCount(t, &refused, before+1)
		}
		s.awaitFreshness(t, b.group(), apidiscoveryv2.DiscoveryFreshnessStale)
		for _, group := range s.aggregated(t).Items {
			if group.Name == b.group() && (len(group.Versions[0].Resources) != 1 || group.Versions[0].Resources[0].Resource != "widgets") {
				t.Errorf("resources: %+v", group.Versions[0].Resources)
			}
		}
		for path, want := range map[string]string{
			"/openapi/v2": "widgets of widgets.example.com", "/openapi/v3/apis/widgets.example.com/v1": "third of widgets.example.com",
		} {
			if status, text, _ := get(t, s.front.URL+path); status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: %d, without %q", path, status, want)
			}
		}
	}
	silent.Store(false)
	update(func(service *apiregistrationv1.APIService) { service.Spec.Service.Name = b.name })
	s.awaitFreshness(t, b.group(), apidiscoveryv2.DiscoveryFreshnessCurrent)
}

func awaitCount(t testing.TB, count *atomic.Int32, least int32) {
	t.Helper()
	storetest.EventuallyDone(t, "requests", func(context.Context) (bool, error) { return count.Load() >= least, nil })
}
