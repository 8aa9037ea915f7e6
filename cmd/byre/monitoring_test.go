package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"byre/sqlstore/storetest"
)

// mixinSelectors are what the dashboards, alerts and rules of kubernetes-mixin select of an API
// server's metrics (github.com/kubernetes-monitoring/kubernetes-mixin, alerts/kube_apiserver,
// alerts/system_alerts, dashboards/apiserver, rules/kube_apiserver-*). Left out are
// etcd_helper_cache_*, which kube-apiserver no longer has, and
// aggregator_unavailable_apiservice_total, which counts API servers that were available before: the
// aggregator's tests check that one.
var mixinSelectors = []string{
	`aggregator_unavailable_apiservice{name=~".+"}`,
	`apiserver_client_certificate_expiration_seconds_bucket{le=~".+"}`,
	`apiserver_client_certificate_expiration_seconds_count`,
	`apiserver_request_duration_seconds_bucket{verb!="WATCH",le=~".+"}`,
	`apiserver_request_sli_duration_seconds_count{verb=~"LIST|GET",subresource!~"proxy|attach|log|exec|portforward"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb=~"LIST|GET",subresource!~"proxy|attach|log|exec|portforward",scope=~"resource|",le=~"1(\.0)?"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb=~"LIST|GET",subresource!~"proxy|attach|log|exec|portforward",scope="namespace",le=~"5(\.0)?"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb=~"LIST|GET",subresource!~"proxy|attach|log|exec|portforward",scope="cluster",le=~"30(\.0)?"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb=~"POST|PUT|PATCH|DELETE",subresource!~"proxy|attach|log|exec|portforward",le=~"1(\.0)?"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb=~"POST|PUT|PATCH|DELETE",resource=~".+",le="+Inf"}`,
	`apiserver_request_terminations_total`,
	`apiserver_request_total{verb=~"LIST|GET",code=~"2..",resource=~".+"}`,
	`apiserver_request_total{verb=~"LIST|GET",code=~"4.."}`,
	`apiserver_request_total{verb=~"POST|PUT|PATCH|DELETE",code=~"2..",resource=~".+"}`,
	`apiserver_request_total{verb=~"POST|PUT|PATCH|DELETE",code=~"5.."}`,
	`go_goroutines`, `kubernetes_build_info{git_version=~".+"}`, `process_cpu_seconds_total`, `process_resident_memory_bytes`,
	`rest_client_requests_total{code=~"2.."}`,
	`workqueue_adds_total{name=~".+"}`, `workqueue_depth{name=~".+"}`, `workqueue_queue_duration_seconds_bucket{name=~".+",le=~".+"}`,
}

var (
	promSample  = regexp.MustCompile(`(?m)^([a-z_0-9]+)(\{.*\})? \S+$`)
	promLabel   = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	promMatcher = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
)

// isSelected reports whether a Prometheus selector selects any of the samples.
func isSelected(selector string, samples [][]string) bool {
	name, matchers, _ := strings.Cut(selector, "{")
	return slices.ContainsFunc(samples, func(sample []string) bool {
		if sample[1] != name {
			return false
		}
		labels := map[string]string{}
		for _, label := range promLabel.FindAllStringSubmatch(sample[2], -1) {
			labels[label[1]] = label[2]
		}
		for _, m := range promMatcher.FindAllStringSubmatch(matchers, -1) {
			pattern := m[3]
			if !strings.HasSuffix(m[2], "~") {
				pattern = regexp.QuoteMeta(pattern)
			}
			if regexp.MustCompile("^(?:"+pattern+")$").MatchString(labels[m[1]]) == strings.HasPrefix(m[2], "!") {
				return false
			}
		}
		return true
	})
}

