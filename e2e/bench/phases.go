package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clients is the default number of clients of a load, mostClients the highest number.
const (
	clients     = 64
	mostClients = 256
)

// user is the user that sends a load.
type user struct {
	// suffix is the end of the names of the user's measurements.
	suffix string
	client func(*target) *client
}

var (
	admin    = user{"", func(t *target) *client { return t.admin }}
	ordinary = user{", ordinary user", func(t *target) *client { return t.ordinary }}
)

func (b *bench) standardPhases(context.Context) ([]phase, error) {
	phases := []phase{b.memory("memory, idle", b.Settle), b.setUp()}
	phases = append(phases, b.fill()...)
	phases = append(phases, b.memory("memory, with the Pods", b.Settle))
	phases = append(phases, b.repeated(func() []phase {
		return append([]phase{b.createConfigMaps(1), b.createConfigMaps(clients),
			b.getPods(asJSON, admin), b.getPods(asProtobuf, admin), b.getPods(asProtobuf, ordinary),
			b.updateLeases(admin, clients), b.updateLeases(ordinary, clients)}, b.listPhases()...)
	})...)
	phases = append(phases, b.changeEverything()...)
	phases = append(phases, b.repeated(func() []phase { return []phase{b.watchPods(asJSON), b.watchPods(asProtobuf)} })...)
	phases = append(phases, b.memory("memory, after everything", b.Settle))
	for _, f := range listRepresentations {
		phases = append(phases, b.firstListAfterStart(f))
	}
	return append(phases, b.repeated(func() []phase {
		return []phase{b.startAgain("ready after a crash", (*target).crash)}
	})...), nil
}

// freshPhases measure the first minute of a cluster: PostgreSQL has no statistics then, and keeps the plans that it
// made while the tables were empty.
func (b *bench) freshPhases(context.Context) ([]phase, error) {
	return []phase{
		b.setUp(), b.createConfigMaps(clients), b.createPodsUpTo(b.Pods/2, 0), b.createPodsUpTo(b.Pods, 1),
		b.patchPods(0, 0), b.updateLeases(admin, clients), b.createConfigMaps(clients),
	}, nil
}

// sendLoad runs a load and records its rate, its latency, and the processor time of a
// request.
func (b *bench) sendLoad(
	ctx context.Context, t *target, name string, l closedLoop, send func(ctx context.Context, client, n int) error,
) (load, error) {
	before, storeBefore, err := t.used()
	if err != nil {
		return load{}, err
	}
	done, err := l.run(ctx, send)
	if err != nil {
		return load{}, err
	}
	after, storeAfter, err := t.used()
	if err != nil {
		return load{}, err
	}
	b.add(name, "/s", false, t.name, done.perSecond())
	b.addDuration(name+", p50", t.name, percentile(done.latencies, 0.5))
	b.addDuration(name+", p99", t.name, percentile(done.latencies, 0.99))
	b.addCPU(name+", CPU", t, after.CPU-before.CPU, storeAfter.CPU-storeBefore.CPU, done.requests)
	return done, nil
}

// addCPU records the processor time of one of n requests: of the server together with its
// database, and of the database's processes alone.
func (b *bench) addCPU(name string, t *target, server, store time.Duration, n int) {
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(max(n, 1)) }
	b.add(name, "µs", true, t.name, each(server+store))
	if t.storeUsage != nil {
		b.add(name+" of the store", "µs", true, t.name, each(store))
	}
}

// memory sends no request for some time and records the servers' memory.
func (b *bench) memory(name string, idle time.Duration) phase {
	haveRested := false
	return phase{name: name, run: func(ctx context.Context, t *target) error {
		if err := b.rest(ctx, idle, &haveRested); err != nil {
			return err
		}
		server, store, err := t.used()
		if err != nil {
			return err
		}
		b.add(name, "MB", true, t.name, float64(server.Memory)/1e6)
		b.add(name+", of mapped files", "MB", true, t.name, float64(server.FileMemory)/1e6)
		b.add(name+", with the store", "MB", true, t.name, float64(server.Memory+store.Memory)/1e6)
		return nil
	}}
}

// rest waits for some time without sending requests. A phase calls it for each server: only
// the first call waits, because all servers are idle at the same time.
func (b *bench) rest(ctx context.Context, d time.Duration, haveRested *bool) error {
	if *haveRested {
		return nil
	}
	*haveRested = true
	return sleep(ctx, d)
}

