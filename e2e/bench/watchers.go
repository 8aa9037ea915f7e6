package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// eventsPerSecond is the rate of the changes that are watched.
	eventsPerSecond = 100
	// sentMark precedes, in the status of a Pod, the time at which the patch was sent, in
	// nanoseconds and sentDigits digits.
	sentMark   = "sent-at-"
	sentDigits = 19
)

// watchPods measures the delivery of changes, at a fixed rate, to many watchers: the delay
// from sending the patch to having read the event, and the processor time of a delivery,
// including that of the patches, and without it: less what as many patches take while nobody watches.
func (b *bench) watchPods(f representation) phase {
	name := fmt.Sprintf("events to %d watchers, %s", b.Watchers, f.name)
	return phase{name: name, runsOnEmpty: true, run: func(ctx context.Context, t *target) error {
		events := int(b.Period.Seconds() * 2 * eventsPerSecond)
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		patches := func() error {
			return openLoop(ctx, eventsPerSecond, events, func(ctx context.Context, n int) error {
				message := fmt.Sprintf("%s%0*d", sentMark, sentDigits, time.Now().UnixNano())
				_, err := t.admin.send(ctx,
					request{method: http.MethodPatch, path: podPath(n%b.Pods) + "/status", contentType: mergePatchType,
						body: mergePatch(n, message)})
				return err
			})
		}
		unwatched, unwatchedStore, err := t.usedBy(patches)
		if err != nil {
			return err
		}
		var revision string
		if t.server != nil {
			if revision, err = t.admin.revision(ctx, "/api/v1/pods"); err != nil {
				return err
			}
		}
		group, err := startWatchers(ctx, t.admin, b.Watchers, events,
			request{accept: f.accept, path: "/api/v1/pods?watch=1&resourceVersion=" + revision})
		if err != nil {
			return err
		}
		var delays []time.Duration
		watched, watchedStore, err := t.usedBy(func() error {
			if err := patches(); err != nil {
				return err
			}
			delays, err = group.wait()
			return err
		})
		if err != nil {
			return err
		}
		b.addDuration(name+", delay p50", t.name, percentile(delays, 0.5))
		b.addDuration(name+", delay p99", t.name, percentile(delays, 0.99))
		b.addCPU(name+", CPU a delivery", t, watched, watchedStore, len(delays))
		b.addCPU(name+", CPU a delivery without the patches", t, watched-unwatched, watchedStore-unwatchedStore, len(delays))
		return nil
	}}
}

// watchers are clients with the same watch.
type watchers struct {
	done   sync.WaitGroup
	cancel context.CancelFunc
	mu     sync.Mutex
	delays []time.Duration
	err    error
}

// startWatchers opens n watches, each of which ends after a number of events.
func startWatchers(ctx context.Context, c *client, n, events int, r request) (*watchers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watchers{cancel: cancel}
	var opened sync.WaitGroup
	opened.Add(n)
	for range n {
		w.done.Go(func() {
			delays, err := follow(ctx, c, r, events, opened.Done)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.delays = append(w.delays, delays...)
			if err != nil && w.err == nil {
				w.err = err
				cancel()
			}
		})
	}
	opened.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w, w.err
}

// wait returns the delays of all events once all watches have ended.
func (w *watchers) wait() ([]time.Duration, error) {
	w.done.Wait()
	w.cancel()
	return w.delays, w.err
}

// follow watches until it has read a number of events that contain the time at which they
// were sent.
func follow(ctx context.Context, c *client, r request, events int, opened func()) ([]time.Duration, error) {
	r.method = http.MethodGet
	res, err := c.open(ctx, r)
	opened()
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	read := readLine
	if r.accept == protobufType {
		read = readFrame
	}
	body := bufio.NewReaderSize(res.Body, 64<<10)
	delays := make([]time.Duration, 0, events)
	for len(delays) < events {
		event, err := read(body)
		if err != nil {
			return delays, fmt.Errorf("watch ended early: %w", err)
		}
		if sent, ok := sentAt(event); ok {
			delays = append(delays, time.Since(sent))
		}
	}
	return delays, nil
}

// readLine returns a JSON event. It is valid until the next one is read.
func readLine(r *bufio.Reader) ([]byte, error) { return r.ReadSlice('\n') }

// readFrame returns a protobuf event, which follows its length. It is valid until the next
// one is read.
func readFrame(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(4)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head))
	if n+4 > r.Size() {
		return nil, errors.New("an event larger than any of ours")
	}
	frame, err := r.Peek(n + 4)
	if err != nil {
		return nil, err
	}
	_, err = r.Discard(n + 4)
	return frame[4:], err
}

// sentAt returns the time at which the patch of an event was sent.
func sentAt(event []byte) (time.Time, bool) {
	_, rest, found := bytes.Cut(event, []byte(sentMark))
	if !found || len(rest) < sentDigits {
		return time.Time{}, false
	}
	n, err := strconv.ParseInt(string(rest[:sentDigits]), 10, 64)
	return time.Unix(0, n), err == nil
}

// revision returns a revision from which the resource of a path can be watched.
func (c *client) revision(ctx context.Context, path string) (string, error) {
	res, err := c.open(ctx, request{method: http.MethodGet, path: path + "?limit=1"})
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var list metav1.PartialObjectMetadataList
	err = json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&list)
	return list.ResourceVersion, err
}
