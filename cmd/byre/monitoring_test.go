package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"sigs.k8s.io/yaml"

	"byre/apiserver/query"
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
	`go_goroutines`, `kubernetes_build_info{git_version=~".+"}`, `process_cpu_seconds_total`,
	`process_resident_memory_bytes`,
	`rest_client_requests_total{code=~"2.."}`,
	`workqueue_adds_total{name=~".+"}`, `workqueue_depth{name=~".+"}`,
	`workqueue_queue_duration_seconds_bucket{name=~".+",le=~".+"}`,
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
		`a`: true, `d`: true, `b`: false, `a{b="x"}`: true, `a{b="y"}`: false, `a{b=~"x|y",c="1.0"}`: true,
		`a{b=~"x|y",c="1"}`: false,
		`a{c="1x0"}`:        false, `a{b!="y"}`: true, `a{b!~"x|y"}`: false, `a{e=~".+"}`: false, `a{e=~"|f"}`: true,
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
	// on PostgreSQL: see postgres.TestPrimaries_FollowsTheHigherTimeline
	delete(want, "byre_store_refused_primaries")
	server := startServer(t, t.TempDir(), "--database-quota=1073741824", "--replicate-to", "file://"+t.TempDir(),
		"--backup-schedule=@daily", "--backup-to", t.TempDir())
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
	if _, err := client.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"default", metav1.NamespaceAll} {
		if _, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "missing",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
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
			Group: "missing.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100,
			InsecureSkipTLSVerify: true,
			Service:               &apiregistrationv1.ServiceReference{Namespace: "default", Name: "missing"},
		},
	}
	if _, err := aggregatorclient.NewForConfigOrDie(config).ApiregistrationV1().APIServices().Create(ctx, service,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A body that does not end makes the request exceed its time limit.
	body, end := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		config.Host+"/api/v1/namespaces/default/configmaps?timeout=1s",
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

// keyValue is a header or a parameter of an infinityTarget.
type keyValue struct{ Key, Value string }

// infinityTarget is what a query of a panel is for the data source Infinity (pkg/models/query.go of
// github.com/grafana/grafana-infinity-datasource).
type infinityTarget struct {
	Type, Source, Parser, URL string
	RootSelector              string `json:"root_selector"`
	Options                   struct {
		Method, Data    string
		BodyType        string `json:"body_type"`
		BodyContentType string `json:"body_content_type"`
		Headers, Params []keyValue
	} `json:"url_options"`
	Columns []struct{ Selector, Text, Type string }
}

type infinityPanel struct {
	Title      string
	Datasource struct{ Type, UID string }
	Targets    []infinityTarget
}

// request is what Infinity makes of a target (pkg/infinity/request.go and headers.go): a raw body, and the
// panel's headers over those of the type.
func (i *infinityTarget) request(t *testing.T, server, token string) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), i.Options.Method, server+i.URL,
		strings.NewReader(i.Options.Data))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/csv; charset=utf-8")
	request.Header.Set("Content-Type", i.Options.BodyContentType)
	for _, header := range i.Options.Headers {
		request.Header.Set(header.Key, header.Value)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	return request
}

// apply creates the objects of a manifest.
func (h *chronicle) apply(manifest string) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		var object unstructured.Unstructured
		h.must(yaml.Unmarshal([]byte(document), &object.Object))
		plural, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		_, err := client.Resource(plural).Namespace(object.GetNamespace()).Create(h.Context(), &object,
			metav1.CreateOptions{})
		h.must(err)
	}
}

// token returns a token of a ServiceAccount.
func (h *chronicle) token(namespace, name string) string {
	h.Helper()
	request, err := h.kube.CoreV1().ServiceAccounts(namespace).CreateToken(h.Context(), name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	h.must(err)
	return request.Status.Token
}

// makeObjects makes what each panel shows something of.
func (h *chronicle) makeObjects() {
	h.Helper()
	labels := map[string]string{"app": "web"}
	pod := corev1.PodSpec{NodeName: "n1", ServiceAccountName: "grafana-byre", Containers: []corev1.Container{{
		Name: "main", Image: "example.com/web:1",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("500m"),
			"memory": resource.MustParse("64Mi")}},
	}}}
	_, err := h.kube.CoreV1().Nodes().Create(h.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"),
				"pods": resource.MustParse("110")},
		}}, metav1.CreateOptions{})
	h.must(err)
	made, err := h.kube.CoreV1().Pods("monitoring").Create(h.Context(),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: pod}, metav1.CreateOptions{})
	h.must(err)
	made.Status.Phase = corev1.PodPending
	made.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", RestartCount: 3,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
	_, err = h.kube.CoreV1().Pods("monitoring").UpdateStatus(h.Context(), made, metav1.UpdateOptions{})
	h.must(err)
	_, err = h.kube.AppsV1().Deployments("default").Create(h.Context(),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		}}, metav1.CreateOptions{})
	h.must(err)
	_, err = h.kube.CoreV1().Events("default").Create(h.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "web.1"}, Type: corev1.EventTypeWarning, Reason: "BackOff", Count: 4,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"},
	}, metav1.CreateOptions{})
	h.must(err)
}

