package crd

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"byre/apiserver/handlers"
	"byre/apiserver/process"
	"byre/apiserver/query"
	"byre/crd/instances"
)

func validate(d process.Dependencies) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("crd: %w", err)
	}
	// They find conversion webhooks and authenticate to them.
	if d.ServiceResolver == nil || d.WebhookAuthentication == nil {
		return errors.New("crd: ServiceResolver and WebhookAuthentication are required")
	}
	return nil
}

// Server is an http.Handler of definitions and of their instances.
type Server struct {
	codecs      serializer.CodecFactory
	definitions *handlers.API
	// ownTables has the table of definitions.
	ownTables *query.BuiltinTables
	resolver  *resolver
	*controller
}

// errUnresolved is what a client is told when a definition cannot be served.
var errUnresolved = errors.New("error resolving resource")

// New makes a Server that passes requests that it does not serve on to
// delegate. It starts nothing.
func New(d process.Dependencies, delegate http.Handler) (*Server, error) {
	if err := validate(d); err != nil {
		return nil, err
	}
	converters, err := conversion.NewCRConverterFactory(d.ServiceResolver, d.WebhookAuthentication)
	if err != nil {
		return nil, fmt.Errorf("crd: conversion webhooks: %w", err)
	}
	own, err := newGroup(d)
	if err != nil {
		return nil, err
	}
	validation.RegisterMetrics()
	s := &Server{codecs: own.codecs}
	if s.definitions, s.ownTables, err = own.api(d, delegate); err != nil {
		return nil, err
	}
	env := instances.NewEnvironment(instances.Environment{
		Scheme: own.scheme, Storage: d.Storage, Serving: d.Serving, Converters: converters, Sources: own,
	})
	s.resolver = newResolver(env, own)
	if s.controller, err = newController(d, s.resolver, own); err != nil {
		return nil, err
	}
	return s, nil
}

// Stores tells whether this server stores the objects of a resource: definitions and
// their instances.
func (s *Server) Stores(gr schema.GroupResource) bool {
	return gr == definitions || s.resolver.get(gr.String()) != nil
}
