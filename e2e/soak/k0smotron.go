package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"byre/e2e/servers"
)

// The parameters of k0smotron's loads (bench/perf_test.go): one client-go client with these
// limits, and so many watches.
const (
	clientQPS    = 2000
	clientBurst  = 4000
	churnWatches = 25
	drainTimeout = 2 * time.Minute

	loadNamespace = "load-test"
	sentLabel     = "example.com/run"
	sentMark      = "example.com/sent"
)

// churn is what one of k0smotron's loads found.
type churn struct {
	Target    string      `json:"target"`
	Load      string      `json:"load"`
	Clients   int         `json:"clients"`
	PerSecond float64     `json:"perSecond"`
	Latency   percentiles `json:"latency"`
	Errors    int64       `json:"errors"`
	// FirstError is one of the errors.
	FirstError string `json:"firstError,omitempty"`
	// Watch is the time from sending a write to having read its event, in seconds.
	Watch        percentiles `json:"watch"`
	MissedEvents int         `json:"missedEvents"`
	// Reconnects is how often the server ended a watch, which then went on.
	Reconnects int `json:"reconnects"`
	// CPU is the processor time of server and database, in seconds; 0 if one of them ended.
	CPU float64 `json:"cpu"`
	// Ended says which process of the server ended during the load, and how.
	Ended string `json:"ended,omitempty"`
}

func (c *churn) name() string { return fmt.Sprintf("%s, %d clients", c.Load, c.Clients) }

// runK0smotron runs the loads on a server, until it ends by itself.
func runK0smotron(ctx context.Context, t *target, s sizes) (all []*churn, err error) {
	config := t.server.Config(servers.AdminToken)
	config.QPS, config.Burst = clientQPS, clientBurst
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: loadNamespace}}
	if _, err := clientset.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	k := &k0smotron{sizes: s, target: t, configMaps: clientset.CoreV1().ConfigMaps(loadNamespace)}
	for _, clients := range s.Clients {
		for _, load := range []func(context.Context, int) (*churn, error){k.create, k.list} {
			c, err := load(ctx, clients)
			if err != nil {
				return all, err
			}
			if all = append(all, c); c.Ended != "" {
				return all, nil
			}
		}
	}
	c, err := k.churn(ctx, s.Clients[len(s.Clients)-1])
	if err != nil {
		return all, err
	}
	return append(all, c), nil
}

type k0smotron struct {
	sizes
	target     *target
	configMaps typedcorev1.ConfigMapInterface
}

