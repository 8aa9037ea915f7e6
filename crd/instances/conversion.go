package instances

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"byre/apiserver/storage/encoding"
)

// conversions caches the results of conversion webhooks, for the readers of all
// definitions. Results are JSON. maxBytes bounds their size, maxConversionAge their age.
// It is safe for concurrent use.
//
// Invariant: no value is in two calls of a webhook at a time. convertOne and convertAhead
// keep this: they enter a call in calls before they make it, and a reader of a value that
// is being converted waits for that call. Otherwise every reader of a list would have the
// whole list converted.
type conversions struct {
	maxBytes int

	mu     sync.Mutex
	byKey  map[conversionKey]*list.Element // of conversionResult
	recent list.List                       // the most recently used first
	bytes  int
	// calls has the call that each value is in.
	calls map[conversionKey]*conversionCall
}

// conversionKey names a stored value and the view (see convertingCodec.currentView) to make
// of it.
type conversionKey struct {
	view  string
	value [sha256.Size]byte
}

type conversionResult struct {
	key  conversionKey
	data []byte
	// made is when the webhook was asked.
	made time.Time
}

// conversionCall is one call of a webhook.
type conversionCall struct {
	values  int
	done    chan struct{}
	results map[conversionKey][]byte // set before done is closed
	err     error                    // the same
}

const (
	// maxConversions is how much memory the results may take, in bytes.
	maxConversions = 32 << 20
	// maxConversionAge is how long a result is used: a webhook may be upgraded while
	// nothing in the definition changes. It bounds the age of a GET without resourceVersion
	// and of what a write begins with.
	maxConversionAge = 10 * time.Second
	// sharedConversionAge is how long lists, watches and GETs with a resourceVersion use
	// what was made of a result, so that they show what a webhook said a minute ago at most.
	// (Upstream asks the webhook for every GET without resourceVersion and for every write.
	// It answers lists, watches and other GETs from a watch cache, which keeps what was
	// converted when the object changed until the definition changes.)
	sharedConversionAge = time.Minute - maxConversionAge
	// conversionOverhead is about the memory of a result beside its data, in bytes.
	conversionOverhead = 256
)

func newConversions(maxBytes int) *conversions {
	return &conversions{
		maxBytes: maxBytes,
		byKey:    map[conversionKey]*list.Element{},
		calls:    map[conversionKey]*conversionCall{},
	}
}

var errConversionPanicked = errors.New("the conversion did not end")

// convertFunc converts values in one call. It returns one result for each value.
type convertFunc func(values [][]byte) ([][]byte, error)

// convertOne returns the result for a value.
func (c *conversions) convertOne(view string, value []byte, convert convertFunc) ([]byte, error) {
	key := conversionKey{view, sha256.Sum256(value)}
	c.mu.Lock()
	if r := c.result(key); r != nil {
		c.mu.Unlock()
		return r.data, nil
	}
	call, ok := c.calls[key]
	if !ok {
		call = c.begin([]conversionKey{key})
	}
	c.mu.Unlock()
	if ok {
		<-call.done // a call of a webhook has a deadline
		if call.err == nil || call.values == 1 {
			return call.results[key], call.err
		}
		// Another value of the call may have caused the error.
		return c.convertOne(view, value, convert)
	}
	c.run(call, []conversionKey{key}, [][]byte{value}, convert)
	return call.results[key], call.err
}

// convertAhead converts, in one call, the values that are neither converted nor being
// converted, and waits for the calls that others of them are in. It returns no error: a
// value that failed is converted again by convertOne, which returns the error.
func (c *conversions) convertAhead(ctx context.Context, view string, values [][]byte, convert convertFunc) {
	var keys []conversionKey
	var mine [][]byte
	others := map[*conversionCall]bool{}
	c.mu.Lock()
	seen := map[conversionKey]bool{}
	for _, value := range values {
		key := conversionKey{view, sha256.Sum256(value)}
		if seen[key] || c.result(key) != nil {
			continue
		}
		seen[key] = true
		if call, ok := c.calls[key]; ok {
			others[call] = true
			continue
		}
		keys, mine = append(keys, key), append(mine, value)
	}
	var call *conversionCall
	if len(keys) > 1 {
		call = c.begin(keys)
	}
	c.mu.Unlock()
	if call != nil {
		c.run(call, keys, mine, convert)
	}
	for call := range others {
		select {
		case <-call.done:
		case <-ctx.Done():
			return
		}
	}
}

