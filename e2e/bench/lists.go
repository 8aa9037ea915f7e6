package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"
)

// pageSize is the page size of kubectl and of client-go's reflectors.
const pageSize = 500

// podsPath is the path of all Pods, or of those that a query selects.
func podsPath(key, value string) string {
	if key == "" {
		return "/api/v1/pods"
	}
	return "/api/v1/pods?" + url.Values{key: {value}}.Encode()
}

func byNode() request { return request{path: podsPath("fieldSelector", "spec.nodeName=node-7")} }
func byLabel() request {
	return request{path: podsPath("labelSelector", "app.kubernetes.io/name=app-3")}
}

// listPhases list Pods in every representation and by every selector.
func (b *bench) listPhases() []phase {
	list := func(name string, n int, r request) phase {
		return phase{name: name, run: func(ctx context.Context, t *target) error { return b.measureList(ctx, t, name, r, n) }}
	}
	var phases []phase
	for _, f := range listRepresentations {
		phases = append(phases, list("list all Pods, "+f.name, b.Lists, request{accept: f.accept, path: podsPath("", "")}))
	}
	for _, f := range []representation{asJSON, asProtobuf} {
		phases = append(phases,
			list("list all Pods, "+f.name+", without gzip", b.Lists,
				request{accept: f.accept, path: podsPath("", ""), isPlain: true}))
	}
	name := fmt.Sprintf("list Pods, page of %d", pageSize)
	return append(phases,
		list("list Pods by spec.nodeName", 10*b.Lists, byNode()),
		list("list Pods by label", 3*b.Lists, byLabel()),
		phase{name: name, run: func(ctx context.Context, t *target) error {
			took, err := t.admin.pages(ctx, 10)
			b.addDuration(name, t.name, took)
			return err
		}})
}

// measureList sends a list n times, and records the median time to the last byte and the
// processor time of one list.
func (b *bench) measureList(ctx context.Context, t *target, name string, r request, n int) error {
	before, storeBefore, err := t.used()
	if err != nil {
		return err
	}
	r.method = http.MethodGet
	took, err := times(n, func() error {
		size, err := t.admin.send(ctx, r)
		if err == nil && size < 1000 {
			err = fmt.Errorf("%s is only %d bytes", name, size)
		}
		return err
	})
	if err != nil {
		return err
	}
	after, storeAfter, err := t.used()
	if err != nil {
		return err
	}
	b.addDuration(name, t.name, took)
	b.addCPU(name+", CPU", t, after.CPU-before.CPU, storeAfter.CPU-storeBefore.CPU, n)
	return nil
}

// pages reads Pods in pages, up to a number of pages, and returns the average time of a
// page.
func (c *client) pages(ctx context.Context, most int) (time.Duration, error) {
	query := url.Values{"limit": {fmt.Sprint(pageSize)}}
	start := time.Now()
	for page := 1; ; page++ {
		body, err := c.read(ctx, request{method: http.MethodGet, path: "/api/v1/pods?" + query.Encode()})
		if err != nil {
			return 0, err
		}
		token := continueToken(body)
		if token == "" || page == most {
			return time.Since(start) / time.Duration(page), nil
		}
		query.Set("continue", token)
	}
}

// continueToken cuts the token out of the list's metadata, which comes first in the body:
// the client need not decode the list.
func continueToken(list []byte) string {
	head, _, _ := bytes.Cut(list, []byte(`"items":`))
	_, rest, _ := bytes.Cut(head, []byte(`"continue":"`))
	token, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(token)
}

// growth measures a server that holds a number of Pods.
func (b *bench) growth(pods int) phase {
	return phase{name: fmt.Sprintf("growth, %d Pods", pods), run: func(ctx context.Context, t *target) error {
		if err := sleep(ctx, b.Settle/4); err != nil {
			return err
		}
		server, store, err := t.used()
		if err != nil {
			return err
		}
		b.plot("memory", "MB", t.name, pods, float64(server.Memory)/1e6)
		b.plot("memory, with the store", "MB", t.name, pods, float64(server.Memory+store.Memory)/1e6)
		list := func(r request) func() error {
			r.method = http.MethodGet
			return func() error { _, err := t.admin.send(ctx, r); return err }
		}
		var errs []error
		plot := func(name string, n int, send func() error) {
			// The first request fills indexes and caches.
			errs = append(errs, send())
			took, err := times(n, send)
			errs = append(errs, err)
			b.plot(name, "ms", t.name, pods, ms(took))
		}
		plot("get Pod", 50, func() error { return list(request{path: podPath(rand.IntN(pods))})() })
		plot("list Pods by spec.nodeName", 5, list(byNode()))
		plot("list Pods by label", 5, list(byLabel()))
		plot(fmt.Sprintf("list Pods, page of %d", pageSize), 5, list(request{path: podsPath("limit", fmt.Sprint(pageSize))}))
		plot("list all Pods, JSON", 1, list(request{path: podsPath("", "")}))
		return errors.Join(errs...)
	}}
}

// largePhases fill a server with Pods, and measure it when it is full and after a restart.
func (b *bench) largePhases(ctx context.Context) ([]phase, error) {
	phases := append([]phase{b.setUp()}, b.fill()...)
	phases = append(phases, b.memory("memory, with the Pods", b.Settle))
	phases = append(phases, b.repeated(func() []phase {
		return append([]phase{b.getPods(asJSON, admin)}, b.listPhases()...)
	})...)
	phases = append(phases, b.memory("memory, after everything", b.Settle),
		b.memory("memory, when nobody has read for six minutes", b.Unread))
	for _, f := range []representation{asJSON, asProtobuf} {
		name := "list all Pods that nobody has read for six minutes, " + f.name
		phases = append(phases, phase{name: name, run: func(ctx context.Context, t *target) error {
			return b.measureList(ctx, t, name, request{accept: f.accept, path: podsPath("", "")}, 1)
		}})
	}
	definitions, err := b.createAllDefinitions(ctx)
	if err != nil {
		return nil, err
	}
	phases = append(phases, definitions)
	phases = append(phases, b.repeated(func() []phase {
		return []phase{b.startAgain("ready after a crash, with the definitions", (*target).crash, stock),
			b.startAgain("ready after a restart, with the definitions", (*target).restart, stock)}
	})...)
	return append(phases, b.memory("memory, after a restart", b.Settle)), nil
}
