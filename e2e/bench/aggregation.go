package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"byre/e2e/servers"
)

const (
	flunders = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders"
	// aggregatedWatchers is the number of watchers of all flunders, and aggregatedEvents
	// the number of changes that each of them gets.
	aggregatedWatchers = 100
	aggregatedEvents   = 200
	// gatewayClients is the number of concurrent clients.
	gatewayClients = 4
)

func (b *bench) aggregationPhases(context.Context) ([]phase, error) {
	phases := []phase{{name: "start the server behind", isSetup: true, run: b.putBehind}}
	return append(phases, b.repeated(func() []phase {
		return []phase{{name: "request through the aggregator", run: b.gateway},
			{name: "events through the aggregator", run: b.aggregatedWatches}}
	})...), nil
}

// putBehind starts the sample API server behind the target, and a bare proxy to it.
func (b *bench) putBehind(ctx context.Context, t *target) error {
	address, err := servers.MachineAddress()
	if err != nil {
		return err
	}
	if t.wardle, err = servers.StartWardle(ctx, t.server, filepath.Join(b.dir, "behind "+t.name), address); err != nil {
		return fmt.Errorf("start the server behind %s: %w", t.name, err)
	}
	b.stops = append(b.stops, func() error { t.wardle.Close(); return nil })
	if t.direct, err = newClient(t.wardle.Server, servers.AdminToken); err != nil {
		return err
	}
	if t.proxy, err = startReference(ctx, bareProxyFlag, t.wardle.URL); err != nil {
		return err
	}
	b.stops = append(b.stops, t.proxy.stop)
	return t.awaitBehind(ctx)
}

// awaitBehind waits until the target reaches the sample API server, and creates the objects
// that are read.
func (t *target) awaitBehind(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := t.admin.get(ctx, flunders)
		if err == nil {
			return t.admin.create(ctx, flunders, flunder("read"))
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

func flunder(name string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":{"reference":%q}}`, name, name)
}

// gateway measures a request that is sent to the sample API server directly, through the
// bare proxy, and through the target, and the processor time of the proxy and of the
// target.
func (b *bench) gateway(ctx context.Context, t *target) error {
	median := map[string]time.Duration{}
	for _, way := range []struct {
		name   string
		client *client
		usage  func() (servers.Usage, error)
	}{
		{"directly", t.direct, nil},
		{"through a bare proxy", t.proxy.client, func() (servers.Usage, error) {
			return servers.ProcessUsage(t.proxy.pid())
		}},
		{"through the server", t.admin, t.usage},
	} {
		var before, after servers.Usage
		var err error
		if way.usage != nil {
			if before, err = way.usage(); err != nil {
				return err
			}
		}
		done, err := closedLoop{clients: gatewayClients, period: 2 * b.Period}.run(ctx,
			func(ctx context.Context, _, _ int) error {
				_, err := way.client.get(ctx, flunders+"/read")
				return err
			})
		if err != nil {
			return err
		}
		median[way.name] = percentile(done.latencies, 0.5)
		b.addDuration("get Flunder, "+way.name, t.name, median[way.name])
		if way.usage != nil {
			if after, err = way.usage(); err != nil {
				return err
			}
			b.addCPU("get Flunder, CPU added "+way.name, &target{name: t.name}, after.CPU-before.CPU, 0, done.requests)
		}
	}
	b.addDuration("get Flunder, added by a bare proxy", t.name, median["through a bare proxy"]-median["directly"])
	b.addDuration("get Flunder, added by the server", t.name, median["through the server"]-median["directly"])
	return nil
}

// aggregatedWatches measures how fast changes reach watchers, through the target and
// directly.
func (b *bench) aggregatedWatches(ctx context.Context, t *target) error {
	for _, way := range []struct {
		name   string
		client *client
	}{{"directly", t.direct}, {"through the server", t.admin}} {
		perSecond, err := b.fanOut(ctx, t, way.client)
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("events to %d watchers, %s", aggregatedWatchers, way.name), "/s", false, t.name, perSecond)
	}
	return nil
}

// fanOut returns how many events all watchers together get in a second.
func (b *bench) fanOut(ctx context.Context, t *target, from *client) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	revision, err := from.revision(ctx, flunders)
	if err != nil {
		return 0, err
	}
	group, err := startWatchers(ctx, from, aggregatedWatchers, aggregatedEvents,
		request{path: flunders + "?watch=1&resourceVersion=" + revision})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	done, err := closedLoop{clients: gatewayClients, first: t.maps, requests: aggregatedEvents}.run(ctx,
		func(ctx context.Context, _, n int) error {
			return t.direct.create(ctx, flunders,
				flunder(fmt.Sprintf("made-%d-%s%0*d", n, sentMark, sentDigits, time.Now().UnixNano())))
		})
	t.maps += done.requests
	if err != nil {
		return 0, err
	}
	delays, err := group.wait()
	return float64(len(delays)) / time.Since(start).Seconds(), err
}
