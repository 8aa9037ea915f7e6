package main

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"byre/apiserver/query"
	"byre/sqlstore/storetest"
)

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
	request, err := http.NewRequestWithContext(t.Context(), i.Options.Method, server+i.URL, strings.NewReader(i.Options.Data))
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
		_, err := client.Resource(plural).Namespace(object.GetNamespace()).Create(h.Context(), &object, metav1.CreateOptions{})
		h.must(err)
	}
}

// token returns a token of a ServiceAccount.
func (h *chronicle) token(namespace, name string) string {
	h.Helper()
	request, err := h.kube.CoreV1().ServiceAccounts(namespace).CreateToken(h.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	h.must(err)
	return request.Status.Token
}

// makeObjects makes what each panel shows something of.
func (h *chronicle) makeObjects() {
	h.Helper()
	labels := map[string]string{"app": "web"}
	pod := corev1.PodSpec{NodeName: "n1", ServiceAccountName: "grafana-byre", Containers: []corev1.Container{{
		Name: "main", Image: "example.com/web:1",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("64Mi")}},
	}}}
	_, err := h.kube.CoreV1().Nodes().Create(h.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("110")},
	}}, metav1.CreateOptions{})
	h.must(err)
	made, err := h.kube.CoreV1().Pods("monitoring").Create(h.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: pod}, metav1.CreateOptions{})
	h.must(err)
	made.Status.Phase = corev1.PodPending
	made.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
	_, err = h.kube.CoreV1().Pods("monitoring").UpdateStatus(h.Context(), made, metav1.UpdateOptions{})
	h.must(err)
	_, err = h.kube.AppsV1().Deployments("default").Create(h.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
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
			if panel.Datasource.Type != "yesoreyeram-infinity-datasource" || len(panel.Targets) != 1 || target.Source != "url" || target.Type != "csv" || target.Parser != "backend" ||
				target.URL != query.Path || target.Options.BodyType != "raw" || target.RootSelector != "" || len(target.Options.Params) > 0 {
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
	if source.Type != "yesoreyeram-infinity-datasource" || source.URL != "$BYRE_URL" || source.JSONData.Auth != "bearerToken" || source.Secure["bearerToken"] != "$BYRE_TOKEN" ||
		!slices.Equal(source.JSONData.AllowedHosts, []string{source.URL}) {
		t.Errorf("%+v", source)
	}
}
