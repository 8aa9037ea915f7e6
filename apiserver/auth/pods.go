package auth

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// newPodInformer follows the Pods that have a node, and keeps of each only what
// the Node authorizer's graph is made of: a Pod's secrets, config maps, claims
// and service account. A whole Pod is about ten times that.
func newPodInformer(client kubernetes.Interface) cache.SharedIndexInformer {
	informer := corev1informers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		})
	// The only error is for an informer that has been started.
	_ = informer.SetTransform(slimPod)
	return informer
}

// slimPod returns a Pod with the fields that k8s.io/kubernetes/plugin/pkg/auth/
// authorizer/node reads (Graph.AddPod and the populator's comparison).
func slimPod(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	slim := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       pod.Namespace,
			Name:            pod.Name,
			UID:             pod.UID,
			ResourceVersion: pod.ResourceVersion,
		},
		Spec: v1.PodSpec{
			NodeName:           pod.Spec.NodeName,
			ServiceAccountName: pod.Spec.ServiceAccountName,
			ImagePullSecrets:   pod.Spec.ImagePullSecrets,
			Volumes:            pod.Spec.Volumes,
			ResourceClaims:     pod.Spec.ResourceClaims,
			InitContainers:     slimContainers(pod.Spec.InitContainers),
			Containers:         slimContainers(pod.Spec.Containers),
		},
		Status: v1.PodStatus{
			ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		},
	}
	if value, ok := pod.Annotations[v1.MirrorPodAnnotationKey]; ok {
		slim.Annotations = map[string]string{v1.MirrorPodAnnotationKey: value}
	}
	for _, container := range pod.Spec.EphemeralContainers {
		slim.Spec.EphemeralContainers = append(slim.Spec.EphemeralContainers, v1.EphemeralContainer{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{Env: references(container.Env), EnvFrom: container.EnvFrom},
		})
	}
	return slim, nil
}

func slimContainers(containers []v1.Container) []v1.Container {
	var slim []v1.Container
	for _, container := range containers {
		env := references(container.Env)
		if len(env) > 0 || len(container.EnvFrom) > 0 {
			slim = append(slim, v1.Container{Env: env, EnvFrom: container.EnvFrom})
		}
	}
	return slim
}

// references drops the variables that are plain text.
func references(env []v1.EnvVar) []v1.EnvVar {
	var refs []v1.EnvVar
	for _, e := range env {
		if e.ValueFrom != nil {
			refs = append(refs, e)
		}
	}
	return refs
}
