package e2e

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"byre/sqlstore/storetest"
)

// manager is a controller-runtime manager that is running.
type manager struct {
	ctrl.Manager
	cancel context.CancelFunc
	done   chan struct{}
	err    error // how it ended; read after done
}

func startManager(t *testing.T, access *rest.Config, name string, finalized *sync.Map) *manager {
	t.Helper()
	m, err := ctrl.NewManager(rest.CopyConfig(access), ctrl.Options{
		Scheme:                        gadgetScheme(),
		LeaderElection:                true,
		LeaderElectionID:              "gadgets",
		LeaderElectionNamespace:       gadgetNamespace,
		LeaderElectionReleaseOnCancel: true,
		// A free Lease is taken at once. A held one lasts longer than a restart of the
		// server takes on a loaded machine.
		LeaseDuration: new(90 * time.Second),
		RenewDeadline: new(60 * time.Second),
		RetryPeriod:   new(250 * time.Millisecond),
		Metrics:       metricsserver.Options{BindAddress: "0"},
		Controller:    config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &reconciler{Client: m.GetClient(), name: name, finalized: finalized}
	err = ctrl.NewControllerManagedBy(m).For(&gadgetV1{}).Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: writers}).Complete(r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	running := &manager{Manager: m, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(running.done)
		running.err = m.Start(ctx)
	}()
	t.Cleanup(func() { cancel(); <-running.done })
	return running
}

func (m *manager) awaitLead(t *testing.T) {
	t.Helper()
	select {
	case <-m.Elected():
	case <-m.done:
		t.Fatalf("a manager ended with: %v", m.err)
	case <-time.After(storetest.Patience):
		t.Fatal("a manager is not elected")
	}
}

func (m *manager) stop() error {
	m.cancel()
	<-m.done
	return m.err
}

// reconciler is the controller of gadgets.
type reconciler struct {
	runtimeclient.Client
	name      string
	finalized *sync.Map // names of gadgets that were finalized
}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	h := &gadgetV1{}
	if err := r.Get(ctx, req.NamespacedName, h); err != nil {
		return ctrl.Result{}, runtimeclient.IgnoreNotFound(err)
	}
	if !h.DeletionTimestamp.IsZero() {
		r.finalized.Store(h.Name, r.name)
		if controllerutil.RemoveFinalizer(h, finalizer) {
			return ctrl.Result{}, runtimeclient.IgnoreNotFound(r.Update(ctx, h))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(h, finalizer) {
		if err := r.Update(ctx, h); err != nil {
			return ctrl.Result{}, err
		}
	}
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r, child, func() error {
		child.Data = map[string]string{"size": strconv.Itoa(h.Spec.Size)}
		return controllerutil.SetControllerReference(h, child, r.Scheme())
	})
	if err != nil || h.Status.ObservedGeneration == h.Generation {
		return ctrl.Result{}, err
	}
	h.Status = gadgetStatus{ObservedGeneration: h.Generation, By: r.name}
	return ctrl.Result{}, r.Status().Update(ctx, h)
}
