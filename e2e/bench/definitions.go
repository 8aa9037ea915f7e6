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

// definition is a CustomResourceDefinition to create.
type definition struct {
	body []byte
	// instances is the path of the resource that it defines.
	instances string
}

// readDefinitions returns n definitions: those of the projects in e2e/projects, and copies
// of them in other groups.
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

// inGroup copies a definition to another group; copy 0 keeps its group. The copy has no
// conversion.
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

// definitionPhases measure the cost of a number of definitions.
func (b *bench) definitionPhases(ctx context.Context) ([]phase, error) {
	all, err := readDefinitions(ctx, b.Definitions)
	if err != nil {
		return nil, err
	}
	idle := map[string]int64{}
	grown := func(name string) []phase {
		haveRested := false
		return []phase{{name: name, run: func(ctx context.Context, t *target) error {
			if err := b.rest(ctx, 2*b.Settle, &haveRested); err != nil {
				return err
			}
			server, store, err := t.used()
			if err != nil {
				return err
			}
			b.add("memory, "+name, "MB", true, t.name, float64(server.Memory)/1e6)
			b.add("memory a definition, "+name, "MB", true, t.name,
				float64(server.Memory+store.Memory-idle[t.name])/1e6/float64(len(all)))
			return nil
		}}}
	}
	haveRested := false
	phases := []phase{{name: "memory, idle", run: func(ctx context.Context, t *target) error {
		if err := b.rest(ctx, b.Settle, &haveRested); err != nil {
			return err
		}
		server, store, err := t.used()
		idle[t.name] = server.Memory + store.Memory
		return err
	}}}
	phases = append(phases, phase{name: "create definitions", run: func(ctx context.Context, t *target) error {
		return b.define(ctx, t, all)
	}})
	phases = append(phases, grown("all served")...)
	phases = append(phases, phase{name: "list instances", run: func(ctx context.Context, t *target) error {
		return t.listInstances(ctx, all)
	}})
	phases = append(phases, grown("one list of each made")...)
	phases = append(phases, phase{name: "OpenAPI v2", run: b.openAPI})
	phases = append(phases, grown("OpenAPI v2 asked for once")...)
	phases = append(phases, b.startAgain("ready after a restart", (*target).restart))
	return append(phases, grown("after a restart")...), nil
}

// createAllDefinitions creates the definitions on byre only: for 1,000 of them a stock
// server would need more memory than the machines of such runs have.
func (b *bench) createAllDefinitions(ctx context.Context) (phase, error) {
	all, err := readDefinitions(ctx, b.Definitions)
	return phase{name: "create definitions", run: func(ctx context.Context, t *target) error {
		if t.name == stock {
			return nil
		}
		return b.define(ctx, t, all)
	}}, err
}

// definers is the number of definitions that are created concurrently.
const definers = 4

// define creates all definitions and measures how long it takes until each is served.
func (b *bench) define(ctx context.Context, t *target, all []definition) error {
	var mu sync.Mutex
	var took []time.Duration
	done, err := closedLoop{clients: definers, requests: len(all)}.run(ctx, func(ctx context.Context, _, n int) error {
		if err := t.admin.create(ctx, definitionsPath, all[n].body); err != nil {
			return err
		}
		start := time.Now()
		if err := t.admin.awaitServed(ctx, all[n].instances); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(start))
		return nil
	})
	b.addDuration("a definition served after", t.name, percentile(took, 0.5))
	b.add("all definitions served", "s", true, t.name, done.took.Seconds())
	return err
}

// servedTimeout bounds how long awaitServed tries.
const servedTimeout = 2 * time.Minute

// awaitServed lists the instances of a definition until the server answers: that costs less
// than reading the definition repeatedly.
func (c *client) awaitServed(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.get(ctx, path)
		// A stock server answers 429 while it fills its watch cache.
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

// listInstances lists the instances of every definition. A stock server that has just begun
// to serve a definition answers 429 for a while, and client-go tries again; so does this.
func (t *target) listInstances(ctx context.Context, all []definition) error {
	for _, d := range all {
		if err := t.admin.awaitServed(ctx, d.instances); err != nil {
			return err
		}
	}
	return nil
}

// openAPI requests the OpenAPI document of version 2. With many definitions the server may
// build it for longer than a request may last; a later request gets it.
func (b *bench) openAPI(ctx context.Context, t *target) error {
	start := time.Now()
	size, err := t.admin.get(ctx, "/openapi/v2")
	for err != nil && strings.Contains(err.Error(), "504") {
		size, err = t.admin.get(ctx, "/openapi/v2")
	}
	b.add("OpenAPI v2", "s", true, t.name, time.Since(start).Seconds())
	b.add("OpenAPI v2, size", "MB", true, t.name, float64(size)/1e6)
	return err
}
