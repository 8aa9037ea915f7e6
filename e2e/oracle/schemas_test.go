package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

const (
	schemaCount = 300
	// schemasPerDefinition is how many schemas one definition has, each as a field.
	schemasPerDefinition = 12
	// objectsPerSchema is how many objects are made for a schema.
	objectsPerSchema = 3
	asking           = 8 // requests at a time
)

// compareSchemas generates schemas and objects, and compares how both servers accept, prune,
// default or refuse them, with which reasons: when they are created, updated, and updated
// after their schema was tightened.
func compareSchemas(t *testing.T, stock, byre *peer) {
	c := &comparison{t: t, stock: stock, byre: byre}
	g := newGenerator(1)
	all := make([]object, schemaCount)
	for i := range all {
		all[i] = g.schema(3)
	}
	good := c.define(all)
	if len(good) < schemaCount/2 || len(good) == schemaCount {
		t.Errorf("%d of %d schemas are valid: the generator makes too many of a kind", len(good), schemaCount)
	}
	var definitions []generatedDefinition
	for n := 0; n < len(good); n += schemasPerDefinition {
		definitions = append(definitions,
			newGeneratedDefinition(g, n/schemasPerDefinition, good[n:min(n+schemasPerDefinition, len(good))]))
	}
	err := onBoth(stock, byre, func(p *peer) error {
		var errs []error
		for _, d := range definitions {
			errs = append(errs,
				p.expect(t.Context(), http.StatusCreated,
					request{method: http.MethodPost, path: definitionsPath, body: d.definition(d.schemas)}))
		}
		for _, d := range definitions {
			errs = append(errs, p.awaitDefinition(t.Context(), d.plural()+".generated.example.com", decided))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.objects(definitions)
	c.tighten(g, definitions)
	taken, refused := c.taken.Load(), c.refused.Load()
	t.Logf("%d schemas taken of %d, %d objects taken, %d refused", len(good), schemaCount, taken, refused)
	if taken < 400 || refused < 200 {
		t.Errorf("%d objects were accepted and %d refused: the generator makes too many of a kind", taken, refused)
	}
}

// generatedDefinition is a definition with generated schemas, and objects for each.
type generatedDefinition struct {
	number  int
	schemas []object
	// first and second are the objects as they are created and as they are updated.
	first, second []string
}

func newGeneratedDefinition(g generator, number int, schemas []object) generatedDefinition {
	d := generatedDefinition{number: number, schemas: schemas}
	for i := range len(schemas) * objectsPerSchema {
		field := i % len(schemas)
		for _, to := range []*[]string{&d.first, &d.second} {
			*to = append(*to, d.instance(i, object{fmt.Sprintf("f%d", field): g.value(schemas[field])}))
		}
	}
	return d
}

func (d generatedDefinition) plural() string { return fmt.Sprintf("things%d", d.number) }

func (d generatedDefinition) path() string {
	return "/apis/generated.example.com/v1/namespaces/custom/" + d.plural()
}

func (d generatedDefinition) instance(i int, spec object) string {
	return mustJSON(object{
		"apiVersion": "generated.example.com/v1", "kind": fmt.Sprintf("Thing%d", d.number),
		"metadata": object{"name": fmt.Sprintf("o%d", i)}, "spec": spec,
	})
}

func (d generatedDefinition) definition(schemas []object) string {
	properties := object{}
	for i, schema := range schemas {
		properties[fmt.Sprintf("f%d", i)] = schema
	}
	return definitionOf(d.plural(), fmt.Sprintf("Thing%d", d.number), object{"type": "object", "properties": properties})
}

func definitionOf(plural, kind string, spec object) string {
	return mustJSON(object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": plural + ".generated.example.com"},
		"spec": object{
			"group": "generated.example.com", "scope": "Namespaced",
			"names": object{"plural": plural, "kind": kind},
			"versions": []any{object{"name": "v1", "served": true, "storage": true, "schema": object{"openAPIV3Schema": object{
				"type": "object", "properties": object{"spec": spec},
			}}}},
		},
	})
}

func mustJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // of maps, lists, texts and numbers
	}
	return string(text)
}

// comparison sends many requests at a time to both servers.
type comparison struct {
	t              *testing.T
	stock, byre    *peer
	taken, refused atomic.Int64
}

// define compares the answers to a definition with each schema alone, and returns the
// schemas that are valid.
func (c *comparison) define(schemas []object) []object {
	good := make([]bool, len(schemas))
	var group errgroup.Group
	group.SetLimit(asking)
	for i, schema := range schemas {
		group.Go(func() error {
			r := request{
				name: fmt.Sprintf("schema %d", i), method: http.MethodPost,
				path: definitionsPath + "?dryRun=All&fieldValidation=Strict",
				body: definitionOf("trials", "Trial", schema), normalize: normalizeDefinitionCauses,
			}
			compare(c.t, c.stock, c.byre, r)
			a, err := c.byre.ask(c.t.Context(), r)
			good[i] = a.status == http.StatusCreated
			return err
		})
	}
	if err := group.Wait(); err != nil {
		c.t.Fatal(err)
	}
	var kept []object
	for i, schema := range schemas {
		if good[i] {
			kept = append(kept, schema)
		}
	}
	return kept
}

