package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watchSize is how many watchers follow all pods, and how many patches they are
// to see.
type watchSize struct{ watchers, patches int }

// watchers measures how fast changes reach many watchers: the events that all
// of them got together, a second, from the first patch to the last event.
func (b *bench) watchers(ctx context.Context, t *target) error {
	size := b.watch
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	revision, err := t.client.revision(ctx)
	if err != nil {
		return err
	}
	var open, seen sync.WaitGroup
	errs := make(chan error, size.watchers)
	for range size.watchers {
		open.Add(1)
		seen.Go(func() {
			if err := follow(ctx, t.client, "/api/v1/pods?watch=1&resourceVersion="+revision, size.patches, open.Done); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	open.Wait()
	err = b.measured(t, fmt.Sprintf("events to %d watchers", size.watchers), func() (float64, int, error) {
		start := time.Now()
		_, made, err := rate(ctx, 16, 5*time.Minute, t.patches, size.patches, func(ctx context.Context, n int) error {
			return t.client.patch(ctx, podPath(n%t.pods)+"/status", status(n))
		})
		t.patches += made + 16
		if err != nil {
			cancel()
		}
		seen.Wait()
		events := made * size.watchers
		return float64(events) / time.Since(start).Seconds(), events, err
	})
	cancel()
	seen.Wait()
	close(errs)
	for e := range errs {
		err = e
	}
	return err
}

// revision is one that pods can be watched from.
func (c *client) revision(ctx context.Context) (string, error) {
	res, err := c.open(ctx, http.MethodGet, podsPath("limit", "1"), "", nil, http.StatusOK)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var list metav1.PartialObjectMetadataList
	err = json.NewDecoder(res.Body).Decode(&list)
	return list.ResourceVersion, err
}

// follow watches until it has seen a number of events.
func follow(ctx context.Context, c *client, path string, events int, opened func()) error {
	res, err := c.open(ctx, http.MethodGet, path, "", nil, http.StatusOK)
	opened()
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for range events {
		for more := true; more; {
			if _, more, err = lines.ReadLine(); err != nil {
				return fmt.Errorf("watch ended early: %w", err)
			}
		}
	}
	return nil
}
