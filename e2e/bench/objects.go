package main

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	namespaces = 10
	nodes      = 100
	apps       = 50
)

func namespaceName(i int) string { return fmt.Sprintf("bench-%d", i%namespaces) }
func podName(i int) string       { return fmt.Sprintf("web-7d4b9c6f5-%06d", i) }
func podPath(i int) string {
	return "/api/v1/namespaces/" + namespaceName(i) + "/pods/" + podName(i)
}

func encode(obj any) []byte {
	body, err := json.Marshal(obj)
	if err != nil {
		panic(err) // our own literals
	}
	return body
}

func namespace(i int) []byte {
	return encode(&corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: namespaceName(i)},
	})
}

func configMap(name string) []byte {
	return encode(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Data:       map[string]string{"config.yaml": strings.Repeat("key: value\n", 20)},
	})
}

// pod is about what a Deployment's pods look like: stored it is about 4.8 kB.
func pod(i int) []byte {
	quantities := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
	container := func(name string) corev1.Container {
		var env []corev1.EnvVar
		for e := range 8 {
			env = append(env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", e), Value: fmt.Sprintf("https://service-%d.example.svc.cluster.local:8443/path", e)})
		}
		return corev1.Container{
			Name:  name,
			Image: "registry.example.com/team/" + name + ":v1.42.0",
			Args:  []string{"--listen=:8080", "--log-level=info", "--config=/etc/" + name + "/config.yaml"},
			Ports: []corev1.ContainerPort{{Name: "http-" + name, ContainerPort: 8080}},
			Env:   env,
			Resources: corev1.ResourceRequirements{
				Requests: quantities("100m", "128Mi"), Limits: quantities("500m", "256Mi"),
			},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/ready", "--timeout=1s"}}}, PeriodSeconds: 5},
			VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/" + name}, {Name: "scratch", MountPath: "/tmp"}},
		}
	}
	no := false
	return encode(&corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(i),
			Labels: map[string]string{
				"app.kubernetes.io/name": fmt.Sprintf("app-%d", i%apps), "app.kubernetes.io/instance": "production",
				"app.kubernetes.io/component": "web", "pod-template-hash": "7d4b9c6f5",
			},
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "checksum/config": strings.Repeat("0123456789abcdef", 4)},
		},
		Spec: corev1.PodSpec{
			NodeName:                     fmt.Sprintf("node-%d", i%nodes),
			AutomountServiceAccountToken: &no,
			Containers:                   []corev1.Container{container("server"), container("proxy")},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
		},
	})
}

func status(n int) []byte {
	return fmt.Appendf(nil, `{"status":{"phase":"Running","message":"patch %d","podIP":"10.1.%d.%d"}}`, n, n/250%250, n%250+1)
}
