package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"byre/e2e/projects"
)

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definition is one to create.
type definition struct {
	body []byte
	// instances is the path of what it defines.
	instances string
}

// readDefinitions returns n definitions: the ones that are shipped, and copies of
// them in other groups.
func readDefinitions(ctx context.Context, n int) ([]definition, error) {
	var originals []*unstructured.Unstructured
	for _, p := range projects.All {
		root, err := p.Fetch(ctx)
		if err != nil {
			return nil, err
		}
		found, err := p.ReadDefinitions(os.DirFS(root))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		originals = append(originals, found...)
	}
	all := make([]definition, n)
	for i := range all {
		d, err := inGroup(originals[i%len(originals)], i/len(originals))
		if err != nil {
			return nil, err
		}
		all[i] = d
	}
	return all, nil
}

// inGroup copies a definition into another group; the first copy stays where it
// is. Nobody converts here.
func inGroup(original *unstructured.Unstructured, copyNumber int) (definition, error) {
	d := original.DeepCopy()
	delete(d.Object, "status")
	unstructured.RemoveNestedField(d.Object, "spec", "conversion")
	plural, group, _ := strings.Cut(d.GetName(), ".")
	if copyNumber > 0 {
		group = fmt.Sprintf("copy%d.%s", copyNumber, group)
	}
	d.SetName(plural + "." + group)
	if err := unstructured.SetNestedField(d.Object, group, "spec", "group"); err != nil {
		return definition{}, err
	}
	body, err := d.MarshalJSON()
	if err != nil {
		return definition{}, err
	}
	versions, _, err := unstructured.NestedSlice(d.Object, "spec", "versions")
	for _, v := range versions {
		if version, ok := v.(map[string]any); ok && version["storage"] == true {
			return definition{body, fmt.Sprintf("/apis/%s/%s/%s", group, version["name"], plural)}, nil
		}
	}
	return definition{}, fmt.Errorf("%s has no storage version: %w", d.GetName(), err)
}

// definitionPhases measure what n definitions cost.
func (b *bench) definitionPhases(ctx context.Context) ([]phase, error) {
	all, err := readDefinitions(ctx, b.definitions)
	if err != nil {
		return nil, err
	}
	bytesOfAll := 0
	for _, d := range all {
		bytesOfAll += len(d.body)
	}
	fmt.Fprintf(os.Stderr, "%d definitions of %d kB on average\n", len(all), bytesOfAll/len(all)/1000)
	idle := map[*target]int64{}
	grown := func(name string) phase {
		return func(_ context.Context, t *target) error {
			now, beside, err := t.memory()
			if err != nil {
				return err
			}
			b.figures.add("memory, "+name, "MB", true, t.name, float64(now)/1e6)
			b.figures.add("memory a definition, "+name, "MB", true, t.name, float64(now+beside-idle[t])/1e6/float64(len(all)))
			return nil
		}
	}
	settle := func(ctx context.Context, _ *target) error { return b.settle(ctx, nil) }
	return []phase{
		settle,
		func(_ context.Context, t *target) error {
			now, beside, err := t.memory()
			idle[t] = now + beside
			return err
		},
		func(ctx context.Context, t *target) error { return b.define(ctx, t, all) },
		settle, settle, settle, grown("all served"),
		func(ctx context.Context, t *target) error { return b.useAll(ctx, t, all) },
		settle, grown("one list of each made"),
		b.openAPI,
		settle, settle, settle, grown("OpenAPI v2 asked for once"),
		b.restart,
		settle, settle, grown("after a restart"),
	}, nil
}

// definers is how many definitions are made at a time.
const definers = 4

// define creates all definitions and measures how long each takes to be served.
func (b *bench) define(ctx context.Context, t *target, all []definition) error {
	var mu sync.Mutex
	begun := time.Now()
	_, _, err := rate(ctx, definers, time.Hour, 0, len(all), func(ctx context.Context, n int) error {
		if err := t.client.create(ctx, definitionsPath, all[n].body); err != nil {
			return err
		}
		start := time.Now()
		if err := t.client.awaitServed(ctx, all[n].instances); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		b.figures.add("a definition served after", "ms", true, t.name, float64(time.Since(start).Microseconds())/1000)
		return nil
	})
	b.figures.add("all served", "s", true, t.name, time.Since(begun).Seconds())
	return err
}

// awaitServed asks for the instances of a definition until there is somebody to
// ask: that is cheaper than reading the definition again and again.
func (c *client) awaitServed(ctx context.Context, path string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.get(ctx, path)
		// A stock server says 429 while it fills its cache.
		if err == nil || !strings.Contains(err.Error(), "404") && !strings.Contains(err.Error(), "429") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// useAll lists the instances of every definition.
func (b *bench) useAll(ctx context.Context, t *target, all []definition) error {
	for _, d := range all {
		if _, err := t.client.get(ctx, d.instances); err != nil {
			return err
		}
	}
	return nil
}

// openAPI asks for the one document of version 2. With many definitions a server
// may take longer for it than a request may; it has it later.
func (b *bench) openAPI(ctx context.Context, t *target) error {
	start := time.Now()
	size, err := t.client.get(ctx, "/openapi/v2")
	for err != nil && strings.Contains(err.Error(), "504") {
		size, err = t.client.get(ctx, "/openapi/v2")
	}
	b.figures.add("OpenAPI v2", "s", true, t.name, time.Since(start).Seconds())
	b.figures.add("OpenAPI v2, size", "MB", true, t.name, float64(size)/1e6)
	return err
}

// restart ends the server and starts it again on what it has stored.
func (b *bench) restart(ctx context.Context, t *target) error {
	t.server.Kill()
	server, err := t.start(ctx)
	if err != nil {
		return err
	}
	t.server = server
	b.figures.add("ready again after", "ms", true, t.name, float64(server.StartTime.Milliseconds()))
	t.client, err = newClient(server)
	return err
}
