package controlplane

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"

	"byre/sqlstore/storetest"
)

// testEviction evicts a Pod once its budget allows that.
func testEviction(t *testing.T, c *cluster) {
	const ns = "eviction"
	c.namespace(t, ns)
	c.createDeployment(t, ns, deployment(2))
	c.awaitRollout(t, ns, firstImage, 2)
	least := intstr.FromInt32(2)
	budgets := c.client.PolicyV1().PodDisruptionBudgets(ns)
	_, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least,
			Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	allows := func(healthy, disruptions int32) {
		t.Helper()
		storetest.EventuallySucceeds(t, fmt.Sprintf("the budget allows %d disruptions", disruptions), func() error {
			b, err := budgets.Get(t.Context(), "web", metav1.GetOptions{})
			if err == nil && (b.Status.CurrentHealthy != healthy || b.Status.DisruptionsAllowed != disruptions) {
				err = fmt.Errorf("its status is %+v", b.Status)
			}
			return err
		})
	}
	allows(2, 0)
	pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	evict := func() error {
		return c.client.CoreV1().Pods(ns).EvictV1(t.Context(),
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods.Items[0].Name, Namespace: ns}})
	}
	if err := evict(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("an eviction that the budget does not allow ends with: %v", err)
	}
	c.kubectl(t, "scale", "deployment/web", "-n", ns, "--replicas=3")
	allows(3, 1)
	if err := evict(); err != nil {
		t.Errorf("an eviction that the budget allows ends with: %v", err)
	}
	storetest.EventuallySucceeds(t, "the Pod is gone", func() error {
		_, err := c.client.CoreV1().Pods(ns).Get(t.Context(), pods.Items[0].Name, metav1.GetOptions{})
		return checkNotFound(err)
	})
	c.awaitRollout(t, ns, firstImage, 3)
}

// testLostNode ends the heartbeats of a node: it becomes unreachable, its Pods are evicted,
// and others take their place on other nodes.
func testLostNode(t *testing.T, c *cluster) {
	const ns = "lost-node"
	c.namespace(t, ns)
	d := deployment(2)
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100,
			Preference: corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: nodeLabel, Operator: corev1.NodeSelectorOpIn,
					Values: []string{lostNode}}},
			}}},
	}}
	d.Spec.Template.Spec.Tolerations = []corev1.Toleration{
		tolerationOf(lostNode),
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: new(int64(1))},
	}
	c.createDeployment(t, ns, d)
	c.awaitRollout(t, ns, firstImage, 2)
	pods, err := c.client.CoreV1().Pods(ns).List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + lostNode})
	if err != nil {
		t.Fatal(err)
	}
	onLost := len(pods.Items)
	if onLost == 0 {
		t.Fatal("no Pod runs on the node that is to be lost")
	}
	c.lost.Kill()
	storetest.EventuallySucceeds(t, "the node is unreachable", func() error {
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), lostNode, metav1.GetOptions{})
		if err == nil && (isReady(node) || !hasTaint(node, corev1.TaintNodeUnreachable)) {
			err = fmt.Errorf("it has the taints %v", node.Spec.Taints)
		}
		return err
	})
	for i := range genericNodes {
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), fmt.Sprintf("node-%d", i), metav1.GetOptions{})
		if err != nil || !isReady(node) {
			t.Errorf("node-%d sends heartbeats, and its conditions are %v, %v", i, node.Status.Conditions, err)
		}
	}
	storetest.EventuallySucceeds(t, "two Pods run on other nodes", func() error {
		pods, err := c.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		evicted, ready := 0, 0
		for _, pod := range pods.Items {
			switch {
			case pod.Spec.NodeName == lostNode && pod.DeletionTimestamp != nil:
				evicted++
			case pod.Spec.NodeName != lostNode && isPodReady(&pod):
				ready++
			}
		}
		if evicted != onLost || ready != 2 {
			return fmt.Errorf("%d Pods are evicted, %d are ready elsewhere", evicted, ready)
		}
		return nil
	})
}

func tolerationOf(node string) corev1.Toleration {
	return corev1.Toleration{Key: nodeLabel, Value: node, Effect: corev1.TaintEffectNoSchedule}
}

