package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"byre/sqlstore/storetest"
)

// costWriters update a ConfigMap each, costWrites times in one measurement.
const costWriters, costWrites = 4, 750

// watchCosts are the watches that TestHistory_WatchesCostWrites compares, with their paths.
var watchCosts = []struct{ name, path string }{
	{"no watch", ""},
	{"a watch of changes that selects none",
		"/apis/history.byre.dev/v1/namespaces/default/changes?fieldSelector=object.name%3Dnone&"},
	{"a watch of the ConfigMaps", "/api/v1/namespaces/default/configmaps?"},
	{"a watch of changes", "/apis/history.byre.dev/v1/namespaces/default/changes?"},
}

// TestHistory_WatchesCostWrites measures updates beside each of watchCosts, BYRE_WATCH_COST times in
// turns. It reports the median of the ratios to updates without a watch, and their middle half, for the
// processor time of the server and for the duration.
func TestHistory_WatchesCostWrites(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("BYRE_WATCH_COST"))
	if err != nil {
		t.Skip("BYRE_WATCH_COST is not a number of rounds")
	}
	for _, kind := range []string{"sqlite", "postgres"} { // one after the other
		t.Run(kind, func(t *testing.T) { compareWatchCosts(t, rounds, databases()[kind](t)...) })
	}
}

func compareWatchCosts(t *testing.T, rounds int, flags ...string) {
	server := startServer(t, t.TempDir(), append(flags, "--controllers=")...)
	m := &costMeter{T: t, server: server, config: server.config(t)}
	m.config.QPS = -1
	m.maps = kubernetes.NewForConfigOrDie(m.config).CoreV1().ConfigMaps("default")
	for i := range costWriters {
		made, err := m.maps.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)},
				Data: map[string]string{"text": strings.Repeat("x", 1000)}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.objects = append(m.objects, made)
	}
	for i := range watchCosts {
		m.measure(i)
	}
	used, took := make([][]float64, len(watchCosts)), make([][]float64, len(watchCosts))
	for round := range rounds {
		cpu, wall := make([]time.Duration, len(watchCosts)), make([]time.Duration, len(watchCosts))
		for n := range watchCosts { // another one first each time, so that what changes with time affects all alike
			kind := (n + round) % len(watchCosts)
			cpu[kind], wall[kind] = m.measure(kind)
		}
		t.Logf("processor time: %v; duration: %v", cpu, wall)
		for kind := range watchCosts {
			used[kind] = append(used[kind], float64(cpu[kind])/float64(cpu[0]))
			took[kind] = append(took[kind], float64(wall[kind])/float64(wall[0]))
		}
	}
	for kind, watch := range watchCosts[1:] {
		for name, all := range map[string][][]float64{"processor time": used, "duration": took} {
			ratios := all[kind+1]
			slices.Sort(ratios)
			n := len(ratios)
			t.Logf("with %s the %s is %.3f times that without, the middle half %.3f to %.3f", watch.name, name, ratios[n/2],
				ratios[n/4], ratios[3*n/4])
		}
	}
}

// costMeter measures updates of a server.
type costMeter struct {
	*testing.T
	server  *serverProcess
	config  *rest.Config
	maps    typedcorev1.ConfigMapInterface
	objects []*corev1.ConfigMap
}

// measure makes updates, and returns the processor time of the server, and the duration of the updates.
// The time includes that of the watch, which has sent all of them when it returns.
func (m *costMeter) measure(kind int) (cpu, wall time.Duration) {
	m.Helper()
	var events *lineCounter
	if path := watchCosts[kind].path; path != "" {
		var stop func()
		events, stop = m.watch(path)
		defer stop()
	}
	used, begun := m.processorTime(), time.Now()
	var writing sync.WaitGroup
	for w := range m.objects {
		writing.Go(func() {
			for n := range costWrites {
				m.objects[w].Data["n"] = fmt.Sprint(n)
				updated, err := m.maps.Update(m.Context(), m.objects[w], metav1.UpdateOptions{})
				if err != nil {
					m.Error(err)
					return
				}
				m.objects[w] = updated
			}
		})
	}
	writing.Wait()
	wall = time.Since(begun)
	if events != nil && !strings.HasSuffix(watchCosts[kind].name, "selects none") {
		storetest.Eventually(m.T, "the watch sends all updates", func() bool {
			return events.Load() >= costWriters*costWrites
		})
	}
	return m.processorTime() - used, wall
}

// watch begins a watch of what comes.
func (m *costMeter) watch(path string) (events *lineCounter, stop func()) {
	m.Helper()
	now, err := m.maps.List(m.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		m.Fatal(err)
	}
	client, err := rest.HTTPClientFor(m.config)
	if err != nil {
		m.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		m.config.Host+path+"watch=1&resourceVersion="+now.ResourceVersion, nil)
	if err != nil {
		m.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		m.Fatal(err)
	}
	events = &lineCounter{}
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(events, response.Body) }) // until stop
	return events, func() {
		cancel()
		reading.Wait()
		_ = response.Body.Close()
	}
}

// processorTime returns what the server has used until now, in hundredths of a second.
func (m *costMeter) processorTime() time.Duration {
	m.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.server.cmd.Process.Pid))
	if err != nil {
		m.Fatal(err)
	}
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	sum := 0
	for _, field := range fields[11:13] { // utime and stime
		ticks, err := strconv.Atoi(field)
		if err != nil {
			m.Fatal(err)
		}
		sum += ticks
	}
	return time.Duration(sum) * 10 * time.Millisecond
}

// lineCounter counts lines: a watch sends an event on each.
type lineCounter struct{ atomic.Int64 }

func (c *lineCounter) Write(p []byte) (int, error) {
	c.Add(int64(bytes.Count(p, []byte("\n"))))
	return len(p), nil
}
