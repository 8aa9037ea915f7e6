package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// phase measures one thing on one target.
type phase func(ctx context.Context, t *target) error

// sizes say how long and how much.
type sizes struct {
	pods   int
	period time.Duration
	lists  int
	rounds int
	idle   time.Duration
	watch  watchSize
}

func full() sizes {
	return sizes{pods: 10_000, period: 4 * time.Second, lists: 9, rounds: 3, idle: 8 * time.Second, watch: watchSize{200, 500}}
}

func short() sizes {
	return sizes{pods: 1_000, period: time.Second, lists: 3, rounds: 1, idle: 2 * time.Second, watch: watchSize{50, 100}}
}

func (b *bench) phases() []phase {
	phases := []phase{b.memory("memory, idle"), b.namespaces}
	for round := range b.rounds {
		phases = append(phases, b.podsUpTo(b.sizes.pods*(round+1)/b.rounds))
	}
	// Of what follows a faster server makes more, which is in its memory then.
	phases = append(phases, b.settle, b.memory("memory, with the pods"))
	for range b.rounds {
		phases = append(phases, b.creates(1), b.creates(64))
	}
	for range b.rounds {
		phases = append(phases, b.gets, b.list("list of all pods", "", "", b.lists),
			b.list("list by spec.nodeName", "fieldSelector", "spec.nodeName=node-7", 5*b.lists),
			b.list("list by label", "labelSelector", "app.kubernetes.io/name=app-7", b.lists),
			b.patches, b.watchers)
	}
	return append(phases, b.settle, b.memory("memory, after all"))
}

// measured adds a rate and the processor time a request.
func (b *bench) measured(t *target, name string, run func() (float64, int, error)) error {
	before, err := t.cpu()
	if err != nil {
		return err
	}
	perSecond, made, err := run()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	after, err := t.cpu()
	if err != nil {
		return err
	}
	b.figures.add(name, "/s", false, t.name, perSecond)
	b.figures.add(name+", CPU", "µs", true, t.name, float64((after-before).Microseconds())/float64(max(made, 1)))
	return nil
}

func (b *bench) settle(ctx context.Context, _ *target) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.idle):
		return nil
	}
}

func (b *bench) memory(name string) phase {
	return func(_ context.Context, t *target) error {
		server, beside, err := t.memory()
		if err != nil {
			return err
		}
		const mb = 1e6
		b.figures.add(name, "MB", true, t.name, float64(server)/mb)
		b.figures.add(name+", with etcd", "MB", true, t.name, float64(server+beside)/mb)
		return nil
	}
}

func (b *bench) namespaces(ctx context.Context, t *target) error {
	for i := range namespaces {
		if err := t.client.create(ctx, "/api/v1/namespaces", namespace(i)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) creates(clients int) phase {
	return func(ctx context.Context, t *target) error {
		return b.measured(t, "create ConfigMap, "+clientsOf(clients), func() (float64, int, error) {
			perSecond, made, err := rate(ctx, clients, b.period, t.maps, 0, func(ctx context.Context, n int) error {
				return t.client.create(ctx, "/api/v1/namespaces/"+namespaceName(n)+"/configmaps", configMap(fmt.Sprintf("map-%d", n)))
			})
			t.maps += made + clients
			return perSecond, made, err
		})
	}
}

// podsUpTo creates pods until there are so many.
func (b *bench) podsUpTo(most int) phase {
	return func(ctx context.Context, t *target) error {
		first := t.pods
		bodies := make([][]byte, most-first)
		for n := range bodies {
			bodies[n] = pod(first + n)
		}
		return b.measured(t, "create Pod, 64 clients", func() (float64, int, error) {
			perSecond, made, err := rate(ctx, 64, 10*time.Minute, first, len(bodies), func(ctx context.Context, n int) error {
				return t.client.create(ctx, "/api/v1/namespaces/"+namespaceName(n)+"/pods", bodies[n-first])
			})
			t.pods += made
			return perSecond, made, err
		})
	}
}

func (b *bench) gets(ctx context.Context, t *target) error {
	return b.measured(t, "get Pod, 64 clients", func() (float64, int, error) {
		return rate(ctx, 64, b.period, 0, 0, func(ctx context.Context, _ int) error {
			_, err := t.client.get(ctx, podPath(rand.IntN(t.pods)))
			return err
		})
	})
}

func (b *bench) list(name, key, selector string, n int) phase {
	return func(ctx context.Context, t *target) error {
		took, err := times(n, func() error {
			size, err := t.client.get(ctx, podsPath(key, selector))
			if err == nil && size < 1000 {
				err = fmt.Errorf("%s is only %d bytes", name, size)
			}
			return err
		})
		if err != nil {
			return err
		}
		b.figures.add(name, "ms", true, t.name, float64(took.Microseconds())/1000)
		return nil
	}
}

func (b *bench) patches(ctx context.Context, t *target) error {
	return b.measured(t, "patch Pod status, 64 clients", func() (float64, int, error) {
		// A pod each client at a time: no conflicts.
		perSecond, made, err := rate(ctx, 64, b.period, t.patches, 0, func(ctx context.Context, n int) error {
			return t.client.patch(ctx, podPath(n%t.pods)+"/status", status(n))
		})
		t.patches += made + 64
		return perSecond, made, err
	})
}

func clientsOf(n int) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", n)
}
