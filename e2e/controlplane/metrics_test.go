package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// metricsAPI is an API server for metrics.k8s.io/v1beta1: every Pod of a namespace uses
// the same share of a processor.
type metricsAPI struct {
	cluster *cluster
	// milliCPU is what each Pod uses.
	milliCPU atomic.Int64
}

const metricsPath = "/apis/metrics.k8s.io/v1beta1"

func (m *metricsAPI) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	answer := func(body any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(body) // the client may be gone
	}
	namespace, isList := strings.CutPrefix(req.URL.Path, metricsPath+"/namespaces/")
	namespace, _, _ = strings.Cut(namespace, "/")
	switch {
	case strings.TrimSuffix(req.URL.Path, "/") == metricsPath:
		answer(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "metrics.k8s.io/v1beta1",
			APIResources: []metav1.APIResource{{Name: "pods", Namespaced: true, Kind: "PodMetrics",
				Verbs: metav1.Verbs{"get", "list"}}},
		})
	case isList && strings.HasSuffix(req.URL.Path, "/pods"):
		pods, err := m.cluster.client.CoreV1().Pods(namespace).List(req.Context(),
			metav1.ListOptions{LabelSelector: req.URL.Query().Get("labelSelector")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		list := metricsv1beta1.PodMetricsList{TypeMeta: metav1.TypeMeta{Kind: "PodMetricsList",
			APIVersion: "metrics.k8s.io/v1beta1"}}
		for _, pod := range pods.Items {
			list.Items = append(list.Items, metricsv1beta1.PodMetrics{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace}, Timestamp: metav1.Now(),
				Window: metav1.Duration{Duration: time.Millisecond},
				Containers: []metricsv1beta1.ContainerMetrics{{Name: "web", Usage: corev1.ResourceList{
					corev1.ResourceCPU: *resource.NewMilliQuantity(m.milliCPU.Load(), resource.DecimalSI),
				}}},
			})
		}
		answer(list)
	default:
		http.NotFound(w, req)
	}
}

// testAutoscaling scales a Deployment by metrics of an aggregated API.
func testAutoscaling(t *testing.T, c *cluster) {
	const ns = "autoscaling"
	c.namespace(t, ns)
	metrics := &metricsAPI{cluster: c}
	metrics.milliCPU.Store(200)
	c.registerMetrics(t, ns, metrics)
	d := deployment(1)
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(
		"100m")}
	c.createDeployment(t, ns, d)
	scaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web", APIVersion: "apps/v1"},
			MinReplicas:    new(int32(1)), MaxReplicas: 4,
			// By default it waits five minutes before it scales down.
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))},
			},
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name:   corev1.ResourceCPU,
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))},
				}}},
		}}
	if _, err := c.client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(), scaler,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitRollout(t, ns, firstImage, 4)
	metrics.milliCPU.Store(1)
	c.awaitRollout(t, ns, firstImage, 1)
}

// registerMetrics serves the metrics API and registers it with the server.
func (c *cluster) registerMetrics(t *testing.T, namespace string, handler http.Handler) {
	t.Helper()
	address, err := servers.MachineAddress()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, text, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
	if _, err := c.client.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "metrics", Labels: map[string]string{discoveryv1.LabelServiceName: "metrics"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(port))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	}
	if _, err := c.client.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), slice,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	aggregator, err := aggregatorclient.NewForConfig(c.server.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	services := aggregator.ApiregistrationV1().APIServices()
	_, err = services.Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.k8s.io"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100,
			InsecureSkipTLSVerify: true,
			Service:               &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "metrics"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := services.Delete(context.WithoutCancel(t.Context()), "v1beta1.metrics.k8s.io",
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	storetest.EventuallySucceeds(t, "the metrics API is available", func() error {
		s, err := services.Get(t.Context(), "v1beta1.metrics.k8s.io", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range s.Status.Conditions {
			if condition.Type == apiregistrationv1.Available && condition.Status == apiregistrationv1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", s.Status.Conditions)
	})
}