// begin enters a call. The caller holds mu.
func (c *conversions) begin(keys []conversionKey) *conversionCall {
	call := &conversionCall{values: len(keys), done: make(chan struct{})}
	for _, key := range keys {
		c.calls[key] = call
	}
	return call
}

// run makes a call that was entered, and adds its results.
func (c *conversions) run(call *conversionCall, keys []conversionKey, values [][]byte, convert convertFunc) {
	call.err = errConversionPanicked
	made := time.Now()
	results := map[conversionKey][]byte{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, key := range keys {
			delete(c.calls, key)
			if data, ok := results[key]; ok {
				c.add(&conversionResult{key: key, data: data, made: made})
			}
		}
		call.results = results
		close(call.done)
	}()
	converted, err := convert(values)
	if call.err = err; err != nil {
		return
	}
	for i, key := range keys {
		results[key] = converted[i]
	}
}

// result returns what was made of a value at most maxConversionAge ago, or nil. The caller
// holds mu.
func (c *conversions) result(key conversionKey) *conversionResult {
	at, ok := c.byKey[key]
	if !ok {
		return nil
	}
	r := at.Value.(*conversionResult)
	if time.Since(r.made) > maxConversionAge {
		c.remove(at)
		return nil
	}
	c.recent.MoveToFront(at)
	return r
}

// add adds a result in place of an older one, and evicts the least recently used ones beyond
// maxBytes. The caller holds mu.
func (c *conversions) add(r *conversionResult) {
	if older, ok := c.byKey[r.key]; ok {
		c.remove(older)
	}
	c.byKey[r.key] = c.recent.PushFront(r)
	c.bytes += len(r.data) + conversionOverhead
	for c.bytes > c.maxBytes {
		c.remove(c.recent.Back())
	}
}

// remove removes a result. The caller holds mu.
func (c *conversions) remove(at *list.Element) {
	result := c.recent.Remove(at).(*conversionResult)
	delete(c.byKey, result.key)
	c.bytes -= len(result.data) + conversionOverhead
}

// convertingCodec is the storage codec of a version that a webhook converts to. All who
// decode a stored value share what the webhook makes of it.
type convertingCodec struct {
	runtime.Codec
	codecs      codecs
	converter   *converter
	conversions *conversions
	// stored is the kind of a list of stored values.
	stored  schema.GroupVersionKind
	version schema.GroupVersion
	view    string // see derived.view
}

// Decode decodes a stored value to the version.
func (c *convertingCodec) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	object, ok := into.(*unstructured.Unstructured)
	if !ok || c.isOfVersion(data) {
		return c.Codec.Decode(data, defaults, into)
	}
	converted, err := c.conversions.convertOne(c.currentView(), data, c.convert)
	if err != nil {
		return nil, nil, err
	}
	if err := object.UnmarshalJSON(converted); err != nil {
		return nil, nil, err
	}
	kind := object.GroupVersionKind()
	return object, &kind, nil
}

// convertAhead converts, in one call, values that Decode will be called with; see
// storage.Config.DecodeAhead.
func (c *convertingCodec) convertAhead(ctx context.Context, values [][]byte) {
	others := slices.DeleteFunc(slices.Clone(values), c.isOfVersion)
	c.conversions.convertAhead(ctx, c.currentView(), others, c.convert)
}

// currentView names what the webhook makes of stored values. Each change of the definition's
// spec is another view, so that a client that changes the definition has the webhook asked
// anew.
func (c *convertingCodec) currentView() string {
	return fmt.Sprintf("%s/%d", c.view, c.converter.current.Load().generation)
}

