package robustness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/robustness/check"
	"byre/e2e/robustness/history"
	"byre/e2e/robustness/tables"
	"byre/e2e/robustness/traffic"
	"byre/e2e/servers"
)

const (
	// patience bounds each wait of an episode, which fails when it ends.
	patience = 2 * time.Minute
	// calm is the number of writes before a fault and after it.
	calm = 60
)

// Result is the outcome of one fault.
type Result struct {
	Fault, Database string
	// Operations, Acknowledged (writes) and Events are of the whole episode.
	Operations, Acknowledged, Events int
	// Errors are what clients got from the fault until every replica acknowledged a write, by kind.
	Errors map[string]int
	// Unavailable is the longest time in which no write was acknowledged; Recovery the time
	// from the end of the fault until every replica had acknowledged a write.
	// Informers is the time from the last write until all informers had what the
	// database has.
	Unavailable, Recovery, Informers time.Duration
	Violations                       []string
	// Lost counts the acknowledged writes that were lost.
	Lost int `json:",omitempty"`
	// LostFor is how long before the end of the old database the first of them was acknowledged.
	LostFor time.Duration `json:",omitempty"`
}

// episode is one fault under traffic.
type episode struct {
	*Env
	fault     Fault
	namespace string
	endpoints []traffic.Endpoint
}

// run starts the traffic, injects the fault, and checks the history.
func (p *episode) run(ctx context.Context, options traffic.Options) (*Result, *history.History, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	initial, err := p.begin(ctx)
	if err != nil {
		return nil, nil, err
	}
	p.recorder = history.NewRecorder()
	following, stopFollowing := context.WithCancel(ctx)
	busy, stopTraffic := context.WithCancel(ctx)
	var clients, follower sync.WaitGroup
	clients.Go(func() { traffic.Run(busy, p.recorder, p.endpoints, options) })
	follower.Go(func() { tables.Follow(following, p.Database.connect, p.recorder, p.namespace, initial) })

	result := &Result{Fault: p.fault.Name, Database: p.Database.Kind}
	err = p.breakThings(ctx, result)
	stopTraffic()
	clients.Wait()
	if err == nil {
		err = p.readAtEnd(ctx)
	}
	stopFollowing()
	follower.Wait()
	h := p.recorder.History(initial)
	if err != nil {
		return result, h, err
	}
	p.judge(ctx, h, result)
	return result, h, nil
}

// begin makes the namespace and returns a revision at which it is empty.
func (p *episode) begin(ctx context.Context) (int64, error) {
	for _, r := range p.Replicas {
		config := r.Server.Config(servers.AdminToken)
		if r == p.Env.serving()[0] {
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return 0, err
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}
			if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil &&
				!apierrors.IsAlreadyExists(err) {
				return 0, err
			}
		}
		for name, contentType := range map[string]string{"JSON": jsonType, "protobuf": protobufType} {
			client, err := newRESTClient(config, contentType, p.namespace)
			if err != nil {
				return 0, err
			}
			p.endpoints = append(p.endpoints, traffic.Endpoint{Name: r.Name + " " + name, Replica: r.Name, Client: client})
		}
	}
	if p.machines != nil { // a copy without the namespace would take no writes
		if err := p.Pause(ctx, copied); err != nil {
			return 0, err
		}
	}
	page, err := p.serving()[0].Client.List(ctx, traffic.ListOptions{})
	return page.Revision, err
}

// serving are the endpoints of the replicas that serve.
func (p *episode) serving() (all []traffic.Endpoint) {
	for _, e := range p.endpoints {
		if slices.ContainsFunc(p.Env.serving(), func(r *Replica) bool { return r.Name == e.Replica }) {
			all = append(all, e)
		}
	}
	return all
}