// setUp creates the namespaces, the Leases, and the rights of the ordinary user.
func (b *bench) setUp() phase {
	return phase{name: "set up", isSetup: true, run: func(ctx context.Context, t *target) error {
		create := func(path string, body []byte, err error) error {
			if err != nil {
				return err
			}
			return t.admin.create(ctx, path, body)
		}
		for i := range namespaces {
			body, err := encode(namespace(i), jsonType)
			if err := create("/api/v1/namespaces", body, err); err != nil {
				return err
			}
		}
		for i := range mostClients {
			body, err := encode(lease(leaseName(i)), jsonType)
			if err := create(leasesPath, body, err); err != nil {
				return err
			}
		}
		rights := ordinaryRights()
		for i, resource := range []string{"clusterroles", "clusterrolebindings"} {
			body, err := encode(rights[i], jsonType)
			if err := create("/apis/rbac.authorization.k8s.io/v1/"+resource, body, err); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (b *bench) createConfigMaps(clients int) phase {
	name := fmt.Sprintf("create ConfigMap, %d clients", clients)
	if clients == 1 {
		name = "create ConfigMap, 1 client"
	}
	return phase{name: name, runsOnEmpty: true, run: func(ctx context.Context, t *target) error {
		done, err := b.sendLoad(ctx, t, name, closedLoop{clients: clients, period: b.Period, first: t.maps},
			func(ctx context.Context, _, n int) error {
				body, err := encode(configMap(fmt.Sprintf("map-%d", n)), jsonType)
				if err != nil {
					return err
				}
				return t.admin.create(ctx, "/api/v1/namespaces/"+namespaceName(n)+"/configmaps", body)
			})
		t.maps += done.requests + clients
		return err
	}}
}

func (b *bench) getPods(f representation, by user) phase {
	name := fmt.Sprintf("get Pod, %s, %d clients%s", f.name, clients, by.suffix)
	return phase{name: name, runsOnEmpty: true, run: func(ctx context.Context, t *target) error {
		_, err := b.sendLoad(ctx, t, name, closedLoop{clients: clients, period: b.Period},
			func(ctx context.Context, _, _ int) error {
				_, err := by.client(t).send(ctx,
					request{method: http.MethodGet, path: podPath(rand.IntN(b.Pods)), accept: f.accept})
				return err
			})
		return err
	}}
}

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/bench-0/leases"

func leaseName(i int) string { return fmt.Sprintf("node-%d", i) }

// updateLeases makes every client renew a Lease of its own, as kubelets do.
func (b *bench) updateLeases(by user, clients int) phase {
	name := fmt.Sprintf("update Lease, protobuf, %d clients%s", clients, by.suffix)
	return phase{name: name, runsOnEmpty: true, run: func(ctx context.Context, t *target) error {
		leases := make([]*coordinationv1.Lease, clients)
		for i := range leases {
			leases[i] = lease(leaseName(i))
			if t.server == nil {
				continue
			}
			body, err := by.client(t).read(ctx,
				request{method: http.MethodGet, path: leasesPath + "/" + leaseName(i), accept: protobufType})
			if err != nil {
				return err
			}
			if err := decodeInto(body, leases[i]); err != nil {
				return err
			}
		}
		_, err := b.sendLoad(ctx, t, name, closedLoop{clients: clients, period: b.Period},
			func(ctx context.Context, client, _ int) error {
				l := leases[client]
				l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
				body, err := encode(l, protobufType)
				if err != nil {
					return err
				}
				answer, err := by.client(t).read(ctx,
					request{method: http.MethodPut, path: leasesPath + "/" + l.Name, accept: protobufType, contentType: protobufType,
						body: body})
				if err != nil || t.server == nil {
					return err
				}
				*l = coordinationv1.Lease{}
				return decodeInto(answer, l)
			})
		return err
	}}
}

// firstListAfterStart restarts the server and lists all Pods once.
func (b *bench) firstListAfterStart(f representation) phase {
	name := "first list of all Pods after a start, " + f.name
	return phase{name: name, run: func(ctx context.Context, t *target) error {
		if err := t.restart(ctx); err != nil {
			return err
		}
		b.addDuration("ready after a restart", t.name, t.server.StartTime)
		if err := awaitQuiet(ctx, []*target{t}); err != nil {
			return err
		}
		return b.measureList(ctx, t, name, request{accept: f.accept, path: podsPath("", "")}, 1)
	}}
}

// startAgain ends and starts the servers, except those that it is to leave out, and measures
// how long each start takes.
func (b *bench) startAgain(name string, again func(*target, context.Context) error, except ...string) phase {
	return phase{name: name, run: func(ctx context.Context, t *target) error {
		if slices.Contains(except, t.name) {
			return nil
		}
		if err := again(t, ctx); err != nil {
			return err
		}
		b.addDuration(name, t.name, t.server.StartTime)
		return nil
	}}
}
