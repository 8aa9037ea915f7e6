package instances

import (
	"fmt"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// converter converts the instances of one definition between its versions. The webhook's
// certificate authorities may change while handlers and watches use the converter.
type converter struct {
	factory *conversion.CRConverterFactory
	current atomic.Pointer[conversionOf]
}

// conversionOf converts by one generation of a definition.
type conversionOf struct {
	generation int64
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
	c.current.Store(&conversionOf{crd.Generation, safe, unsafe})
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
