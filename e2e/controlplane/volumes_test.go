package controlplane

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/sqlstore/storetest"
)

// createVolume makes a storage class without a provisioner, a volume of it, and a claim to
// one, all of one name.
func (c *cluster) createVolume(t *testing.T, namespace, name string, mode storagev1.VolumeBindingMode) {
	t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode}
	if _, err := c.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, StorageClassName: name,
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
	}}
	if _, err := c.client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &name, Resources: corev1.VolumeResourceRequirements{Requests: size},
		}}
	if _, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), claim,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testClaims checks that one claim is bound to its volume at once, and the other when a Pod
// uses it.
func testClaims(t *testing.T, c *cluster) {
	const ns = "claims"
	c.namespace(t, ns)
	c.createVolume(t, ns, "at-once", storagev1.VolumeBindingImmediate)
	c.createVolume(t, ns, "when-needed", storagev1.VolumeBindingWaitForFirstConsumer)
	spec := podSpec()
	spec.Volumes = []corev1.Volume{{Name: "data",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "when-needed"}}}}
	isBound := func(name string) {
		t.Helper()
		storetest.EventuallySucceeds(t, "the claim "+name+" is bound", func() error {
			claim, err := c.client.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != name) {
				err = fmt.Errorf("it is %s to %q", claim.Status.Phase, claim.Spec.VolumeName)
			}
			return err
		})
	}
	isBound("at-once")
	claim, err := c.client.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "when-needed", metav1.GetOptions{})
	if err != nil || claim.Status.Phase == corev1.ClaimBound {
		t.Errorf("the claim that nothing needs is %s, %v", claim.Status.Phase, err)
	}
	if _, err := c.client.CoreV1().Pods(ns).Create(t.Context(),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "user"}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	isBound("when-needed")
	c.awaitPod(t, ns, "user")
}
