package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// finishing returns a context for one request that does not end with the load, but after a
// minute. A request in flight at the end of the load would otherwise be cancelled, and would
// count as a failure of the server.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// every calls f at an interval until the context ends, and counts f's errors.
func (l *load) every(ctx context.Context, interval time.Duration, f func(ctx context.Context, n int) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		request, cancel := finishing(ctx)
		l.note(request, f(request, n))
		cancel()
	}
}

// rollOut gives one Deployment after the other a new image, as often as Churn says.
func (l *load) rollOut(ctx context.Context) error {
	interval := time.Duration(float64(l.Pods/l.deployments()) / l.Churn * float64(time.Second))
	return l.every(ctx, interval, func(ctx context.Context, n int) error {
		i := n % l.deployments()
		patch := fmt.Sprintf(
			`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"registry.example.com/web:%d"}]}}}}`, n+2)
		_, err := l.clientset.AppsV1().Deployments(namespaceName(i)).Patch(ctx, deploymentName(i),
			types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		if err == nil {
			l.rollouts.Add(1)
		}
		return err
	})
}

// reader is a request that is sent at an interval.
type reader struct {
	interval time.Duration
	read     func(ctx context.Context, n int) error
}

// readers are the requests of a person with kubectl, of a dashboard and of a controller
// without a cache.
func (l *load) readers() []reader {
	c := l.clientset
	return []reader{
		{time.Second, func(ctx context.Context, _ int) error {
			_, err := c.CoreV1().Nodes().Get(ctx, nodeName(rand.IntN(l.Nodes)), metav1.GetOptions{})
			return err
		}},
		{2 * time.Second, func(ctx context.Context, n int) error {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/seen":"%d"}}}`, n)
			_, err := c.CoreV1().Namespaces().Patch(ctx, namespaceName(n), types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}},
		{5 * time.Second, func(ctx context.Context, n int) error {
			return discard(c.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/" + namespaceName(n) + "/pods").Stream(ctx))
		}},
		{20 * time.Second, func(ctx context.Context, _ int) error {
			return discard(c.CoreV1().RESTClient().Get().AbsPath("/api/v1/pods").Stream(ctx))
		}},
	}
}

// discard reads an answer without decoding it: the client shares the processors with the
// server.
func discard(body io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// watchNode watches the Pods of a node, as its kubelet does, until the context ends.
func (l *load) watchNode(ctx context.Context, i int) {
	for ctx.Err() == nil {
		body, err := l.clientsets[i%len(l.clientsets)].CoreV1().RESTClient().Get().AbsPath("/api/v1/pods").
			Param("watch", "true").Param("allowWatchBookmarks", "true").Param("resourceVersion", "0").
			Param("timeoutSeconds", strconv.Itoa(300+rand.IntN(300))).
			Param("fieldSelector", "spec.nodeName="+nodeName(i)).Stream(ctx)
		if err != nil {
			l.note(ctx, err)
			_ = sleep(ctx, time.Second) // the loop sees that the context has ended
			continue
		}
		_, _ = io.Copy(io.Discard, body) // the loop watches again, however the watch has ended
		body.Close()
	}
}

// probe writes a ConfigMap every half second and measures when a watch, on another server if there are several, shows
// that.
type probe struct {
	clientset kubernetes.Interface
	events    watch.Interface
	// note counts the errors of the writes.
	note func(context.Context, error)

	mu     sync.Mutex
	delays []time.Duration
}

const (
	probeName      = "probe"
	probeInterval  = 500 * time.Millisecond
	probeNamespace = metav1.NamespaceDefault
)

func newProbe(
	ctx context.Context, clientset, watched kubernetes.Interface, note func(context.Context, error),
) (*probe, error) {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: probeName}}
	cm, err := clientset.CoreV1().ConfigMaps(probeNamespace).Create(ctx, cm, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	events, err := watched.CoreV1().ConfigMaps(probeNamespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + probeName, ResourceVersion: cm.ResourceVersion,
		TimeoutSeconds: new(int64(24 * 60 * 60)),
	})
	return &probe{clientset: clientset, events: events, note: note}, err
}

// run measures until the context ends. An event counts from the time at which its write
// was sent.
func (p *probe) run(ctx context.Context) error {
	defer p.events.Stop()
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	var writes sync.WaitGroup
	defer writes.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-p.events.ResultChan():
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !open || !ok {
				return fmt.Errorf("the probe's watch ended: %v", event)
			}
			if sent, err := strconv.ParseInt(cm.Data["sent"], 10, 64); err == nil {
				p.add(time.Since(time.Unix(0, sent)))
			}
		case <-tick.C:
			writes.Go(func() {
				request, cancel := finishing(ctx)
				defer cancel()
				patch := fmt.Appendf(nil, `{"data":{"sent":"%d"}}`, time.Now().UnixNano())
				_, err := p.clientset.CoreV1().ConfigMaps(probeNamespace).Patch(request, probeName, types.MergePatchType, patch,
					metav1.PatchOptions{})
				p.note(request, err)
			})
		}
	}
}

func (p *probe) add(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delays = append(p.delays, d)
}

// percentiles are of durations, in seconds.
type percentiles struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func (p *probe) percentiles() percentiles {
	p.mu.Lock()
	defer p.mu.Unlock()
	return percentilesOf(p.delays)
}

func percentilesOf(values []time.Duration) percentiles {
	if len(values) == 0 {
		return percentiles{}
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(q float64) float64 { return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Seconds() }
	return percentiles{len(sorted), at(0.5), at(0.99), sorted[len(sorted)-1].Seconds()}
}
