package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/servers"
)

// soaked is what a server took under the cluster.
type soaked struct {
	Target string `json:"target"`
	// Filled is how long it took until all Pods were ready for the first time, Measured
	// how long the load lasted, in seconds.
	Filled   float64 `json:"filled"`
	Measured float64 `json:"measured"`
	// Requests are those a second, by verb. Failures are answers with 5xx, Errors
	// what the clients of this program met, FirstError one of them.
	Requests   map[string]float64 `json:"requests"`
	Failures   map[string]float64 `json:"failures"`
	Errors     int64              `json:"errors"`
	FirstError string             `json:"firstError,omitempty"`
	Rollouts   int                `json:"rollouts"`
	Latencies  []latency          `json:"latencies"`
	// Watch is how long a watch took to show a write, in seconds.
	Watch   percentiles `json:"watch"`
	Samples []sample    `json:"samples"`
}

// latency is the p99 of an operation, in seconds.
type latency struct {
	Verb      string  `json:"verb"`
	Scope     string  `json:"scope"`
	Count     float64 `json:"count"`
	P99       float64 `json:"p99"`
	Objective float64 `json:"objective"`
}

// podsPerDeployment is how many Pods a Deployment has: what one rollout replaces.
const podsPerDeployment = 25

// load is the cluster on one server.
type load struct {
	sizes
	target *target
	// clientsets are one for each server of the target. clientset is the first one.
	clientsets []kubernetes.Interface
	clientset  kubernetes.Interface
	components map[string]*servers.Process
	// ended is closed when the server has ended.
	ended      <-chan struct{}
	rollouts   atomic.Int64
	errors     atomic.Int64
	firstError atomic.Pointer[string]
}

// note counts an error, and so an answer that did not come in time. An error of what was
// cancelled doesn't count.
func (l *load) note(ctx context.Context, err error) {
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	text := err.Error()
	l.firstError.CompareAndSwap(nil, &text)
	l.errors.Add(1)
}