// Each panel of packaging/grafana/objects.json is answered, by the token of packaging/grafana/rbac.yaml, with the
// columns that it names and a row, and without a warning that something can't be listed. The token reads no Secret.
func TestGrafana_PanelsAreAnswered(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		h := newChronicle(t, append(flags, "--controllers=")...)
		h.apply(packaged(t, "packaging/grafana/rbac.yaml"))
		h.makeObjects()
		token := h.token("monitoring", "grafana-byre")
		anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(h.config))
		h.must(err)
		ask := func(target *infinityTarget) (*http.Response, [][]string) {
			response, err := anonymous.Do(target.request(t, h.config.Host, token))
			h.must(err)
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				text, _ := io.ReadAll(response.Body)
				t.Fatalf("%s: %s %s", target.Options.Data, response.Status, text)
			}
			records, err := csv.NewReader(response.Body).ReadAll()
			h.must(err)
			return response, records
		}
		var dashboard struct{ Panels []infinityPanel }
		h.must(json.Unmarshal([]byte(packaged(t, "packaging/grafana/objects.json")), &dashboard))
		if len(dashboard.Panels) < 6 {
			t.Fatalf("%d panels", len(dashboard.Panels))
		}
		var target infinityTarget
		for _, panel := range dashboard.Panels {
			target = panel.Targets[0]
			if panel.Datasource.Type != "yesoreyeram-infinity-datasource" || len(panel.Targets) != 1 || target.Source != "url" ||
				target.Type != "csv" || target.Parser != "backend" ||
				target.URL != query.Path || target.Options.BodyType != "raw" || target.RootSelector != "" ||
				len(target.Options.Params) > 0 {
				t.Fatalf("%s: %+v", panel.Title, panel)
			}
			storetest.Eventually(t, panel.Title+" has a row", func() bool {
				response, records := ask(&target)
				if warnings := response.Header.Values("Warning"); len(records) < 2 || len(warnings) > 0 {
					t.Log(panel.Title, records, warnings)
					return false // the rights that were just given take a moment
				}
				for i, column := range target.Columns {
					if column.Selector != records[0][i] || column.Text != column.Selector || !isOfType(column.Type, records[1][i]) {
						t.Fatalf("%s: the column %+v is %q, with %q", panel.Title, column, records[0][i], records[1][i])
					}
				}
				return len(target.Columns) == len(records[0])
			})
		}
		target.Options.Data = "SELECT name FROM secrets"
		if response, records := ask(&target); len(records) != 1 || len(response.Header.Values("Warning")) != 1 {
			t.Errorf("Grafana's token reads Secrets: %q", records)
		}
		target.Options.Data = "SELECT node, cpu_share FROM (" + dashboard.Panels[3].Targets[0].Options.Data + ")"
		if _, records := ask(&target); !slices.Equal(records[1], []string{"n1", "0.25"}) {
			t.Errorf("the share of the node's cores that is requested is %q", records)
		}
	})
}

// isOfType reports whether Infinity can read a text as a column's type.
func isOfType(name, value string) bool {
	switch name {
	case "number":
		_, err := strconv.ParseFloat(value, 64)
		return err == nil
	case "timestamp":
		_, err := time.Parse(time.RFC3339, value)
		return err == nil
	}
	return name == "string"
}

// The data source is the one that the dashboard names, and takes its token from the environment.
func TestGrafana_DataSourceIsThatOfTheDashboard(t *testing.T) {
	t.Parallel()
	var provisioned struct {
		Datasources []struct {
			Type, URL string
			JSONData  struct {
				Auth         string   `json:"auth_method"`
				AllowedHosts []string `json:"allowedHosts"`
			} `json:"jsonData"`
			Secure map[string]string `json:"secureJsonData"`
		}
	}
	if err := yaml.Unmarshal([]byte(packaged(t, "packaging/grafana/datasource.yaml")), &provisioned); err != nil {
		t.Fatal(err)
	}
	source := provisioned.Datasources[0]
	if source.Type != "yesoreyeram-infinity-datasource" || source.URL != "$BYRE_URL" ||
		source.JSONData.Auth != "bearerToken" || source.Secure["bearerToken"] != "$BYRE_TOKEN" ||
		!slices.Equal(source.JSONData.AllowedHosts, []string{source.URL}) {
		t.Errorf("%+v", source)
	}
}

// A replica at its quota starts, and gets requests: clients must reach it to delete objects. The chart
// and the base leave the check of the quota out of both probes.
func TestPackaging_ProbesLeaveOutTheQuota(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"packaging/helm/byre/templates/deployment.yaml",
		"packaging/kustomize/base/deployment.yaml"} {
		manifest := packaged(t, file)
		for _, probe := range []string{"startupProbe", "readinessProbe"} {
			path := regexp.MustCompile(probe + `:\s+httpGet:[\s{]+path: "?([^",\s]+)`).FindStringSubmatch(manifest)
			if path == nil || path[1] != "/readyz?exclude=database-quota" {
				t.Errorf("%s: the path of the %s is %q", file, probe, path)
			}
		}
	}
}
