package controllers

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// replicasLease is the Lease by which the servers that share a database elect the one that
// runs the controllers.
const replicasLease = "byre-controllers"

// identityMark is in the identity of each process of byre that holds a Lease, and in that of
// no other program: client-go's programs take their host's name, an underscore and a UUID.
const identityMark = "_byre-"

// newIdentity returns what this process writes into a Lease that it holds. byre status finds
// the server by what is before the underscore.
func newIdentity(serverID string) string { return serverID + identityMark + uuid.NewString() }

// lock is a Lease in kube-system, as client-go's leader election takes it. It differs from
// client-go's in what a process sees that does not hold the Lease: nothing, until it can
// take the Lease. It then takes it at once, and asks for nothing while it waits.
type lock struct {
	resourcelock.Interface
	// changes has a value when the Lease has changed.
	changes <-chan *coordinationv1.Lease
	// isGone says of a holder that it can't be leading any more.
	isGone func(holder string) bool
	// holder is who holds the Lease, as far as this process knows; hasLed says that it has
	// held the Lease itself.
	holder string
	hasLed bool
	// acquired is when this process has taken the Lease.
	acquired metav1.Time
	// lost is called when this process has held the Lease and holds it no longer. client-go's
	// elector would go on for its RenewDeadline.
	lost func()
}

func newLock(client kubernetes.Interface, name, identity string, changes <-chan *coordinationv1.Lease, isGone func(string) bool) *lock {
	return &lock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		changes: changes,
		isGone:  isGone,
	}
}

// Get returns the Lease as soon as this process can take it, without the holder that is
// gone. Like client-go, it measures from when this process saw the last renewal, because the
// holder's clock may differ from this one. A process that has held the Lease gets it as it is:
// it has to learn who took it.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var seen []byte
	var expires time.Time
	for {
		record, raw, err := l.Interface.Get(ctx)
		if err != nil {
			return nil, nil, err
		}
		l.observe(*record)
		if l.hasLed || l.holder == "" {
			return record, raw, nil
		}
		if !bytes.Equal(raw, seen) {
			seen, expires = raw, time.Now().Add(time.Duration(record.LeaseDurationSeconds)*time.Second)
		}
		left := time.Until(expires)
		if left <= 0 || l.isGone(l.holder) {
			record.HolderIdentity = ""
			return record, raw, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-l.changes:
		case <-time.After(left):
		}
	}
}

func (l *lock) observe(record resourcelock.LeaderElectionRecord) {
	l.holder = record.HolderIdentity
	isHolder := l.holder == l.Identity()
	if l.hasLed && !isHolder {
		l.lost()
	}
	l.hasLed = l.hasLed || isHolder
}

// date gives a record of this process its times. client-go's elector takes them before it calls Get, which waits.
func (l *lock) date(record *resourcelock.LeaderElectionRecord) {
	if !l.hasLed {
		l.acquired = metav1.Now()
		record.RenewTime = l.acquired
	}
	if l.acquired.IsZero() { // an earlier lock of this process has taken the Lease
		l.acquired = record.AcquireTime
	}
	record.AcquireTime = l.acquired
}

// Create writes the record to a new Lease.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.date(&record)
	err := l.Interface.Create(ctx, record)
	if err == nil {
		l.observe(record)
	}
	return err
}

// Update writes the record to the Lease. It ends with its deadline or its answer, but not
// when its context is canceled. After the elector's end, release reads the Lease and updates
// it. If the elector had abandoned a renewal just before, the server could still commit that
// renewal between the two: the release would end with a conflict, and the other servers would
// wait until the Lease expires.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	update := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		update, cancel = context.WithDeadline(update, deadline)
		defer cancel()
	}
	l.date(&record)
	err := l.Interface.Update(update, record)
	if err == nil {
		l.observe(record)
	}
	return err
}

// release releases the Lease if this process still holds it. The elector must have ended.
func (l *lock) release(ctx context.Context) {
	if l.holder != l.Identity() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	record, _, err := l.Interface.Get(ctx)
	if err == nil && record.HolderIdentity == l.Identity() {
		record.HolderIdentity = ""
		err = l.Interface.Update(ctx, *record)
	}
	if err != nil {
		klog.FromContext(ctx).Info("Failed to release the Lease", "lock", l.Describe(), "err", err)
	}
}

// isOtherServer reports whether a holder of a component's Lease is a process of byre. For the
// server that runs the controllers it is one that is gone: no two servers run them at a time.
func isOtherServer(holder string) bool { return strings.Contains(holder, identityMark) }