// soak measures a server under the cluster.
func soak(ctx context.Context, t *target, s sizes, dir string) (_ *soaked, err error) {
	var clientsets []kubernetes.Interface
	for _, server := range t.servers() {
		clientset, err := kubernetes.NewForConfig(server.Config(servers.AdminToken))
		if err != nil {
			return nil, err
		}
		clientsets = append(clientsets, clientset)
	}
	l := &load{sizes: s, target: t, clientsets: clientsets, clientset: clientsets[0],
		components: map[string]*servers.Process{}, ended: t.server.Done()}
	defer func() {
		for _, p := range l.components {
			p.Kill()
		}
	}()
	if err := l.startComponents(ctx, dir); err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := l.fill(ctx); err != nil {
		return nil, err
	}
	if err := l.shortenLeases(ctx, dir); err != nil {
		return nil, err
	}
	if err := errors.Join(l.awaitNodes(ctx), l.awaitPods(ctx)); err != nil {
		return nil, err
	}
	r := &soaked{Target: t.name, Filled: time.Since(begun).Seconds()}
	logf("%s: %d Pods are ready after %.0f s; %v of load", t.name, s.Pods, r.Filled, s.Duration)
	if err := l.measure(ctx, r); err != nil {
		return r, err
	}
	if err := l.awaitPods(ctx); err != nil {
		return r, fmt.Errorf("after the rollouts: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(l.components)) {
		select {
		case <-l.components[name].Done():
			return r, fmt.Errorf("%s ended; its log ends with:\n%s", name, l.components[name].LogTail())
		default:
		}
	}
	return r, nil
}

// componentArgs are the flags of both of upstream's components. They allow more than the defaults of 20 and 50
// requests a second, so that the cluster is filled in minutes. The Leases are long, so that no leader loses its
// Lease on a busy machine.
var componentArgs = []string{
	"--kube-api-qps=300", "--kube-api-burst=600",
	"--leader-elect-lease-duration=90s", "--leader-elect-renew-deadline=80s", "--leader-elect-retry-period=2s",
}

// fillLease is how long the Leases of nodes last while the cluster is filled: a node renews its Lease four times in
// it.
const fillLease = 10 * time.Minute

func (l *load) startComponents(ctx context.Context, dir string) error {
	scheduler, err := servers.Scheduler{Dir: dir, Server: l.target.serverOf(2), Args: componentArgs}.Start(ctx)
	if err != nil {
		return err
	}
	l.components["kube-scheduler"] = scheduler
	manager, err := servers.ControllerManager{
		Dir: dir, Server: l.target.serverOf(1),
		Args: append([]string{"--node-monitor-grace-period=" + fillLease.String()}, componentArgs...),
	}.Start(ctx)
	if err != nil {
		return err
	}
	l.components["kube-controller-manager"] = manager
	return l.startKwok(ctx, dir, fillLease)
}

// shortenLeases has the nodes renew their Leases as kubelets do: two processors that renew all of 5,000 nodes each ten
// seconds do not fill the cluster in an hour. kwok takes no Lease of the process before it until that expires.
func (l *load) shortenLeases(ctx context.Context, dir string) error {
	l.components["kwok"].Kill()
	leases := l.clientset.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if err := leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := l.startKwok(ctx, dir, 0); err != nil {
		return err
	}
	return l.await(ctx, fillLease/2, "the Leases", func(ctx context.Context) error {
		made, err := leases.List(ctx, metav1.ListOptions{})
		if err == nil && len(made.Items) != l.Nodes {
			err = fmt.Errorf("%d of %d Leases are there", len(made.Items), l.Nodes)
		}
		return err
	})
}

func (l *load) startKwok(ctx context.Context, dir string, lease time.Duration) error {
	kwok, err := servers.Kwok{
		Dir: filepath.Join(dir, "kwok"), Kubeconfig: l.target.server.Kubeconfig, Address: "127.0.0.1", Parallel: 64,
		Lease: lease,
	}.Start(ctx)
	if err != nil {
		return err
	}
	l.components["kwok"] = kwok
	return nil
}

func (l *load) deployments() int { return max(1, l.Pods/podsPerDeployment) }

// fill makes the nodes and the Deployments and waits until all Pods are ready.
func (l *load) fill(ctx context.Context) error {
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range l.Nodes {
		group.Go(func() error {
			_, err := l.clientset.CoreV1().Nodes().Create(creating, node(i), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i := range namespaces {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceName(i)}}
		if _, err := l.clientset.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := l.awaitNodes(ctx); err != nil {
		return err
	}
	for i := range l.deployments() {
		replicas := l.Pods / l.deployments()
		if i == 0 {
			replicas += l.Pods % l.deployments()
		}
		if _, err := l.clientset.AppsV1().Deployments(namespaceName(i)).Create(ctx, deployment(i, int32(replicas)),
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return l.awaitPods(ctx)
}

// awaitNodes waits until Pods can be created and scheduled. Without a service account a Pod is
// refused, and without a ready node it is unschedulable. The controllers then try again after
// longer and longer pauses, which the measurement would include.
func (l *load) awaitNodes(ctx context.Context) error {
	return l.await(ctx, 10*time.Minute, "the nodes and service accounts", func(ctx context.Context) error {
		ready, err := l.readyNodes(ctx)
		if err != nil {
			return err
		}
		accounts, err := l.clientset.CoreV1().ServiceAccounts("").List(ctx,
			metav1.ListOptions{FieldSelector: "metadata.name=default"})
		if err != nil {
			return err
		}
		made := 0
		for _, account := range accounts.Items {
			if strings.HasPrefix(account.Namespace, namespacePrefix) {
				made++
			}
		}
		if ready != l.Nodes || made != namespaces {
			return fmt.Errorf("%d of %d nodes are ready, %d of %d service accounts are there", ready, l.Nodes, made, namespaces)
		}
		return nil
	})
}

// await calls check each second until it returns nil, for as long as most, and logs now and
// then what it returns. A request that fails is made again, as every client of a cluster does.
func (l *load) await(ctx context.Context, most time.Duration, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var last error
	for told := time.Now(); ; {
		begun := time.Now()
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // a request that the end of the wait cancels does not replace it
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			logf("%s: waiting for %s: %v", l.target.name, what, last)
		}
		select {
		case <-l.ended:
			return fmt.Errorf("the server ended while %s were waited for: %w", what, last)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s for at most %v: %w", what, most, errors.Join(ctx.Err(), last))
		case <-time.After(max(time.Second, 20*time.Since(begun))): // the lists are large
		}
	}
}

// readyNodes counts the nodes that take Pods.
func (l *load) readyNodes(ctx context.Context) (n int, err error) {
	nodes, err := l.clientset.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, node := range nodes.Items {
		if len(node.Spec.Taints) == 0 && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			n++
		}
	}
	return n, nil
}

// awaitPods waits until each Deployment is rolled out and exactly the wanted Pods are there:
// those of the rollout before may still be going.
func (l *load) awaitPods(ctx context.Context) error {
	return l.await(ctx, 45*time.Minute, "the Pods", func(ctx context.Context) error {
		list, err := l.clientset.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready, done := 0, 0
		for _, d := range list.Items {
			ready += int(d.Status.AvailableReplicas)
			if isRolledOut(&d) {
				done++
			}
		}
		if done != l.deployments() {
			return fmt.Errorf("%d of %d Pods are ready", ready, l.Pods)
		}
		pods, err := l.clientset.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) != l.Pods {
			err = fmt.Errorf("there are %d Pods, not %d", len(pods.Items), l.Pods)
		}
		return err
	})
}

func isRolledOut(d *appsv1.Deployment) bool {
	n, s := *d.Spec.Replicas, d.Status
	return s.ObservedGeneration == d.Generation && s.Replicas == n && s.UpdatedReplicas == n && s.AvailableReplicas == n
}

// measure lets the load run and takes samples.
func (l *load) measure(ctx context.Context, r *soaked) error {
	watching, stopWatching := context.WithCancel(ctx)
	var watches errgroup.Group
	defer func() { stopWatching(); _ = watches.Wait() }() // they have noted their errors
	for i := range l.Nodes {
		watches.Go(func() error { l.watchNode(watching, i); return nil })
	}
	p, err := newProbe(ctx, l.clientset, l.clientsets[len(l.clientsets)-1], l.note)
	if err != nil {
		return err
	}
	before, err := scrape(ctx, l.clientsets...)
	if err != nil {
		return err
	}
	s := &sampler{target: l.target, clientset: l.clientset, begun: time.Now()}
	if err := s.take(ctx); err != nil {
		return err
	}
	loading, stop := context.WithTimeout(ctx, l.Duration)
	defer stop()
	group, loading := errgroup.WithContext(loading)
	group.Go(func() error { return s.run(loading, min(10*time.Second, max(l.Duration/100, time.Second))) })
	group.Go(func() error { return p.run(loading) })
	group.Go(func() error { return l.rollOut(loading) })
	for _, reader := range l.readers() {
		group.Go(func() error { return l.every(loading, reader.interval, reader.read) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	after, err := scrape(ctx, l.clientsets...)
	if err != nil {
		return err
	}
	r.Measured, r.Samples, r.Watch = time.Since(s.begun).Seconds(), s.samples, p.percentiles()
	r.Rollouts, r.Errors = int(l.rollouts.Load()), l.errors.Load()
	if text := l.firstError.Load(); text != nil {
		r.FirstError = *text
	}
	return r.compare(before, after)
}

// compare notes what the metrics say of the time between.
func (r *soaked) compare(before, after metrics) error {
	r.Failures = added(after.failures(), before.failures())
	r.Requests = added(after.requests(), before.requests())
	for verb := range r.Requests {
		r.Requests[verb] /= r.Measured
	}
	if after[durationsMetric] == nil {
		return errNoMetrics
	}
	durations := before.durations()
	for o, h := range after.durations() {
		h = h.since(durations[o])
		if o.objective() > 0 && h.count() > 0 {
			r.Latencies = append(r.Latencies, latency{o.verb, o.scope, h.count(), h.quantile(0.99), o.objective()})
		}
	}
	slices.SortFunc(r.Latencies, func(a, b latency) int { return strings.Compare(a.Verb+" "+a.Scope, b.Verb+" "+b.Scope) })
	return nil
}
