package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	namespaces = 10
	// podsPerLabel is the number of Pods that a list by label selects.
	podsPerLabel = 200
)

func namespaceName(i int) string { return fmt.Sprintf("bench-%d", i%namespaces) }
func podName(i int) string       { return fmt.Sprintf("web-7d4b9c6f5-%06d", i) }
func podPath(i int) string {
	return "/api/v1/namespaces/" + namespaceName(i) + "/pods/" + podName(i)
}

// serializer encodes and decodes protobuf as client-go does.
var serializer = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encode encodes an object in a media type, as a client sends it.
func encode(obj runtime.Object, mediaType string) ([]byte, error) {
	var body bytes.Buffer
	if mediaType == protobufType {
		err := serializer.Encode(obj, &body)
		return body.Bytes(), err
	}
	err := json.NewEncoder(&body).Encode(obj)
	return body.Bytes(), err
}

func namespace(i int) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: namespaceName(i)},
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Data:       map[string]string{"config.yaml": strings.Repeat("key: value\n", 20)},
	}
}

func lease(name string) *coordinationv1.Lease {
	holder, seconds := name, int32(40)
	return &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
	}
}

// ordinaryRights are the RBAC objects that give the ordinary user the rights for the
// measurements and no others.
func ordinaryRights() []runtime.Object {
	return []runtime.Object{
		&rbacv1.ClusterRole{
			TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"},
			ObjectMeta: metav1.ObjectMeta{Name: "bench"},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"},
					Verbs: []string{"create", "get", "list", "patch", "watch"}},
				{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "update"}},
			},
		},
		&rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: "bench"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "bench"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "staff"}},
		},
	}
}

// pod resembles a Deployment's Pod; stored, it has about 4.8 kB.
func (s sizes) pod(i int) *corev1.Pod {
	quantities := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
	container := func(name string) corev1.Container {
		var env []corev1.EnvVar
		for e := range 8 {
			env = append(env,
				corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", e),
					Value: fmt.Sprintf("https://service-%d.example.svc.cluster.local:8443/path", e)})
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
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 5, ProbeHandler: corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: []string{"/bin/ready", "--timeout=1s"}},
			}},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/" + name},
				{Name: "scratch", MountPath: "/tmp"}},
		}
	}
	no := false
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(i),
			Labels: map[string]string{
				"app.kubernetes.io/name": fmt.Sprintf("app-%d", i%s.labels()), "app.kubernetes.io/instance": "production",
				"app.kubernetes.io/component": "web", "pod-template-hash": "7d4b9c6f5",
			},
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080",
				"checksum/config": strings.Repeat("0123456789abcdef", 4)},
		},
		Spec: corev1.PodSpec{
			NodeName:                     fmt.Sprintf("node-%d", i%s.Nodes),
			AutomountServiceAccountToken: &no,
			Containers:                   []corev1.Container{container("server"), container("proxy")},
			Volumes: []corev1.Volume{
				{Name: "config",
					VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "web"},
					}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute}},
		},
	}
}

// labels is the number of values of the label by which Pods are listed.
func (s sizes) labels() int { return max(1, s.Pods/podsPerLabel) }

// mergePatch is a merge patch of a Pod's status.
func mergePatch(n int, message string) []byte {
	return fmt.Appendf(nil, `{"status":{"phase":"Running","message":%q,"podIP":"10.1.%d.%d"}}`, message, n/250%250,
		n%250+1)
}

// strategicPatch is a kubelet's patch of a Pod's status.
func strategicPatch(n int, message string) []byte {
	return fmt.Appendf(nil, `{"status":{"$setElementOrder/conditions":[{"type":"Ready"},{"type":"ContainersReady"}],`+
		`"conditions":[{"type":"Ready","status":"True","message":%q},{"type":"ContainersReady","status":"True"}],`+
		`"phase":"Running","podIP":"10.1.%d.%d","podIPs":[{"ip":"10.1.%[2]d.%[3]d"}]}}`, message, n/250%250, n%250+1)
}

func decodeInto(body []byte, into runtime.Object) error {
	_, _, err := serializer.Decode(body, nil, into)
	return err
}
