package inprocess

import (
	"context"
	"errors"
	"sync"
	"time"

	"byre/e2e/robustness/check"
	"byre/e2e/robustness/history"
	"byre/e2e/robustness/tables"
	"byre/e2e/robustness/traffic"
)

// Round is a period of traffic, whose history is then judged.
type Round struct {
	Replicas []*Replica
	// Connect reads the database, past the stores.
	Connect func(context.Context) (*tables.Connection, error)
	// Namespace is one that no round had before.
	Namespace string
	// Traffic lasts For; During runs meanwhile.
	For     time.Duration
	During  func(ctx context.Context) error
	Options traffic.Options
}

// Run makes traffic and judges what clients saw.
func (r Round) Run(ctx context.Context) (*history.History, []check.Violation, error) {
	initial, err := r.revision(ctx)
	if err != nil {
		return nil, nil, err
	}
	recorder := history.NewRecorder()
	var endpoints []traffic.Endpoint
	for _, s := range r.Replicas {
		for name, isEncoded := range map[string]bool{"decoded": false, "encoded": true} {
			client := Client{Replica: s, Namespace: r.Namespace, Encoded: isEncoded}
			endpoints = append(endpoints, traffic.Endpoint{Name: s.Name + " " + name, Replica: s.Name, Client: client})
		}
	}
	busy, stop := context.WithTimeout(ctx, r.For)
	defer stop()
	following, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	var clients, follower sync.WaitGroup
	clients.Go(func() { traffic.Run(busy, recorder, endpoints, r.Options) })
	follower.Go(func() { tables.Follow(following, r.Connect, recorder, r.Namespace, initial) })
	if r.During != nil {
		err = r.During(busy)
	}
	clients.Wait()
	for _, e := range endpoints {
		_, listErr := traffic.ListAtEnd(ctx, recorder, e)
		err = errors.Join(err, listErr)
	}
	stopFollowing()
	follower.Wait()
	if err != nil {
		return nil, nil, err
	}
	h := recorder.History(initial)
	return h, check.History(h, time.Minute), nil
}

func (r Round) revision(ctx context.Context) (int64, error) {
	conn, err := r.Connect(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	revision, _, err := conn.Counters(ctx)
	return revision, err
}