// testPreemption creates a Pod whose priority is higher than that of the Pod that fills a
// small node, which is preempted.
func testPreemption(t *testing.T, c *cluster) {
	const ns = "preemption"
	c.namespace(t, ns)
	for _, class := range []*schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "unimportant"}, Value: 1},
		{ObjectMeta: metav1.ObjectMeta{Name: "important"}, Value: 1000},
	} {
		if _, err := c.client.SchedulingV1().PriorityClasses().Create(t.Context(), class,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pods := c.client.CoreV1().Pods(ns)
	create := func(name string) {
		t.Helper()
		spec := podSpec()
		spec.PriorityClassName, spec.NodeSelector = name, map[string]string{nodeLabel: smallNode}
		spec.Tolerations = []corev1.Toleration{tolerationOf(smallNode)}
		spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		// The admission plugin reads its classes from a cache.
		storetest.EventuallySucceeds(t, "the Pod "+name+" is accepted", func() error {
			_, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
				metav1.CreateOptions{})
			return err
		})
	}
	create("unimportant")
	c.awaitPod(t, ns, "unimportant")
	create("important")
	c.awaitPod(t, ns, "important")
	if _, err := pods.Get(t.Context(), "unimportant", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Pod that was preempted: %v", err)
	}
}

// awaitPod waits until a Pod is ready.
func (c *cluster) awaitPod(t *testing.T, namespace, name string) {
	t.Helper()
	storetest.EventuallySucceeds(t, "the Pod "+name+" is ready", func() error {
		pod, err := c.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !isPodReady(pod) {
			err = fmt.Errorf("its conditions are %v", pod.Status.Conditions)
		}
		return err
	})
}

// testQuota checks that as many Pods are created as a quota allows, and more once the quota
// is raised.
func testQuota(t *testing.T, c *cluster) {
	const ns = "quota"
	c.namespace(t, ns)
	quotas := c.client.CoreV1().ResourceQuotas(ns)
	limit := func(pods string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods)}
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: corev1.ResourceQuotaSpec{Hard: limit("2")}}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want string) func() error {
		return func() error {
			q, err := quotas.Get(t.Context(), "pods", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got, ok := q.Status.Used[corev1.ResourcePods]; !ok || got.String() != want {
				return fmt.Errorf("used are %v", q.Status.Used)
			}
			return nil
		}
	}
	storetest.EventuallySucceeds(t, "the quota is in force", used("0"))
	c.createDeployment(t, ns, deployment(3))
	storetest.EventuallySucceeds(t, "two Pods run and the third is refused", func() error {
		sets, err := c.client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, set := range sets.Items {
			if set.Status.AvailableReplicas == 2 && len(set.Status.Conditions) == 1 &&
				set.Status.Conditions[0].Reason == "FailedCreate" {
				return nil
			}
		}
		return fmt.Errorf("%d ReplicaSets", len(sets.Items))
	})
	storetest.EventuallySucceeds(t, "the quota is used", used("2"))
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		q, err := quotas.Get(t.Context(), "pods", metav1.GetOptions{})
		if err != nil {
			return err
		}
		q.Spec.Hard = limit("4")
		_, err = quotas.Update(t.Context(), q, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// The controller's next attempt may be minutes away. A change of the Deployment makes it
	// try at once.
	c.kubectl(t, "scale", "deployment/web", "-n", ns, "--replicas=4")
	c.awaitRollout(t, ns, firstImage, 4)
	storetest.EventuallySucceeds(t, "the quota is used up", used("4"))
}

// testNamespaceDeletion deletes a namespace with all that is in it.
func testNamespaceDeletion(t *testing.T, c *cluster) {
	const ns = "doomed"
	c.namespace(t, ns)
	c.createDeployment(t, ns, deployment(3))
	for i := range 20 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%d", i)}}
		if _, err := c.client.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.awaitRollout(t, ns, firstImage, 3)
	if err := c.client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "the namespace is gone", func() error {
		_, err := c.client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		return checkNotFound(err)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, list := range []func() (int, error){
		func() (int, error) {
			l, err := c.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := c.client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := c.client.AppsV1().ReplicaSets(ns).List(ctx, metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := c.client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
			return len(l.Items), err
		},
	} {
		if n, err := list(); err != nil || n > 0 {
			t.Errorf("%d objects are left, %v", n, err)
		}
	}
}