func normalizeDefinitionCauses(body any) any { return normalizeCauses(normalizeDefinition(body)) }

// objects creates and updates all objects, and compares the answers.
func (c *comparison) objects(definitions []generatedDefinition) {
	var group errgroup.Group
	group.SetLimit(asking)
	for _, d := range definitions {
		for i := range d.first {
			group.Go(func() error { return c.object(d, i) })
		}
	}
	if err := group.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *comparison) object(d generatedDefinition, i int) error {
	name := fmt.Sprintf("%s o%d ", d.plural(), i)
	path := fmt.Sprintf("%s/o%d", d.path(), i)
	strict := request{name: name + "strictly", method: http.MethodPost,
		path: d.path() + "?dryRun=All&fieldValidation=Strict", body: d.first[i], normalize: normalizeFirstError}
	compare(c.t, c.stock, c.byre, strict)
	compare(c.t, c.stock, c.byre,
		request{name: name + "create", method: http.MethodPost, path: d.path(), body: d.first[i],
			normalize: normalizeFirstError})
	a, err := c.byre.ask(c.t.Context(), request{path: path})
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		c.refused.Add(1)
		return nil
	}
	c.taken.Add(1)
	compare(c.t, c.stock, c.byre, request{name: name + "get", path: path})
	compare(c.t, c.stock, c.byre,
		request{name: name + "merge patch", method: http.MethodPatch, path: path + "?dryRun=All", contentType: mergePatch,
			body: d.second[i], normalize: normalizeFirstError})
	compare(c.t, c.stock, c.byre,
		request{name: name + "apply", method: http.MethodPatch, path: path + "?fieldManager=other&dryRun=All",
			contentType: apply, body: d.second[i], normalize: normalizeFirstError})
	return nil
}

// tighten tightens the schemas, and compares the answers to updates of objects that were
// created before.
func (c *comparison) tighten(g generator, definitions []generatedDefinition) {
	var changes sync.WaitGroup
	for _, d := range definitions {
		tight := make([]object, len(d.schemas))
		for i, schema := range d.schemas {
			tight[i] = g.tightened(schema)
		}
		changes.Go(func() { c.tightenOne(d, tight) })
	}
	changes.Wait()
}

func (c *comparison) tightenOne(d generatedDefinition, schemas []object) {
	definition := request{method: http.MethodPatch, path: definitionsPath + "/" + d.plural() + ".generated.example.com",
		contentType: mergePatch, body: d.definition(schemas)}
	for _, p := range []*peer{c.stock, c.byre} {
		a, err := p.ask(c.t.Context(), definition)
		if err != nil || a.status != http.StatusOK {
			c.t.Errorf("tighten %s of %s: %d %s %v", d.plural(), p.server.URL, a.status, show(a.body), err)
			return
		}
	}
	for i := range d.first {
		path := fmt.Sprintf("%s/o%d?dryRun=All", d.path(), i)
		name := fmt.Sprintf("%s o%d after its schema has changed: ", d.plural(), i)
		compare(c.t, c.stock, c.byre,
			request{name: name + "label", method: http.MethodPatch, path: path, contentType: mergePatch,
				body: `{"metadata":{"labels":{"a":"b"}}}`, normalize: normalizeFirstError, settles: true})
		compare(c.t, c.stock, c.byre,
			request{name: name + "merge patch", method: http.MethodPatch, path: path, contentType: mergePatch, body: d.second[i],
				normalize: normalizeFirstError, settles: true})
	}
}

// normalizeFirstError removes the mistake that an answer names where an object has several: the
// server iterates over a map, and so names a random one. These are the refusal of an apply whose
// object does not match the schema's types, and that of embedded metadata.
func normalizeFirstError(body any) any {
	if status, ok := body.(map[string]any); ok {
		switch message, _ := status["message"].(string); {
		case strings.Contains(message, "metadata: Invalid value: ") && strings.Contains(message, ": json: cannot unmarshal "):
			// The mistake stands behind the patched object, in the only cause too.
			status["message"], _, _ = strings.Cut(message, `}": `)
			delete(status, "details")
		case strings.HasPrefix(message, "failed to create typed patch object"):
			status["message"], _, _ = strings.Cut(message, "): ")
		case strings.Contains(message, " cannot be handled as a "):
			status["message"], _, _ = strings.Cut(message, ": ")
		}
	}
	return normalizeCauses(body)
}
