package controllers

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
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
func (e election) runTerm(ctx context.Context, changes <-chan *coordinationv1.Lease, work func(context.Context) error) error {
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