// TestIsSelected_FollowsEachMatcher: a selector selects a sample only if all of its matchers do.
func TestIsSelected_FollowsEachMatcher(t *testing.T) {
	t.Parallel()
	samples := promSample.FindAllStringSubmatch("a{b=\"x\",c=\"1.0\"} 7\nd 1\n", -1)
	for selector, want := range map[string]bool{
		`a`: true, `d`: true, `b`: false, `a{b="x"}`: true, `a{b="y"}`: false, `a{b=~"x|y",c="1.0"}`: true, `a{b=~"x|y",c="1"}`: false,
		`a{c="1x0"}`: false, `a{b!="y"}`: true, `a{b!~"x|y"}`: false, `a{e=~".+"}`: false, `a{e=~"|f"}`: true,
	} {
		if got := isSelected(selector, samples); got != want {
			t.Errorf("%s: %v, want %v", selector, got, want)
		}
	}
}

// packaged returns a file of packaging/.
func packaged(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// byre exposes every metric that the dashboard, the alerts and kubernetes-mixin read, once
// what the metric counts has happened.
func TestMonitoring_ReadsMetricsThatByreHas(t *testing.T) {
	t.Parallel()
	names := regexp.MustCompile(`\b(aggregator|apiserver|byre|go|kubernetes|process|rest_client|workqueue)_[a-z_]+`)
	want := map[string]bool{}
	for _, selector := range mixinSelectors {
		want[selector] = true
	}
	for _, path := range []string{"packaging/grafana/byre.json", "packaging/prometheus/byre.rules.yaml"} {
		found := names.FindAllString(packaged(t, path), -1)
		if len(found) < 9 {
			t.Fatalf("%s names only the metrics %v", path, found)
		}
		for _, name := range found {
			want[name] = true
		}
	}
	delete(want, "byre_standby_copy_timestamp_seconds") // a standby's: see TestStandby_TakesOverAfterACrash
	delete(want, "byre_read_only_primary_reads_total")  // of a server that only reads: see TestReadOnly_ServesWhatAPrimaryHolds
	server := startServer(t, t.TempDir(), "--database-quota=1073741824", "--replicate-to", "file://"+t.TempDir(), "--backup-schedule=@daily", "--backup-to", t.TempDir())
	config := server.config(t)
	makeTraffic(t, config)
	storetest.EventuallyDone(t, "every metric is there", func(ctx context.Context) (bool, error) {
		status, metrics, err := get(ctx, config, "/metrics")
		if err != nil || status != http.StatusOK {
			return false, err
		}
		samples := promSample.FindAllStringSubmatch(metrics, -1)
		maps.DeleteFunc(want, func(selector string, _ bool) bool { return isSelected(selector, samples) })
		if len(want) > 0 {
			t.Logf("not yet there: %v", want)
		}
		return len(want) == 0, nil
	})
}

// makeTraffic makes the server answer reads, a write and a watch, end a request that takes
// too long, and look for an aggregated API server that does not exist.
func makeTraffic(t *testing.T, config *rest.Config) {
	t.Helper()
	ctx := t.Context()
	client := kubernetes.NewForConfigOrDie(config)
	if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"default", metav1.NamespaceAll} {
		if _, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "missing", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a missing ConfigMap: %v", err)
	}
	watch, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Stop)
	service := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.missing.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "missing.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "missing"},
		},
	}
	if _, err := aggregatorclient.NewForConfigOrDie(config).ApiregistrationV1().APIServices().Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A body that does not end makes the request exceed its time limit.
	body, end := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+"/api/v1/namespaces/default/configmaps?timeout=1s",
		io.MultiReader(bytes.NewReader([]byte(`{"metadata":`)), body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := httpClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	defer end.Close() // before the response is closed, which waits for the end of the body
	if response.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("a request that takes too long is answered with %s", response.Status)
	}
}

// The runbook of each alert is a section of docs/operations/troubleshooting.md.
func TestMonitoring_EachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	rules, pages := packaged(t, "packaging/prometheus/byre.rules.yaml"), packaged(t, "docs/operations/troubleshooting.md")
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("no alerts")
	}
	for _, alert := range alerts {
		name := alert[1]
		if !strings.Contains(rules, "runbook: docs/operations/troubleshooting.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s names no runbook", name)
		}
		if !strings.Contains(pages, "\n### "+name+"\n") {
			t.Errorf("docs/operations/troubleshooting.md has no section %s", name)
		}
	}
}
