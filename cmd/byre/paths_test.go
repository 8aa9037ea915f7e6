package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

func TestPaths_OutsideTheAPI(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	tests := []struct {
		path   string
		status int
		want   []string
	}{
		{"/livez", 200, []string{"ok"}},
		{"/healthz", 200, []string{"ok"}},
		{"/readyz", 200, []string{"ok"}},
		{"/readyz?verbose", 200, []string{"[+]ping ok", "[+]log ok", "[+]etcd ok", "[+]etcd-readiness ok", "[+]informer-sync ok", "[+]shutdown ok", "[+]poststarthook/rbac/bootstrap-roles ok", "readyz check passed"}},
		{"/livez?verbose", 200, []string{"[+]ping ok", "[+]log ok", "[+]etcd ok", "livez check passed"}},
		{"/livez?verbose&exclude=etcd", 200, []string{"[+]etcd excluded: ok"}},
		{"/livez?verbose&exclude=nosuch", 200, []string{`warn: some health checks cannot be excluded: no matches for "nosuch"`}},
		{"/readyz/etcd-readiness", 200, []string{"ok"}},
		{"/livez/ping", 200, []string{"ok"}},
		{"/readyz/shutdown", 200, []string{"ok"}},
		{"/readyz/nosuch", 404, nil},
		{"/metrics", 200, []string{
			"apiserver_request_total", "byre_store_", "go_goroutines", "process_resident_memory_bytes", "kubernetes_build_info{",
			`etcd_request_duration_seconds_count{group="",operation="create",resource="namespaces"}`,
			`etcd_request_duration_seconds_count{group="",operation="get",resource="servicenodeportallocations"}`,
			"rest_client_requests_total{", "rest_client_request_duration_seconds_bucket{", "serviceaccount_valid_tokens_total",
			"serviceaccount_stale_tokens_total", "workqueue_depth{",
		}},
		{"/metrics/slis", 200, []string{"kubernetes_healthcheck"}},
		{"/debug/pprof/", 200, []string{"goroutine"}},
		{"/statusz", 200, []string{"apiserver statusz", "Binary version", "1.37.2", "/flagz", "/statusz"}},
		{"/flagz", 200, []string{"apiserver flagz", "secure-port", "endpoint"}},
		{"/debug/flags/v", 406, []string{"unsupported http method"}},
		{"/version", 200, []string{`"major": "1"`, `"minor": "37"`, `"gitVersion": "v1.37.2`}},
		{"/.well-known/openid-configuration", 200, []string{"jwks_uri"}},
		{"/openid/v1/jwks", 200, []string{`"keys"`}},
		{"/openapi/v3", 200, []string{"apis/apps/v1"}},
		{"/nosuch", 404, []string{"404 page not found"}},
		{"/api/v1/nosuch", 404, []string{"404"}},
	}
	for _, test := range tests {
		status, body := server.mustGet(t, test.path)
		if status != test.status {
			t.Errorf("%s: status %d, want %d: %s", test.path, status, test.status, body)
		}
		for _, want := range test.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s: no %q in the answer", test.path, want)
			}
		}
	}
}

func TestPaths_IndexListsThem(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	_, body := server.mustGet(t, "/")
	var index struct{ Paths []string }
	if err := json.Unmarshal([]byte(body), &index); err != nil {
		t.Fatal(err)
	}
	paths := make(map[string]bool)
	for _, path := range index.Paths {
		paths[path] = true
	}
	for _, want := range []string{
		"/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/apis/apiextensions.k8s.io/v1", "/apis/apiregistration.k8s.io/v1",
		"/healthz", "/livez/ping", "/readyz/etcd", "/metrics", "/openapi/v2", "/openapi/v3", "/version", "/openid/v1/jwks",
	} {
		if !paths[want] {
			t.Errorf("the index has no %s", want)
		}
	}
}

func TestPaths_OpenToAnonymous(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	host := server.config(t).Host
	tests := []struct {
		path   string
		status int
	}{
		{"/livez", http.StatusOK},
		{"/readyz", http.StatusOK},
		{"/version", http.StatusOK},
		{"/api", http.StatusForbidden},
		{"/metrics", http.StatusForbidden},
		{"/debug/pprof/heap", http.StatusForbidden},
		{"/api/v1/secrets", http.StatusForbidden},
		{"/", http.StatusForbidden},
	}
	for _, test := range tests {
		status, body, err := fetch(t.Context(), anonymous(), host+test.path)
		if err != nil {
			t.Fatal(err)
		}
		if status != test.status {
			t.Errorf("%s: status %d, want %d: %s", test.path, status, test.status, body)
		}
		if status != http.StatusForbidden {
			continue
		}
		var answer struct{ Kind, Status, Reason string }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Kind != "Status" || answer.Reason != "Forbidden" {
			t.Errorf("%s: the answer is %s", test.path, body)
		}
	}
}
