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
	"k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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

func (c *cutOffClient) Update(
	ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
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

// blockedLock is a lock whose updates wait until proceed is closed, and succeed unless
// their context has ended by then.
type blockedLock struct {
	resourcelock.Interface
	begun, proceed chan struct{}
}

func (l *blockedLock) Update(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	close(l.begun)
	<-l.proceed
	return ctx.Err()
}

func (l *blockedLock) Identity() string { return "me" }

// TestLease_RenewalOutlivesItsElector cancels the context of a renewal before the server
// has answered: the renewal goes on to its end.
func TestLease_RenewalOutlivesItsElector(t *testing.T) {
	blocked := &blockedLock{begun: make(chan struct{}), proceed: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	renewed := make(chan error, 1)
	go func() {
		renewed <- (&lock{Interface: blocked}).Update(ctx, resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
	}()
	<-blocked.begun
	cancel()
	close(blocked.proceed)
	if err := <-renewed; err != nil {
		t.Errorf("the renewal ended with %v", err)
	}
}

// TestLease_RenewalEndsAtItsDeadline: a renewal ends before the elector may no longer
// believe that it leads.
func TestLease_RenewalEndsAtItsDeadline(t *testing.T) {
	blocked := &blockedLock{begun: make(chan struct{}), proceed: make(chan struct{})}
	close(blocked.proceed)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := (&lock{Interface: blocked}).Update(ctx,
		resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err == nil {
		t.Error("the renewal outlasted its deadline")
	}
}

// fakeLease is a Lease that nobody renews unless a test does.
type fakeLease struct{ client *fake.Clientset }

func newFakeLease(t *testing.T, holder string) fakeLease {
	t.Helper()
	client := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "l"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(4))},
	})
	return fakeLease{client}
}

// set writes a renewal, or a release.
func (f fakeLease) set(t *testing.T, holder string) {
	t.Helper()
	leases := f.client.CoordinationV1().Leases(metav1.NamespaceSystem)
	lease, err := leases.Get(t.Context(), "l", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now := metav1.NowMicro()
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &holder, &now
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestLease_StandbySeesItWhenItCanBeTaken: a standby's Get returns the duration of the Lease
// after the last renewal, and at once after a release.
func TestLease_StandbySeesItWhenItCanBeTaken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		isReleased bool
		want       time.Duration
	}{{"expired", false, 5 * time.Second}, {"released", true, time.Second}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lease := newFakeLease(t, "leader")
				changes := make(chan *coordinationv1.Lease, 1)
				l := newLock(lease.client, "l", "me", changes, func(string) bool { return false })
				begun := time.Now()
				go func() {
					time.Sleep(time.Second) // the last thing that the leader does
					if test.isReleased {
						lease.set(t, "")
					} else {
						lease.set(t, "leader")
					}
					changes <- nil
				}()
				record, _, err := l.Get(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); record.HolderIdentity != "" || took != test.want {
					t.Errorf("held by %q after %v, want nobody after %v", record.HolderIdentity, took, test.want)
				}
			})
		})
	}
}

// TestLease_OfAnotherServerIsTakenAtOnce: a component's Lease is taken at once from a server of
// byre, and not from another program.
func TestLease_OfAnotherServerIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for holder, want := range map[string]time.Duration{newIdentity("apiserver-x"): 0, "host_0c5e": 4 * time.Second} {
			l := newLock(newFakeLease(t, holder).client, "l", newIdentity("apiserver-y"), nil, isOtherServer)
			begun := time.Now()
			record, _, err := l.Get(t.Context())
			if took := time.Since(begun); err != nil || record.HolderIdentity != "" || took != want {
				t.Errorf("%s: %v, %v after %v, want %v", holder, record, err, took, want)
			}
		}
	})
}

// TestRunWithout_DoesNotWaitForAnotherServer: a server that runs none of the component begins at once
// where a server that ran it has gone, and waits for another program's Lease to expire.
func TestRunWithout_DoesNotWaitForAnotherServer(t *testing.T) {
	t.Parallel()
	for holder, want := range map[string]time.Duration{newIdentity("apiserver-x"): 0, "host_0c5e": 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			client, begun := newFakeLease(t, holder).client, time.Now()
			if err := runWithout(ctx, client, "l", func(context.Context) { cancel() }); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun).Truncate(time.Second); took != want {
				t.Errorf("%s: work begins after %v, want %v", holder, took, want)
			}
		})
	}
}

// TestReplicas_TakeOverWithinFourSeconds: a replica whose leader was killed takes over when its Lease
// has expired, and a leader that can't renew has stopped before.
func TestReplicas_TakeOverWithinFourSeconds(t *testing.T) {
	t.Parallel()
	e := (&Runner{}).replicaElection()
	if e.lease > 4*time.Second || e.deadline+e.period >= e.lease {
		t.Errorf("a Lease of %v, renewed every %v for up to %v", e.lease, e.period, e.deadline)
	}
}

// TestLease_OfTheSuccessorIsNotReleased: a process that was stopped while another one took
// its Lease leaves it to that one.
func TestLease_OfTheSuccessorIsNotReleased(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(t, "me")
	l := newLock(lease.client, "l", "me", nil, func(string) bool { return false })
	if _, _, err := l.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	lease.set(t, "successor")
	l.release(t.Context())
	if record, _, err := l.Interface.Get(t.Context()); err != nil || record.HolderIdentity != "successor" {
		t.Errorf("after the release: %v, %v", record, err)
	}
}

// TestLease_HasTheTimesOfItsTaking: client-go's elector takes the times of a record before it waits for the Lease, and
// repeats the first one in each renewal.
func TestLease_HasTheTimesOfItsTaking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lease := newFakeLease(t, "leader")
		l := newLock(lease.client, "l", "me", nil, func(string) bool { return false })
		record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 4, AcquireTime: metav1.Now(),
			RenewTime: metav1.Now()}
		if _, _, err := l.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		taken := time.Now()
		for _, renewed := range []time.Time{taken, taken.Add(time.Second)} {
			if !renewed.Equal(taken) {
				time.Sleep(time.Second)
				record.RenewTime = metav1.Now()
			}
			if err := l.Update(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			got, _, err := l.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !got.AcquireTime.Time.Equal(taken) || !got.RenewTime.Time.Equal(renewed) {
				t.Errorf("acquired at %v, want %v; renewed at %v, want %v", got.AcquireTime, taken, got.RenewTime, renewed)
			}
		}
		// The next election of the same process finds its own Lease.
		next := newLock(lease.client, "l", "me", nil, func(string) bool { return false })
		got, _, err := next.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Update(t.Context(), *got); err != nil {
			t.Fatal(err)
		}
		if got, _, err = next.Get(t.Context()); err != nil || !got.AcquireTime.Time.Equal(taken) {
			t.Errorf("after the next election: %v, %v; want the Lease acquired at %v", got, err, taken)
		}
	})
}
