package controllers

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
)

// newFakeElection returns the election of the replica "me" about a Lease.
func newFakeElection(client kubernetes.Interface) election {
	e := (&Runner{identity: "me"}).replicaElection()
	e.name, e.client = "l", client
	return e
}

// TestElection_TermEndsWhenAnotherProcessHoldsTheLease: a leader that was stopped for longer than the
// Lease lasts stops its controllers when it sees its successor.
func TestElection_TermEndsWhenAnotherProcessHoldsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lease := newFakeLease(t, "")
		e := newFakeElection(lease.client)
		err := e.runTerm(t.Context(), nil, func(term context.Context) error {
			time.Sleep(time.Second)
			lease.set(t, "successor")
			lease.client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "l", nil)
			})
			lost := time.Now()
			<-term.Done()
			if took := time.Since(lost); took > e.period {
				t.Errorf("the term ends %v after another process took the Lease", took)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// cutOffClient is a client of a Lease. While isCutOff, its calls last until their contexts end.
type cutOffClient struct {
	kubernetes.Interface
	coordinationclient.CoordinationV1Interface
	coordinationclient.LeaseInterface
	isCutOff atomic.Bool
}

func (c *cutOffClient) CoordinationV1() coordinationclient.CoordinationV1Interface { return c }

func (c *cutOffClient) Leases(string) coordinationclient.LeaseInterface { return c }

func (c *cutOffClient) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if c.isCutOff.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.LeaseInterface.Get(ctx, name, o)
}

func (c *cutOffClient) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if c.isCutOff.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.LeaseInterface.Update(ctx, l, o)
}

// TestElection_LeaseIsReleasedAfterTheTerm: however a term ends, it ends before another process can take
// the Lease, and the Lease is released once the controllers have stopped.
func TestElection_LeaseIsReleasedAfterTheTerm(t *testing.T) {
	t.Parallel()
	for name, isCutOff := range map[string]bool{"cut off": true, "stop": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				leases := newFakeLease(t, "").client.CoordinationV1().Leases(metav1.NamespaceSystem)
				holder := func() string {
					lease, err := leases.Get(t.Context(), "l", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if lease.Spec.HolderIdentity == nil {
						return ""
					}
					return *lease.Spec.HolderIdentity
				}
				client := &cutOffClient{LeaseInterface: leases}
				e := newFakeElection(client)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var stopped time.Time
				err := e.runTerm(ctx, nil, func(term context.Context) error {
					renewed := time.Now()
					time.Sleep(time.Second)
					if isCutOff {
						client.isCutOff.Store(true)
					} else {
						stop()
					}
					<-term.Done()
					if took := time.Since(renewed); took >= e.lease {
						t.Errorf("the term ends %v after the last renewal", took)
					}
					client.isCutOff.Store(false)
					time.Sleep(5 * time.Second)
					if holder() != "me" {
						t.Error("the Lease is released while the controllers run")
					}
					stopped = time.Now()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if took := time.Since(stopped); holder() != "" || took > 0 {
					t.Errorf("held by %q %v after the controllers have stopped", holder(), took)
				}
			})
		})
	}
}
