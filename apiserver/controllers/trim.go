package controllers

import (
	"slices"

	"k8s.io/api/core/v1"

	"byre/apiserver/process"
)

func stripManagedFields(object any) (any, error) { return process.StripManagedFields(object) }

// trimPod removes from a Pod what no cluster controller reads: most of the containers,
// their statuses and the annotations. What remains is about a fifth of a usual Pod.
//
// The controllers for endpoints read ports, addresses and conditions; the garbage
// collector of Pods and the eviction by taints read the node, the phase and the
// tolerations, and write statuses by patches; the protection of claims reads the volumes.
func trimPod(object any) (any, error) {
	pod, ok := object.(*v1.Pod)
	if !ok {
		return process.StripManagedFields(object)
	}
	pod.ManagedFields = nil
	pod.Annotations = nil
	pod.Spec.Containers = trimContainers(pod.Spec.Containers)
	pod.Spec.InitContainers = trimContainers(pod.Spec.InitContainers)
	pod.Spec.EphemeralContainers = nil
	pod.Spec.Affinity = nil
	pod.Spec.TopologySpreadConstraints = nil
	pod.Spec.Volumes = slices.DeleteFunc(slices.Clone(pod.Spec.Volumes), func(v v1.Volume) bool {
		return v.PersistentVolumeClaim == nil && v.Ephemeral == nil
	})
	pod.Status.ContainerStatuses = nil
	pod.Status.InitContainerStatuses = nil
	pod.Status.EphemeralContainerStatuses = nil
	return pod, nil
}

func trimContainers(containers []v1.Container) []v1.Container {
	var trimmed []v1.Container
	for _, c := range containers {
		trimmed = append(trimmed, v1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy})
	}
	return trimmed
}
