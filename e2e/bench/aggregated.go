package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/e2e/servers"
)

const (
	flunders = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders"
	// aggregatedWatchers follow all flunders, of which aggregatedEvents are made.
	aggregatedWatchers = 100
	aggregatedEvents   = 100
)

func (b *bench) aggregatedPhases() []phase {
	phases := []phase{b.reachable}
	for range b.rounds {
		phases = append(phases, b.gateway, b.aggregatedWatches)
	}
	return phases
}

// putBehind starts the sample API server behind the target, and beside it a bare
// proxy to it; stop is to be called whatever becomes of them.
func (t *target) putBehind(ctx context.Context, dir string) (stop func() error, err error) {
	stop = func() error { return nil }
	address, err := machineAddress()
	if err != nil {
		return stop, err
	}
	if t.wardle, err = servers.StartWardle(ctx, t.server, dir, address); err != nil {
		return stop, fmt.Errorf("start the server behind %s: %w", t.name, err)
	}
	stop = func() error { t.wardle.Close(); return nil }
	if t.direct, err = newClient(t.wardle.Server); err != nil {
		return stop, err
	}
	var stopBare func() error
	if t.bare, stopBare, err = startBareProxy(ctx, t.wardle.Server); err != nil {
		return stop, err
	}
	return func() error { t.wardle.Close(); return stopBare() }, nil
}

// machineAddress is one that an endpoint may have.
func machineAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && network.IP.To4() != nil {
			return network.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no address but its loopback one")
}

// reachable waits until the server behind is reached, and makes what is read.
func (b *bench) reachable(ctx context.Context, t *target) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := t.client.get(ctx, flunders)
		if err == nil {
			return t.client.create(ctx, flunders, flunder("read"))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func flunder(name string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":{"reference":"other"}}`, name)
}

// gateway measures what a request takes on its way through the server.
func (b *bench) gateway(ctx context.Context, t *target) error {
	ways := []struct {
		name   string
		client *client
		took   []time.Duration
	}{{name: "direct", client: t.direct}, {name: "through a bare proxy", client: t.bare}, {name: "through the server", client: t.client}}
	before, err := t.cpu()
	if err != nil {
		return err
	}
	for begun := time.Now(); time.Since(begun) < 2*b.period; {
		for i := range ways {
			start := time.Now()
			if _, err := ways[i].client.get(ctx, flunders+"/read"); err != nil {
				return err
			}
			ways[i].took = append(ways[i].took, time.Since(start))
		}
	}
	after, err := t.cpu()
	if err != nil {
		return err
	}
	median := func(i int) time.Duration {
		slices.Sort(ways[i].took)
		return ways[i].took[len(ways[i].took)/2]
	}
	direct, bare, through := median(0), median(1), median(2)
	b.figures.add("get Flunder, direct", "ms", true, t.name, ms(direct))
	b.figures.add("get Flunder, through the server", "ms", true, t.name, ms(through))
	b.figures.add("added by the server", "µs", true, t.name, float64((through - direct).Microseconds()))
	b.figures.add("added by a bare proxy in its place", "µs", true, t.name, float64((bare - direct).Microseconds()))
	b.figures.add("added by the server, CPU", "µs", true, t.name, float64((after-before).Microseconds())/float64(len(ways[2].took)))
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// aggregatedWatches measures how fast changes reach watchers, through the server
// and directly.
func (b *bench) aggregatedWatches(ctx context.Context, t *target) error {
	for _, way := range []struct {
		name   string
		client *client
	}{{"direct", t.direct}, {"through the server", t.client}} {
		perSecond, err := b.fanOut(ctx, t, way.client)
		if err != nil {
			return err
		}
		b.figures.add(fmt.Sprintf("events to %d watchers, %s", aggregatedWatchers, way.name), "/s", false, t.name, perSecond)
	}
	return nil
}

func (b *bench) fanOut(ctx context.Context, t *target, from *client) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	revision, err := from.flunderRevision(ctx)
	if err != nil {
		return 0, err
	}
	var open, seen sync.WaitGroup
	errs := make(chan error, aggregatedWatchers)
	for range aggregatedWatchers {
		open.Add(1)
		seen.Go(func() {
			if err := follow(ctx, from, flunders+"?watch=1&resourceVersion="+revision, aggregatedEvents, open.Done); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	open.Wait()
	start := time.Now()
	_, made, err := rate(ctx, 4, time.Minute, t.maps, aggregatedEvents, func(ctx context.Context, n int) error {
		return t.direct.create(ctx, flunders, flunder(fmt.Sprintf("made-%d", n)))
	})
	t.maps += made
	if err != nil {
		cancel()
	}
	seen.Wait()
	took := time.Since(start)
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return float64(made*aggregatedWatchers) / took.Seconds(), err
}

// flunderRevision is one that flunders can be watched from.
func (c *client) flunderRevision(ctx context.Context) (string, error) {
	res, err := c.open(ctx, http.MethodGet, flunders+"?limit=1", "", nil, http.StatusOK)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var list metav1.PartialObjectMetadataList
	err = json.NewDecoder(res.Body).Decode(&list)
	return list.ResourceVersion, err
}
