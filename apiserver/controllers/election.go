package controllers

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"byre/apiserver/process"
)

// election is about one Lease in kube-system.
type election struct {
	// name is the Lease's; client reads and writes it.
	name   string
	client kubernetes.Interface
	// watcher watches it: a component's user may not.
	watcher  kubernetes.Interface
	identity string
	isGone   func(holder string) bool
	// lease, deadline and period are client-go's LeaseDuration, RenewDeadline and
	// RetryPeriod. Invariant: period and deadline together are shorter than lease. A
	// holder gives up that long after its last renewal.
	lease, deadline, period time.Duration
}

// runAsReplica runs the controllers whenever this one of the servers on a database leads.
// After a kill, another one leads within the duration of the Lease.
func (r *Runner) runAsReplica(ctx context.Context) error {
	return r.replicaElection().run(ctx, r.runEpochs)
}

func (r *Runner) replicaElection() election {
	return election{
		name: replicasLease, client: r.config.Self, watcher: r.config.Self, identity: r.identity,
		isGone: func(string) bool { return false },
		lease:  4 * time.Second, deadline: 2 * time.Second, period: 1500 * time.Millisecond,
	}
}

// runAsComponent does a component's work while this server holds the component's Lease. The
// Lease is renewed as seldom as a server's identity Lease: a server of byre that takes over does
// not wait for the end of another's, and a process of the component only waits if no server is
// left to serve it.
func (r *Runner) runAsComponent(ctx context.Context, component string, work func(context.Context)) error {
	own, err := r.config.newComponentClients(component, "leader-election")
	if err != nil {
		return err
	}
	return election{
		name: component, client: own.kube, watcher: r.config.Self, identity: r.identity,
		isGone: isOtherServer,
		lease:  60 * time.Second, deadline: 40 * time.Second, period: 10 * time.Second,
	}.run(ctx, func(ctx context.Context) error {
		work(ctx)
		return nil
	})
}

// run calls work whenever this process holds the Lease. It returns when ctx ends, or with
// work's error.
func (e election) run(ctx context.Context, work func(context.Context) error) error {
	watch, err := newLeaseWatch(e.watcher, e.name)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	watch.factory.StartWithContext(ctx)
	defer watch.factory.Shutdown()
	defer stop()
	for ctx.Err() == nil {
		if err := e.runTerm(ctx, watch.leases, work); err != nil {
			return err
		}
	}
	return nil
}

// runTerm waits for the Lease and calls work while this process holds it. It returns when
// the Lease is lost or ctx ends.
func (e election) runTerm(
	ctx context.Context, changes <-chan *coordinationv1.Lease, work func(context.Context) error,
) error {
	leading := make(chan context.Context, 1)
	term, cancel := context.WithCancel(ctx)
	defer cancel()
	lock := newLock(e.client, e.name, e.identity, changes, e.isGone)
	lock.lost = cancel
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          e.name,
		Lock:          lock,
		LeaseDuration: e.lease,
		RenewDeadline: e.deadline,
		RetryPeriod:   e.period,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { leading <- held },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	// Invariant: the controllers of two servers never run at the same time. runTerm
	// therefore releases the Lease only after the controllers have stopped, and the elector
	// renews it until then: it must not end with ctx. The elector itself would release the
	// Lease before it ends held.
	electing, resign := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer lock.release(context.WithoutCancel(ctx))
	defer running.Wait()
	defer resign()
	running.Go(func() { elector.Run(electing) })
	select {
	case <-term.Done(): // another server has the Lease, or ctx has ended
		return nil
	case held := <-leading:
		defer context.AfterFunc(held, cancel)()
		return work(term)
	}
}

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

func newLock(
	client kubernetes.Interface, name, identity string, changes <-chan *coordinationv1.Lease, isGone func(string) bool,
) *lock {
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

// leaseWatch follows one Lease in kube-system.
type leaseWatch struct {
	name    string
	factory informers.SharedInformerFactory
	synced  cache.InformerSynced
	// leases receives each state of the Lease. Its capacity is 1: only the last counts.
	leases chan *coordinationv1.Lease
}

func newLeaseWatch(client kubernetes.Interface, name string) (*leaseWatch, error) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	l := &leaseWatch{
		name:   name,
		leases: make(chan *coordinationv1.Lease, 1),
		factory: informers.NewSharedInformerFactoryWithOptions(client, 0,
			informers.WithNamespace(metav1.NamespaceSystem),
			informers.WithTransform(process.StripManagedFields),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = only })),
	}
	informer := l.factory.Coordination().V1().Leases().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    l.put,
		UpdateFunc: func(_, object any) { l.put(object) },
		DeleteFunc: func(any) { l.put(&coordinationv1.Lease{}) },
	})
	if err != nil {
		return nil, err
	}
	l.synced = registration.HasSynced
	return l, nil
}

// put replaces the value in leases. One goroutine calls it.
func (l *leaseWatch) put(object any) {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return
	}
	select {
	case <-l.leases:
	default:
	}
	l.leases <- lease
}

// runWithout calls work whenever no other program holds the Lease of that name. It ends work's
// context when one takes the Lease, waits for work to return, and calls it again when the
// Lease has been released or has expired. It returns when ctx ends.
func runWithout(ctx context.Context, client kubernetes.Interface, name string, work func(context.Context)) error {
	l, err := newLeaseWatch(client, name)
	if err != nil {
		return err
	}
	l.factory.StartWithContext(ctx)
	defer l.factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), l.synced) {
		return nil
	}
	var end time.Time // when the Lease expires
	select {
	case lease := <-l.leases:
		end = expiry(lease)
	default:
	}
	stop := func() {}
	defer func() { stop() }()
	running := false
	for {
		if left := time.Until(end); left <= 0 && !running {
			running, stop = true, start(ctx, work)
		} else if left > 0 && running {
			stop()
			running, stop = false, func() {}
			klog.FromContext(ctx).Info("Paused, because another process leads", "lease", l.name, "namespace",
				metav1.NamespaceSystem)
		}
		var expired <-chan time.Time
		if !running {
			expired = time.After(time.Until(end))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-expired:
		case lease := <-l.leases:
			end = expiry(lease)
		}
	}
}

// expiry returns when a Lease that was seen just now expires; the zero time if nobody
// holds it any more. Like client-go's leader election, it does not use the time of the renewal,
// because the holder's clock may differ from this one. A server of byre that holds it is gone: no two
// servers run controllers at a time, and this one does.
func expiry(lease *coordinationv1.Lease) time.Time {
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" || isOtherServer(*spec.HolderIdentity) ||
		spec.LeaseDurationSeconds == nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)
}

// start calls work in a goroutine. stop ends work's context and waits for work to return.
func start(ctx context.Context, work func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	working.Go(func() { work(ctx) })
	return func() {
		cancel()
		working.Wait()
	}
}
