package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"byre/e2e/servers"
)

// replicaCount is the number of byre processes that share the database.
const replicaCount = 3

// replicaPhases measure several byre processes on one PostgreSQL: writes to all of them,
// and the time until a write to one is visible at another.
func (b *bench) replicaPhases(context.Context) ([]phase, error) {
	replicas := map[*target][]*target{}
	name := fmt.Sprintf("%d replicas", replicaCount)
	return []phase{b.setUp(),
		{name: "start the replicas", isSetup: true, run: func(ctx context.Context, t *target) error {
			if t.name != onPostgres {
				return nil
			}
			var err error
			replicas[t], err = b.startReplicas(ctx, t)
			return err
		}},
		{name: name, run: func(ctx context.Context, t *target) error {
			for range b.Rounds {
				if t.name == onPostgres {
					if err := b.measureReplicas(ctx, t, replicas[t]); err != nil {
						return err
					}
				}
			}
			return nil
		}}}, nil
}

// startReplicas starts more processes on the target's database. Replicas share their keys
// and certificates.
func (b *bench) startReplicas(ctx context.Context, first *target) ([]*target, error) {
	all := []*target{first}
	for i := 1; i < replicaCount; i++ {
		dir := filepath.Join(b.dir, fmt.Sprintf("replica-%d", i))
		if err := os.CopyFS(filepath.Join(dir, "pki"),
			os.DirFS(filepath.Join(filepath.Dir(first.server.Kubeconfig), "pki"))); err != nil {
			return nil, err
		}
		t := &target{name: first.name,
			start: servers.Byre{Dir: dir, Endpoint: b.endpoint, Args: []string{withoutServiceAccounts}}.Start}
		b.stops = append(b.stops, t.stop)
		if err := t.open(ctx); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func (b *bench) measureReplicas(ctx context.Context, t *target, all []*target) error {
	for _, n := range []int{1, len(all)} {
		name := fmt.Sprintf("create ConfigMap, %d clients, %d replicas", clients, n)
		if n == 1 {
			name = fmt.Sprintf("create ConfigMap, %d clients, 1 replica of %d", clients, len(all))
		}
		done, err := closedLoop{clients: clients, period: 2 * b.Period, first: t.maps}.run(ctx,
			func(ctx context.Context, client, i int) error {
				body, err := encode(configMap(fmt.Sprintf("map-%d", i)), jsonType)
				if err != nil {
					return err
				}
				return all[client%n].admin.create(ctx, "/api/v1/namespaces/"+namespaceName(i)+"/configmaps", body)
			})
		if err != nil {
			return err
		}
		t.maps += done.requests + clients
		b.add(name, "/s", false, t.name, done.perSecond())
		b.addDuration(name+", p99", t.name, percentile(done.latencies, 0.99))
	}
	delays, err := b.propagation(ctx, t, all[0], all[len(all)-1])
	b.addDuration("event of a write to another replica, p50", t.name, percentile(delays, 0.5))
	b.addDuration("event of a write to another replica, p99", t.name, percentile(delays, 0.99))
	return err
}

// propagation creates ConfigMaps on one replica and watches them on another.
func (b *bench) propagation(ctx context.Context, t, to, from *target) ([]time.Duration, error) {
	const path, events = "/api/v1/namespaces/bench-0/configmaps", 200
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	revision, err := from.admin.revision(ctx, path)
	if err != nil {
		return nil, err
	}
	group, err := startWatchers(ctx, from.admin, 1, events, request{path: path + "?watch=1&resourceVersion=" + revision})
	if err != nil {
		return nil, err
	}
	first := t.maps
	t.maps += events
	err = openLoop(ctx, eventsPerSecond, events, func(ctx context.Context, n int) error {
		body, err := encode(configMap(fmt.Sprintf("map-%d-%s%0*d", first+n, sentMark, sentDigits, time.Now().UnixNano())),
			jsonType)
		if err != nil {
			return err
		}
		_, err = to.admin.send(ctx,
			request{method: http.MethodPost, path: path, contentType: jsonType, body: body, want: http.StatusCreated})
		return err
	})
	if err != nil {
		return nil, err
	}
	return group.wait()
}