// breakThings injects the fault and waits until every replica goes on.
func (p *episode) breakThings(ctx context.Context, result *Result) error {
	if err := p.AwaitWrites(ctx, calm); err != nil {
		return err
	}
	begin := p.recorder.Now()
	if err := p.fault.Inject(ctx, p.Env); err != nil {
		return fmt.Errorf("injecting: %w", err)
	}
	lifted := p.recorder.Now()
	recovered, err := p.awaitAll(ctx, lifted)
	if err != nil {
		result.Violations = append(result.Violations, err.Error())
		return nil
	}
	result.Recovery = recovered - lifted
	after := calm
	if loss := p.recorder.Loss(); loss != nil {
		if loss.First, err = traffic.ListAtEnd(ctx, p.recorder, p.serving()[0]); err != nil {
			return err
		}
		after = 3 * calm // what comes after it is judged as a history of its own
	}
	if err := p.AwaitWrites(ctx, after); err != nil {
		return err
	}
	result.summarize(p.recorder.Operations(), begin, recovered)
	return nil
}

// awaitAll waits until each replica has acknowledged a write that was sent after a time.
func (p *episode) awaitAll(ctx context.Context, after time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, next := p.recorder.Writes()
		first := map[string]time.Duration{}
		for _, o := range p.recorder.Operations() {
			if !o.IsWrite() || o.Outcome != history.OK || o.Begin < after {
				continue
			}
			if at, known := first[o.Replica]; !known || o.End < at {
				first[o.Replica] = o.End
			}
		}
		if len(first) >= len(p.Env.serving()) {
			var last time.Duration
			for _, at := range first {
				last = max(last, at)
			}
			return last, nil
		}
		select {
		case <-ctx.Done():
			return 0,
				fmt.Errorf("%d of %d replicas acknowledge writes %v after the fault", len(first), len(p.Env.serving()), patience)
		case <-next:
		}
	}
}

// summarize says what clients saw from the fault's begin until all went on.
func (r *Result) summarize(operations []*history.Operation, begin, end time.Duration) {
	r.Errors = map[string]int{}
	var acknowledged []time.Duration
	for _, o := range operations {
		if o.Outcome == history.OK && o.IsWrite() {
			acknowledged = append(acknowledged, o.End)
		}
		if o.End < begin || o.Begin > end || o.Outcome == history.OK {
			continue
		}
		switch o.Error {
		case history.AlreadyExists, history.NotFound, history.Conflict:
		default:
			r.Errors[o.Error]++
		}
	}
	// Operations are in the order of their returns, but for those of one instant.
	last := begin
	for _, at := range acknowledged {
		if at > last {
			r.Unavailable = max(r.Unavailable, min(at, end)-last)
			last = at
		}
	}
}

// judge checks the history and the state at the end.
func (p *episode) judge(ctx context.Context, h *history.History, result *Result) {
	result.Operations = len(h.Operations)
	for _, o := range h.Operations {
		if o.Outcome != history.OK || !o.IsWrite() {
			continue
		}
		result.Acknowledged++
		// A new epoch's revisions are far away. The old database may have acknowledged more after Loss.At.
		if h.Loss != nil && o.Result.Revision > h.Loss.Common && o.Result.Revision < h.Loss.Common+check.SameEpoch {
			result.Lost++
			result.LostFor = max(result.LostFor, h.Loss.At-o.End)
		}
	}
	if p.machines != nil {
		result.Violations = append(result.Violations, checkTurns(h.Operations)...)
		if losesNothing(p.Database.Kind) && result.Lost > 0 {
			result.Violations = append(result.Violations, fmt.Sprintf("%d acknowledged writes are lost", result.Lost))
		}
	}
	for _, w := range h.Watches {
		result.Events += len(w.Events)
	}
	// Without a first list the violation is that no replica has answered.
	if h.Loss == nil || h.Loss.First != nil {
		if len(h.Log.Covered) == 0 {
			result.Violations = append(result.Violations, "the test could not read the database's log")
		}
		for _, v := range check.History(h, patience) {
			result.Violations = append(result.Violations, v.String())
		}
	}
	for _, err := range p.compareAtEnd(ctx, result) {
		result.Violations = append(result.Violations, check.Equal+": "+err.Error())
	}
}