// isOfVersion tells whether a stored value is of the codec's version. Stored members are
// sorted, so that apiVersion comes first. A wrong no costs a needless conversion only.
func (c *convertingCodec) isOfVersion(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"apiVersion":"`+c.version.String()+`"`))
	return ok && len(rest) > 0
}

// convert calls the webhook once for all values.
func (c *convertingCodec) convert(values [][]byte) ([][]byte, error) {
	in := &unstructured.UnstructuredList{Items: make([]unstructured.Unstructured, len(values))}
	in.SetGroupVersionKind(c.stored)
	decoder, defaulter := c.codecs.decoder(), c.codecs.defaulter()
	versions, isOfDefinition := c.converter.current.Load().versions, true
	for i, value := range values {
		if _, _, err := decoder.Decode(value, nil, &in.Items[i]); err != nil {
			return nil, err
		}
		defaulter.Default(&in.Items[i])
		isOfDefinition = isOfDefinition && versions.Has(in.Items[i].GroupVersionKind().Version)
	}
	items, err := c.convertItems(in)
	switch {
	case err != nil && isOfDefinition:
		return nil, &encoding.ConversionError{Err: err}
	case err != nil: // no webhook is asked about a version that the definition lacks
		return nil, err
	}
	after := coercer{schemas: c.codecs.schemas} // a webhook may answer anything
	converted := make([][]byte, len(items))
	for i := range items {
		if _, err := after.apply(&items[i]); err != nil {
			return nil, &encoding.ConversionError{Err: err}
		}
		if converted[i], err = items[i].MarshalJSON(); err != nil {
			return nil, err
		}
	}
	return converted, nil
}

// convertItems converts a single object as an object, not as a list of one: upstream's
// error messages differ.
func (c *convertingCodec) convertItems(in *unstructured.UnstructuredList) ([]unstructured.Unstructured, error) {
	if len(in.Items) > 1 {
		out, err := c.converter.unsafe().ConvertToVersion(in, c.version)
		if err != nil {
			return nil, err
		}
		return out.(*unstructured.UnstructuredList).Items, nil
	}
	out, err := c.converter.unsafe().ConvertToVersion(&in.Items[0], c.version)
	if err != nil {
		return nil, err
	}
	return []unstructured.Unstructured{*out.(*unstructured.Unstructured)}, nil
}

// converter converts the instances of one definition between its versions. The webhook's
// certificate authorities may change while handlers and watches use the converter.
type converter struct {
	factory *conversion.CRConverterFactory
	current atomic.Pointer[conversionOf]
}

// conversionOf converts by one generation of a definition.
type conversionOf struct {
	generation int64
	versions   sets.Set[string]
	// unsafe converts in place, safe converts a copy.
	safe, unsafe runtime.ObjectConvertor
}

// use makes the converter convert by a state of the definition, unless it already converts
// by a state of the same generation.
func (c *converter) use(crd *apiextensionsv1.CustomResourceDefinition) error {
	if last := c.current.Load(); last != nil && last.generation == crd.Generation {
		return nil
	}
	safe, unsafe, err := c.factory.NewConverter(crd)
	if err != nil {
		return fmt.Errorf("%s: conversion: %w", crd.Name, err)
	}
	versions := sets.New[string]()
	for _, v := range crd.Spec.Versions {
		versions.Insert(v.Name)
	}
	c.current.Store(&conversionOf{crd.Generation, versions, safe, unsafe})
	return nil
}

// safe and unsafe return convertors that follow the converter's changes.
func (c *converter) safe() runtime.ObjectConvertor {
	return following{func() runtime.ObjectConvertor { return c.current.Load().safe }}
}

func (c *converter) unsafe() runtime.ObjectConvertor {
	return following{func() runtime.ObjectConvertor { return c.current.Load().unsafe }}
}

// following calls what current returns.
type following struct {
	current func() runtime.ObjectConvertor
}

func (f following) Convert(in, out, context any) error { return f.current().Convert(in, out, context) }

func (f following) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	return f.current().ConvertToVersion(in, target)
}

func (f following) ConvertFieldLabel(kind schema.GroupVersionKind, label, value string) (string, string, error) {
	return f.current().ConvertFieldLabel(kind, label, value)
}
