package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// heartbeats are the requests of an idle cluster: of kubelets, of controllers, and of the
// occasional Pod whose status changes.
type heartbeats struct {
	clientset   kubernetes.Interface
	nodes, pods int
	requests    atomic.Int64
}

// These are the requests of a cluster's components with their default flags: a kubelet
// renews its Lease (at a quarter of 40 s) and reports its status, and a controller renews
// its leader election. The status of each Pod changes ten times a day, and each change has
// an Event.
const (
	nodeLeaseInterval  = 10 * time.Second
	nodeStatusInterval = 5 * time.Minute
	leaderInterval     = 2 * time.Second
	podStatusInterval  = 24 * time.Hour / 10
)

var leaders = []string{"kube-controller-manager", "kube-scheduler"}

func nodeName(i int) string { return fmt.Sprintf("node-%02d", i) }

// grow creates nodes and Pods until their numbers are reached.
func (h *heartbeats) grow(ctx context.Context, nodes, pods int) error {
	for ; h.nodes < nodes; h.nodes++ {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(h.nodes)}, Status: nodeStatus(time.Now())}
		if _, err := h.clientset.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for ; h.pods < pods; h.pods++ {
		p := sizes{Pods: 1000, Nodes: 10}.pod(h.pods)
		p.Namespace, p.Spec.NodeName = metav1.NamespaceDefault, nodeName(h.pods%h.nodes)
		if _, err := h.clientset.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// nodeStatus resembles the status that a kubelet reports.
func nodeStatus(now time.Time) (status corev1.NodeStatus) {
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure, corev1.NodeReady} {
		status.Conditions = append(status.Conditions, corev1.NodeCondition{
			Type: t, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.NewTime(now),
			Reason: "KubeletHasNoPressure", Message: "kubelet reports what it has to report",
		})
	}
	for i := range 20 {
		status.Images = append(status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf(
				"registry.example.com/team/image-%d@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", i)},
			SizeBytes: 100_000_000,
		})
	}
	return status
}

// beat sends heartbeats for a period and returns how many of the requests changed an
// object.
func (h *heartbeats) beat(ctx context.Context, period time.Duration) (int64, error) {
	h.requests.Store(0)
	end := time.Now().Add(period)
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range leaders {
		group.Go(func() error { return h.renew(ctx, end, leaderInterval, metav1.NamespaceSystem, name) })
	}
	for i := range h.nodes {
		group.Go(func() error { return h.renew(ctx, end, nodeLeaseInterval, corev1.NamespaceNodeLease, nodeName(i)) })
		group.Go(func() error {
			return h.every(ctx, end, nodeStatusInterval, func(int) error {
				patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`,
					time.Now().UTC().Format(time.RFC3339))
				_, err := h.clientset.CoreV1().Nodes().PatchStatus(ctx, nodeName(i), []byte(patch))
				return err
			})
		})
	}
	if h.pods > 0 {
		group.Go(func() error {
			return h.every(ctx, end, podStatusInterval/time.Duration(h.pods), func(n int) error {
				return h.changePod(ctx, n%h.pods)
			})
		})
	}
	err := group.Wait()
	return h.requests.Load(), err
}

// every calls f at an interval until the end, the first time after one interval.
func (h *heartbeats) every(ctx context.Context, end time.Time, interval time.Duration, f func(n int) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-tick.C:
		}
		if err := f(n); err != nil {
			return err
		}
		h.requests.Add(1)
	}
}

// renew renews a Lease. It sends the object of the last answer, as client-go does.
func (h *heartbeats) renew(ctx context.Context, end time.Time, interval time.Duration, namespace, name string) error {
	leases := h.clientset.CoordinationV1().Leases(namespace)
	l, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		l, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new(name + "_0b7a3ff6-2c2a-4f0a-9b2b-3a1d6c1de9a1"),
				LeaseDurationSeconds: new(int32(40))},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	return h.every(ctx, end, interval, func(int) error {
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		l, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		return err
	})
}

// changePod changes the status of a Pod and creates an Event for that.
func (h *heartbeats) changePod(ctx context.Context, i int) error {
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":%q}]}}`,
		time.Now().UTC().Format(time.RFC3339))
	name := podName(i)
	if _, err := h.clientset.CoreV1().Pods(metav1.NamespaceDefault).Patch(ctx, name, types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	now := metav1.Now()
	_, err := h.clientset.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: name + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: name},
		Reason:         "Ready", Message: "the readiness probe succeeds again", Type: corev1.EventTypeNormal,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	return err
}
