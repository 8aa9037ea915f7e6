package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"byre/e2e/document"
)

func main() {
	page := flag.String("page", "../docs/performance.md", "the page with the measurements, whose model is written anew")
	cluster := defaultCluster
	flag.Float64Var(&cluster.podsPerNode, "pods-per-node", cluster.podsPerNode, "Pods on each node")
	flag.DurationVar(&cluster.podLife, "pod-life", cluster.podLife,
		"how long a Pod exists on average before another takes its place")
	flag.Parse()
	if err := run(*page, cluster); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(page string, c cluster) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	costs, err := readCosts(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	table := costs.table(c)
	fmt.Print(table)
	return document.Update(page, "model", map[string]string{"nodes": table})
}

// cluster is what a cluster does, for each of its nodes.
type cluster struct {
	podsPerNode float64
	podLife     time.Duration
}

// defaultCluster has the most Pods a node that Kubernetes' own limits of scale name, 150,000 on 5,000
// nodes, and replaces each once a day.
var defaultCluster = cluster{podsPerNode: 30, podLife: 24 * time.Hour}

// A kubelet renews its Lease each leaseInterval and writes an unchanged status each statusInterval:
// the defaults of KubeletConfiguration (nodeLeaseDurationSeconds / 4, nodeStatusReportFrequency).
const (
	leaseInterval  = 10 * time.Second
	statusInterval = 5 * time.Minute
)

// What `make soak` counts for each Pod that a rollout replaces, without the requests of its nodes
// and probes: the Pod, its binding and Events are created; its status and those of the ReplicaSet,
// Deployment and EndpointSlice are written; both Pod and Events go.
const (
	createsPerPod = 4.0
	patchesPerPod = 2.4
	updatesPerPod = 2.6
	deletesPerPod = 3.0
)

// Who watches: a Pod's change goes to its node, the scheduler, and three informers of controllers; a
// Lease's to the controller of node lifecycle.
const (
	watchersOfPod   = 5.0
	watchersOfLease = 1.0
)

// cost is what one request takes.
type cost struct{ server, store time.Duration }

// costs are the measured costs of byre on PostgreSQL.
type costs struct {
	create, patch, update, delivery cost
	// lockRate is how many writes a second one writers' lock carries.
	lockRate float64
}

// readCosts reads the costs from the tables of docs/performance.md.
func readCosts(page string) (c costs, err error) {
	var problems []error
	read := func(row string, column int) string {
		for line := range strings.Lines(page) {
			cells := strings.Split(line, "|")
			if len(cells) > column && strings.TrimSpace(cells[1]) == row && !strings.Contains(line, "×") {
				return strings.TrimSpace(cells[column])
			}
		}
		problems = append(problems, fmt.Errorf("no row %q", row))
		return "0s"
	}
	duration := func(row string, column int) time.Duration {
		d, err := time.ParseDuration(strings.ReplaceAll(read(row, column), " ", ""))
		if err != nil {
			problems = append(problems, fmt.Errorf("row %q: %w", row, err))
		}
		return d
	}
	request := func(row string) cost {
		store := duration(row+" of the store", 4)
		return cost{server: duration(row, 4) - store, store: store}
	}
	c.create = request("create Pod, protobuf, 64 clients, ordinary user, CPU")
	c.patch = request("patch Pod status, strategic, 64 clients, ordinary user, CPU")
	c.update = request("update Lease, protobuf, 64 clients, ordinary user, CPU")
	c.delivery = request("events to 200 watchers, protobuf, CPU a delivery")
	if _, err := fmt.Sscanf(strings.ReplaceAll(read("one writers' lock, writes a second", 2), ",", ""), "%g",
		&c.lockRate); err != nil {
		problems = append(problems, fmt.Errorf("the writers' lock: %w", err))
	}
	return c, errors.Join(problems...)
}

// demand is what a cluster asks for, a second.
type demand struct {
	creates, patches, updates, deletes float64
	deliveries                         float64
}

func (c cluster) demand(nodes float64) demand {
	replaced := nodes * c.podsPerNode / c.podLife.Seconds()
	leases := nodes / leaseInterval.Seconds()
	d := demand{
		creates: replaced * createsPerPod,
		patches: replaced*patchesPerPod + nodes/statusInterval.Seconds(),
		updates: replaced*updatesPerPod + leases,
		deletes: replaced * deletesPerPod,
	}
	d.deliveries = leases*watchersOfLease +
		replaced*(createsPerPod+patchesPerPod+updatesPerPod+deletesPerPod)*watchersOfPod
	return d
}

func (d demand) writes() float64 { return d.creates + d.patches + d.updates + d.deletes }

// processors returns how many processors the servers and the database need.
func (c costs) processors(d demand) (server, store float64) {
	for _, part := range []struct {
		rate float64
		cost cost
	}{
		{d.creates, c.create},
		{d.patches, c.patch},
		{d.updates, c.update},
		{d.deletes, c.update}, // no measurement of its own: it reads and writes as an update does
		{d.deliveries, c.delivery},
	} {
		server += part.rate * part.cost.server.Seconds()
		store += part.rate * part.cost.store.Seconds()
	}
	return server, store
}

func (c costs) table(cl cluster) string {
	var b strings.Builder
	b.WriteString(
		"| nodes | Pods | Pods replaced a second | writes a second | events a second | processors, byre | processors, PostgreSQL | of the writers' lock |\n")
	b.WriteString("|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, nodes := range []float64{1000, 5000, 15_000, 40_000, 65_000, 130_000} {
		d := cl.demand(nodes)
		server, store := c.processors(d)
		fmt.Fprintf(&b, "| %.0f | %.0f | %.1f | %.0f | %.0f | %.2f | %.2f | %.1f %% |\n", nodes, nodes*cl.podsPerNode,
			nodes*cl.podsPerNode/cl.podLife.Seconds(), d.writes(), d.deliveries, server, store, 100*d.writes()/c.lockRate)
	}
	return b.String()
}
