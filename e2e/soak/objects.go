package main

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"byre/e2e/servers"
)

const (
	namespaces      = 10
	namespacePrefix = "soak-"
)

func namespaceName(i int) string  { return fmt.Sprint(namespacePrefix, i%namespaces) }
func deploymentName(i int) string { return fmt.Sprintf("web-%d", i) }
func nodeName(i int) string       { return fmt.Sprintf("node-%03d", i) }

func node(i int) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1024"), corev1.ResourceMemory: resource.MustParse("4Ti"),
		corev1.ResourcePods: resource.MustParse("2000"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(i), Annotations: map[string]string{servers.KwokAnnotation: "fake"},
			Labels: map[string]string{
				corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
			},
		},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	for i := range 20 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf(
				"registry.example.com/team/image-%d@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", i)},
			SizeBytes: 100_000_000,
		})
	}
	return n
}

// deployment has Pods of two containers, about 4 kB each as stored.
func deployment(i int, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": deploymentName(i)}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: deploymentName(i), Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, RevisionHistoryLimit: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"prometheus.io/scrape": "true"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{container("web", i, 8080),
					container("sidecar", i, 9090)}},
			},
		},
	}
}

func container(name string, i int, port int32) corev1.Container {
	c := corev1.Container{
		Name: name, Image: "registry.example.com/" + name + ":1",
		Ports: []corev1.ContainerPort{{Name: name, ContainerPort: port}},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
		}},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready",
			Port: intstr.FromString(name)}}},
	}
	for n := range 8 {
		c.Env = append(c.Env,
			corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", n), Value: fmt.Sprintf("value %d of the deployment %d", n, i)})
	}
	return c
}