// run has clients do something so many times, and records how long that takes and what
// fails.
func (k *k0smotron) run(
	ctx context.Context, load string, clients int, do func(ctx context.Context, n int) error,
) (*churn, error) {
	server, store, err := k.target.used()
	if err != nil {
		return nil, err
	}
	c := &churn{Target: k.target.name, Load: load, Clients: clients}
	var mu sync.Mutex
	var durations []time.Duration
	var next atomic.Int64
	var running sync.WaitGroup
	begun := time.Now()
	for range clients {
		running.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= k.Operations || ctx.Err() != nil {
					return
				}
				start := time.Now()
				err := do(ctx, n)
				mu.Lock()
				if err == nil {
					durations = append(durations, time.Since(start))
				} else {
					c.noteError(err)
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	c.PerSecond = float64(len(durations)) / time.Since(begun).Seconds()
	c.Latency = percentilesOf(durations)
	serverAfter, storeAfter, err := k.target.used()
	if err == nil {
		c.CPU = (serverAfter.CPU - server.CPU + storeAfter.CPU - store.CPU).Seconds()
	} else if c.Ended = k.target.ended(); c.Ended != "" {
		err = nil
	}
	if err == nil {
		err = ctx.Err()
	}
	logf("%s: %s: %.0f/s, p99 %.0f ms, %d errors %s%s", c.Target, c.name(), c.PerSecond, c.Latency.P99*1e3, c.Errors,
		c.FirstError, c.Ended)
	return c, err
}

func (c *churn) noteError(err error) {
	c.Errors++
	if c.FirstError == "" {
		c.FirstError = err.Error()
	}
}

// create creates ConfigMaps. Each is deleted again at the same time as others are
// created; nobody waits for that before the end.
func (k *k0smotron) create(ctx context.Context, clients int) (*churn, error) {
	var deletes sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	c, err := k.run(ctx, "create", clients, func(ctx context.Context, n int) error {
		name := fmt.Sprintf("load-%d-%06d", clients, n)
		limited, cancel := context.WithTimeout(ctx, k.Timeout)
		defer cancel()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"index": strconv.Itoa(n)}}
		if _, err := k.configMaps.Create(limited, cm, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		deletes.Go(func() {
			if err := k.configMaps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
		return nil
	})
	deletes.Wait()
	if c != nil {
		for _, err := range failed {
			c.noteError(fmt.Errorf("delete: %w", err))
		}
	}
	return c, err
}

func (k *k0smotron) list(ctx context.Context, clients int) (*churn, error) {
	return k.run(ctx, "list", clients, func(ctx context.Context, _ int) error {
		ctx, cancel := context.WithTimeout(ctx, k.Timeout)
		defer cancel()
		_, err := k.configMaps.List(ctx, metav1.ListOptions{})
		return err
	})
}

// churn creates ConfigMaps, updates each twice and deletes it, while others watch them.
func (k *k0smotron) churn(ctx context.Context, clients int) (*churn, error) {
	run := strconv.FormatInt(time.Now().UnixNano(), 10)
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer func() { stop(); watchers.Wait() }()
	seen := &lags{}
	for range churnWatches {
		if err := seen.watch(watching, &watchers, k.configMaps, sentLabel+"="+run); err != nil {
			return nil, err
		}
	}
	var events atomic.Int64
	c, err := k.run(ctx, "watch churn", clients, func(ctx context.Context, n int) error {
		return k.churnOne(ctx, run, n, &events)
	})
	if err != nil {
		return nil, err
	}
	want := int(events.Load()) * churnWatches
	for deadline := time.Now().Add(drainTimeout); seen.count() < want && c.Ended == "" && time.Now().Before(deadline); {
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	c.Watch, c.MissedEvents, c.Reconnects = percentilesOf(seen.delays), max(0, want-len(seen.delays)), seen.reconnects
	for _, err := range seen.errors {
		c.noteError(err)
	}
	return c, nil
}

// churnOne is the life of one ConfigMap. It counts its changes in events.
func (k *k0smotron) churnOne(ctx context.Context, run string, n int, events *atomic.Int64) error {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("churn-%s-%06d", run, n), Labels: map[string]string{sentLabel: run}},
		Data:       map[string]string{"index": strconv.Itoa(n)},
	}
	limited := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, k.Timeout)
		defer cancel()
		err := do(ctx)
		if err == nil {
			events.Add(1)
		}
		return err
	}
	mark := func() { cm.Annotations = map[string]string{sentMark: strconv.FormatInt(time.Now().UnixNano(), 10)} }
	for _, phase := range []string{"create", "first update", "second update"} {
		err := limited(func(ctx context.Context) (err error) {
			mark()
			cm.Data["phase"] = phase
			var answer *corev1.ConfigMap
			if phase == "create" {
				answer, err = k.configMaps.Create(ctx, cm, metav1.CreateOptions{})
			} else {
				answer, err = k.configMaps.Update(ctx, cm, metav1.UpdateOptions{})
			}
			if err == nil {
				cm = answer
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", phase, err)
		}
	}
	if err := limited(func(ctx context.Context) error {
		return k.configMaps.Delete(ctx, cm.Name, metav1.DeleteOptions{})
	}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// lags are the delays of the events that watches saw.
type lags struct {
	mu     sync.Mutex
	delays []time.Duration
	errors []error
	// reconnects is how often a watch was ended by the server.
	reconnects int
}

func (l *lags) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.delays)
}

// watch follows the ConfigMaps of a selector until the context ends. A server may end the
// watch of a client that reads too slowly: it goes on after the last event that it saw.
func (l *lags) watch(
	ctx context.Context, running *sync.WaitGroup, configMaps typedcorev1.ConfigMapInterface, selector string,
) error {
	options := metav1.ListOptions{LabelSelector: selector}
	w, err := configMaps.Watch(ctx, options)
	if err != nil {
		return err
	}
	running.Go(func() {
		for {
			options.ResourceVersion = l.read(ctx, w, options.ResourceVersion)
			w.Stop()
			for w = nil; w == nil; {
				if ctx.Err() != nil {
					return
				}
				if w, err = configMaps.Watch(ctx, options); err != nil {
					w = nil
					l.noteError(ctx, err)
					_ = sleep(ctx, 100*time.Millisecond) // the loop sees that the context has ended
				}
			}
			l.reconnected()
		}
	})
	return nil
}

// read reads a watch until it ends and returns the revision of the last event.
func (l *lags) read(ctx context.Context, w watch.Interface, revision string) string {
	for {
		select {
		case <-ctx.Done():
			return revision
		case event, open := <-w.ResultChan():
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !open {
				return revision
			}
			if !ok {
				l.noteError(ctx, fmt.Errorf("an event of a watch: %w", apierrors.FromObject(event.Object)))
				return revision
			}
			revision = cm.ResourceVersion
			// The event of the delete has the mark of the write before.
			sent, err := strconv.ParseInt(cm.Annotations[sentMark], 10, 64)
			if err != nil {
				l.noteError(ctx, err)
				continue
			}
			l.mu.Lock()
			l.delays = append(l.delays, time.Since(time.Unix(0, sent)))
			l.mu.Unlock()
		}
	}
}

func (l *lags) noteError(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // broken off
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors = append(l.errors, err)
}

func (l *lags) reconnected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reconnects++
}
